"""Text normalisation: written English to spoken words.

Numbers, dates, times, money, measures, abbreviations, addresses and symbols become words; the result has only letters
and punctuation. Acronyms are left to the phonemizer.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterator

from phonate.text.english import abbreviations, dates, quantities
from phonate.text.patterns import lazy
from phonate.text.phonemes import report_left_out

# ------------------------------------------------------------------------------------ Characters of any script -> ASCII

_BEFORE_NFKC = {
    **dict.fromkeys("‘’‚‛`´ʼʻ′＇", "'"),
    **dict.fromkeys("“”„‟«»″〝〞", '"'),
    **dict.fromkeys("—―⸺⸻", " - "),
    **dict.fromkeys("‐‑‒–⁃", "-"),
    **dict.fromkeys("[{", "("),
    **dict.fromkeys("]}", ")"),
    **dict.fromkeys("™®℠", " "),
    **dict.fromkeys("•‣·*|^~¿¡", " "),
    "…": "...", "⁄": "/", "ß": "ss", "æ": "ae", "Æ": "Ae", "œ": "oe", "Œ": "Oe", "ø": "o", "Ø": "O", "ł": "l",
    "Ł": "L", "đ": "d", "Đ": "D", "ð": "th", "Ð": "Th", "þ": "th", "Þ": "Th", "ı": "i", "×": " times ", "−": " minus ",
    "÷": " divided by ", "±": " plus or minus ", "≠": " is not equal to ",
    "§": " section ", "©": " copyright ", "≈": " about ",
    "≤": " at most ", "≥": " at least ", "№": " No. ", "µ": "u", "。": ". ", "、": ", ",
}  # fmt: skip

_IN_CONTEXT = (
    # 10¹², 10⁻⁵, x²³; a ² or ³ alone is read below
    (
        lazy(r"(?:(?<=[0-9)])|(?<=\b[a-zA-Z]))(?=[²³][⁰¹²³⁴-⁹]|[⁰¹⁴-⁹]|[⁺⁻][⁰¹²³⁴-⁹])"),
        " to the power of ",
    ),
    (lazy(r"(?<=[0-9)])²"), " squared "),  # behind letters, units of area
    (lazy(r"(?<=[0-9)])³"), " cubed "),
    (lazy(r"(?<![a-zA-Zα-ω])(?!km|cm|dm|mm|nm|ft|yd|mi)([a-zα-ω])(?=[a-z]²)"), r"\1 "),  # mc²
    (lazy(r"(?<=\b[a-ln-rt-zA-Z])²"), " squared "),  # not m² and s²
    (lazy(r"(?<=\b[a-ln-rt-zA-Z])³"), " cubed "),
    (lazy(r"(?<=[\w)])\^2(?![\w.])"), " squared "),
    (lazy(r"(?<=[\w)])\^3(?![\w.])"), " cubed "),
    (lazy(r"(?<=[\w)])\^(?=[\w(-])"), " to the power of "),
    (lazy(r"(?<=\d)\*(?=\d)|(?<=[\w)] )\*(?= [\w(])"), " times "),
    (lazy(r"~(?=\d)"), "about "),
    (lazy(r"(?<![a-zA-Z0-9])_|_(?![a-zA-Z0-9])"), " "),  # within a word it may be that of an address
    (lazy(r"&&"), " and "),
    (lazy(r"\|\|"), " or "),
    (lazy(r"[-=]>|[→⇒➔➜]"), " to "),
    (lazy(r"(?<=\b[A-G])[#♯](?!\w)"), " sharp"),  # C#
)
"""What a character means depends on what stands around it."""
_NOT = "\N{COMBINING LONG SOLIDUS OVERLAY}"
_SAYABLE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 \n_.,!?;:-'\"()&@+=#%/$<>£€¥₹¢°\\")
_GREEK = {
    character: f" {name.split(' LETTER ')[1].split()[0].lower()} "
    for character in map(chr, range(0x370, 0x400))
    if " LETTER " in (name := unicodedata.name(character, "")) and name.startswith("GREEK")
}
"""Without accents; those with an accent are letters of these with a mark."""


def plain(text: str) -> str:
    """`text` in ASCII (and £ € ¥ ₹ ¢ °): without accents, quotes and dashes unified, Greek letters by their names.

    Characters without an English pronunciation are dropped, and logged the first time.
    """
    text = _in_context(text)
    report_left_out(_unpronounceable(text), "without an English pronunciation")
    return "".join(" " if (replacement := _ascii(character)) is None else replacement for character in text)


def says_all(text: str) -> bool:
    """Whether every character of `text` has a pronunciation, or none by its nature, as spaces have."""
    return not without_pronunciation(text)


def without_pronunciation(text: str) -> list[str]:
    """The characters of `text` that are left out, each once."""
    return list(dict.fromkeys(_unpronounceable(_in_context(text))))


def _in_context(text: str) -> str:
    for pattern, words in _IN_CONTEXT:
        text = pattern.sub(words, text)
    return text


def _unpronounceable(text: str) -> Iterator[str]:
    return (character for character in text if _ascii(character) is None)


@functools.lru_cache(maxsize=4096)
def _ascii(character: str) -> str | None:
    """The replacement of `character`; None if there is none."""
    if character in _BEFORE_NFKC:
        return _BEFORE_NFKC[character]
    if character in _SAYABLE:
        return character
    if character.isspace() or unicodedata.category(character) in {"Cf", "Mn", "Me", "Cc"}:
        return "" if unicodedata.category(character) in {"Cf", "Mn", "Me"} else " "
    if (digit := unicodedata.digit(character, None)) is not None and unicodedata.category(character) == "Nd":
        return str(digit)
    compatible = unicodedata.normalize("NFKD", character)
    if _NOT in compatible:  # without the mark it would mean the opposite
        return None
    if unicodedata.category(character) == "No" and "⁄" in compatible:
        return " " + compatible.replace("⁄", "/")  # "3½" is three and a half
    if compatible != character:
        pieces = [_ascii(piece) for piece in compatible]
        return None if any(piece is None for piece in pieces) else "".join(piece or "" for piece in pieces)
    return _GREEK.get(character)


# ---------------------------------------------------------------------- E-mail and web addresses as they are read aloud

_EMAIL = lazy(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b")
_SCHEME = r"(?:https?|ftp)://"
_BEGIN = lazy(rf"^{_SCHEME}", re.I)
_TOP = "com|org|net|edu|gov|io|co|uk|de|fr|eu|info|ai|dev|us|ca|au|nl|it|ch|at|tv|me"
_WEB = lazy(rf"(?:{_SCHEME}|\bwww\.)[^\s<>\"')]+|\b[\w-]+(?:\.[\w-]+)*\.(?:{_TOP})\b(?:/[^\s<>\"')]*)?", re.I)
_NAMES = {
    ".": "dot", "@": "at", "/": "slash", "-": "dash", "_": "underscore", "+": "plus", "?": "question mark",
    "=": "equals", "&": "and", "#": "hash", "%": "percent", ":": "colon", "~": "tilde",
}  # fmt: skip


def _read_aloud(address: str) -> str:
    address = re.sub(r"(?i)^www\b", "w w w", address)
    pieces = re.findall(r"[A-Za-z]+|\d+|[^\w\s]|_|\s", address)
    words = [" ".join(piece) if piece.isdigit() else _NAMES.get(piece, piece) for piece in pieces]
    return re.sub(r"\s+", " ", " ".join(words)).strip()


def _web(match: re.Match[str]) -> str:
    address = _BEGIN.sub("", match[0])
    bare = address.rstrip(".,;:!?/")
    return _read_aloud(bare) + address[len(bare) :].lstrip("/")


# --------------------------------------------------------------------------------------------- Written English -> words

_SYMBOLS = {
    "&": "and", "@": "at", "+": "plus", "=": "equals", "%": "percent", "$": "dollars", "£": "pounds", "€": "euros",
    "¥": "yen", "₹": "rupees", "¢": "cents", "°": "degrees", "<": "less than", ">": "greater than", "\\": "backslash",
    "/": "slash", "#": "hash",
}  # fmt: skip
_SYMBOL = lazy("|".join(map(re.escape, _SYMBOLS)))
_EXTENSIONS = (
    "js|ts|py|md|txt|pdf|csv|json|ya?ml|xml|html?|css|exe|zip|gz|png|jpe?g|gif|svg|mp[34]|wav|flac|ogg|docx?|xlsx?|pptx?|"
    "sh|cpp|java|rs|php|sql|log|ini|toml"
)
_STATES = (
    "A[KLRZ]|C[AOT]|D[CE]|FL|GA|HI|I[ADLN]|K[SY]|LA|M[ADEINOST]|N[CDEHJMVY]|O[HKR]|PA|RI|S[CD]|T[NX]|UT|V[AT]|W[AIVY]"
)
_BOOKS = (
    "Genesis|Exodus|Leviticus|Numbers|Deuteronomy|Joshua|Judges|Ruth|Samuel|Kings|Chronicles|Job|Psalms?|Proverbs|"
    "Ecclesiastes|Isaiah|Jeremiah|Ezekiel|Daniel|Hosea|Matthew|Mark|Luke|John|Acts|Romans|Corinthians|Galatians|"
    "Ephesians|Philippians|Colossians|Timothy|Hebrews|James|Peter|Revelation"
)
_CODES = (
    "CVC|CVV|OTP|PIN|TAN|[Pp]asscode|[Pp]assword|[Cc]ode|[Aa]ccount|[Cc]ard|[Tt]icket|[Ii]nvoice|"
    r"[Oo]rder(?! [1-9]\d{0,2}00\b)|[Rr]eservation|[Bb]ooking|[Tt]racking|[Ss]erial"
)
# call 911, 999 or 112: one after the other, behind those that are read as digits already
_SHORT_NUMBER = lazy(
    r"\b((?:[Cc]all(?:s|ed|ing)?|[Dd]ial(?:s|l?ed|l?ing)?|[Rr]ings?|[Rr]ang|[Pp]hone[sd]?) "
    r"(?:\d \d \d(?:,? (?:or|and)|,) )*)(?=(?:[2-9]11|999|112|988)"
    r"(?![\w-]|[.,]\d| (?!(?:as|has|is|was)\b)[a-z]+s\b| people))(\d)(\d)(\d)"
)
_FIRST = (
    (lazy("_"), " "),
    # the digits of codes one by one; U+0002 marks them, for the three rows after
    (
        lazy(
            rf"\b({_CODES})( number| no\.| code)?( is|:|,)? (\d{{3,4}}(?:[ -]\d{{3,4}}){{1,4}}|\d{{4,19}})"
            r"(?![\w%-]|[.,:]\d| (?!(?:as|has|is|was)\b)[a-z]+s\b)"
        ),
        "\\1\\2\\3 \x02\\4\x02",
    ),
    (lazy(r"(?<=\d)[ -](?=[\d -]*\x02)"), ", "),
    (lazy(r"(?<=\d)(?=\d[\d, ]*\x02)"), " "),
    (lazy("\x02"), ""),
    (lazy(rf"\b({_STATES}|ZIP|ZIP code)( \d{{5}})-(\d)(\d)(\d)(\d)(?![\w-])"), r"\1\2, \3 \4 \5 \6"),
    (lazy(rf"\b({_STATES}|ZIP|ZIP code) (\d)(\d)(\d)(\d)(\d)(?![\w-]|[.,]\d)"), r"\1 \2 \3 \4 \5 \6"),
    *3 * ((_SHORT_NUMBER, r"\1\2 \3 \4"),),
    (lazy(r"(?<![\w-])1-(\d)(\d)(\d)-(?=[A-Z])"), r"1 \1 \2 \3, "),  # 1-800-FLOWERS
    (lazy(rf"\b({_BOOKS}) (\d{{1,3}}):(?=\d{{1,3}}\b)"), r"\1 \2 "),
    (lazy(r"\b(GMT|UTC)\s?-(?=\d)"), r"\1 minus "),
    (lazy(r"\b([A-Z]{1,4}\d{1,3})s(?!\w)"), r"\1's"),  # MP3s
    (lazy(r"(?<![\w.,'])(\d)'(\d{1,2})(?![\w\"'.,]*\d|[\"'\w])"), "\\1'\\2\""),  # 5'4
    (lazy(r"(?:^|\n)#{2,6}\s+(?=\w)"), " "),  # a heading
    (lazy(r"#(?=\d)"), "number "),
    (lazy(r"(?<!\w)#(?=[A-Za-z])"), "hashtag "),
    (lazy(r"(?<!\w)(?<!\d\s)([$£€¥₹])-(?=\.?\d)"), r"-\1"),
    (lazy(r"\bw/o\b"), "without"),
    (lazy(r"\bw/(?=\s)"), "with"),
    (lazy(r"\band/or\b", re.IGNORECASE), "and or"),
    (lazy(r"\bvs\b(?!\.)"), "versus"),
    (lazy(r"!=="), "!="),
    (lazy(r"==+"), "="),
    (lazy(r"!="), " is not equal to "),
    (lazy(r"<="), " at most "),
    (lazy(r">="), " at least "),
    (lazy(r"(?<=-\d\d)T(?=\d\d:\d\d)"), " at "),
    (lazy(r"(?<=:\d\d)Z\b"), " UTC"),
    (lazy(r"(\d/\d+)(?:rd|th|nd)s?\b"), r"\1"),
    (lazy(r"(?<=\d)\s/\s(?=\d)"), " divided by "),
    (lazy(r"\b24/7\b"), "twenty-four seven"),
    (lazy(r"\b50/50\b"), "fifty-fifty"),
    (lazy(r"(?<![\w/])([A-Z])/([A-Z])\b(?!/)\.?"), r"\1.\2."),  # A/C
    (
        lazy(
            r"\bIT(?=\s(?:company|consultants?|department|industry|manager|people|security|services?|specialists?|staff|"
            r"support|systems?|teams?)\b)"
        ),
        "I.T.",
    ),
    (lazy(r"\b[Aa]pt\.(?=\s?#?\d)"), "apartment"),
    (lazy(r"(?<=\d)\s?x\s?(?=\d+(?:\.\d+)?\s?=)"), " times "),
    (lazy(r"(?<=\d)(?<!\b0)\s?x\s?(?=\d)"), " by "),
    (lazy(r"(?<=\d)x(?=\s(?!and\b|or\b)[a-z]{2,})"), " times"),  # 2x faster, not 2x + 1
    (lazy(r"(?<=\d)'(?=\d{3}\b)"), ""),  # 10'000
    (lazy(r"(?<=\d)(?<!(?<![\d.])3)M(?=[\s,.;:!?)]|$)"), " million"),  # not 3M
    (lazy(r"(?<=\d)\s?bn\b"), " billion"),
    (lazy(r"(?<![\w.,])(\d+\.\d+)B\b(?!')"), r"\1 billion"),  # not 4B
    (
        lazy(
            r"(?<![\w.,=])(?<!=\s)(?!(?:401|[48])[kK]|\dK)((?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?)[kK]\b"
            r"(?!'|\s?[=*^]|\s?\+\s?\d|\s-\s\d|/\d)"
        ),
        r"\1 thousand",
    ),  # 10k, not 4K, 401k or 2k + 1
    (lazy(r"(?<![\w.,])1\s?h\s?(?=\d{1,2}\s?m(?:in)?\b)"), "1 hour "),
    (lazy(r"(?<![\w.,])(\d+)\s?h\s?(?=\d{1,2}\s?m(?:in)?\b)"), r"\1 hours "),
    (lazy(r"(?<=hour )1\s?m(?:in)?\b|(?<=hours )1\s?m(?:in)?\b"), "1 minute"),
    (lazy(r"(?:(?<=hour )|(?<=hours ))(\d{1,2})\s?m(?:in)?\b"), r"\1 minutes"),
    (lazy(r"(?<![\d/])9/11(?![\d/])"), "nine eleven"),
    (lazy(r"(?<=\d)\s-\s(?=\d[\d.,\s+*/-]*=)"), " minus "),
    (lazy(r"(?<![\d.-])(\d{1,2})-(?=\d{1,2}\s?=)"), r"\1 minus "),
    (lazy(r"(=\s?\d[\d.,]*)\s-\s(?=\d)"), r"\1 minus "),
    (lazy(r"(?<=\b[b-hj-z])\s-\s(?=[b-hj-z]\b|\d)|(?<=\d)\s-\s(?=[b-hj-z]\b)"), " minus "),  # x - y
    (lazy(r"(?<![\w.])(\d+(?:\.\d+)?)[eE]\+?(?=-?\d{1,3}\b(?!\.\d))"), r"\1 times ten to the power of "),
    (lazy(r"(?<![\w.,+])(?<!\d )([1-9]\d?\d?) (\d{3}) (\d{3})(?: (\d{3}))?(?: (\d{3}))?(?! ?\d)"), r"\1\2\3\4\5"),
    (lazy(r"(?<=\d) (?=000\b)"), ""),  # 20 000
    (lazy(r"(?<![\w:.,/])1:(?=\d{3,}(?![\d:/])|\d{1,3}(?:,\d{3})+(?![\d:/]))"), "1 to "),  # a scale of 1:25,000
    (lazy(r"\b[vV](?=\d+(?:\.\d+)+)"), "version "),
    (lazy(rf"(?<=[A-Za-z0-9_])\.(?=(?:{_EXTENSIONS})\b(?!\.\w))"), " dot "),
    (lazy(r"<[/]?[a-z][^<>]{0,80}>"), " "),  # mark-up
)
_TIDY = (
    (lazy(r"\s*\.(?:\s?\.)+"), "..."),
    (lazy(r"(?:\s*-\s*-)+[\s-]*|\s-\s+|\s+-(?=\s|$)|^-\s"), " - "),
    (lazy(r"([,;:])(?:\s*[,;:])+"), r"\1"),
    (lazy(r"\s+([,.!?;:)])"), r"\1"),
    (lazy(r"\(\s*\)"), ""),
    (lazy(r"\(\s+"), "("),
    (lazy(r"([,;])(?=[A-Za-z])"), r"\1 "),
    (lazy(r"\s+"), " "),
)
_WORDS_ALONE = re.compile(r"(?:[A-Z]?[a-z']*[a-z]|A)(?:[,;]? [a-z][a-z']*[a-z]|[,;]? [A-Z][a-z']*[a-z]| a)*[.!?]?")
"""Without numbers, signs, capitals that may be letters or Roman numerals, and full stops within."""
_PASSES = 8
_CHUNK = lazy(r".{1,500}(?:[.!?]\s+|$)|.{1,500}\s+|.{1,500}", re.DOTALL)
"""Some patterns look far back, so long texts are processed in chunks, cut at the end of a sentence if possible."""


def normalise(text: str) -> str:
    """`text` as English words and punctuation, in ASCII. Idempotent.

    Characters without a pronunciation are left out, and logged the first time.
    """
    if _as_it_is(text):
        return text
    pieces = _CHUNK.findall(plain(text).strip())
    return re.sub(r"\s+", " ", "".join(map(_fixed_point, pieces))).strip()


def _as_it_is(text: str) -> bool:
    """Whether a text is a sentence of words that nothing below changes, for which no pattern need be compiled."""
    if not _WORDS_ALONE.fullmatch(text):
        return False
    words = re.split("[ ,;]+", text.rstrip(".!?").lower())
    return abbreviations.SHORT.isdisjoint(words)


def _fixed_point(text: str) -> str:
    """`text` after passes until nothing changes: a pass may bring letters together that read as an abbreviation."""
    blank = text[len(text.rstrip()) :]
    for _ in range(_PASSES):
        once = _pass(text)
        if once == text:
            break
        text = once
    return text + blank


def _pass(text: str) -> str:
    # "ann@example.com" -> "ann at example dot com"; "https://example.org/x" -> "example dot org slash x"
    text = _WEB.sub(_web, _EMAIL.sub(lambda match: _read_aloud(match[0]), text))
    for pattern, words in _FIRST:
        text = pattern.sub(words, text)
    text = dates.expand(text)
    text = quantities.expand(text)
    text = abbreviations.expand(text)
    text = quantities.expand_plain(dates.expand_years(text))
    text = _SYMBOL.sub(lambda match: f" {_SYMBOLS[match[0]]} ", text)
    for pattern, tidy in _TIDY:
        text = pattern.sub(tidy, text)
    return text.strip()
