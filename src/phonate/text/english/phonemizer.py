"""The default phonemizer: American English as ARPAbet with stress digits, without espeak.

A word is looked up in the lexicon, or else derived from words in the lexicon (plurals, suffixes, prefixes, compounds).
Acronyms are spelt. Letter-to-sound rules pronounce the rest.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from phonate.config.errors import InputError
from phonate.text import phonemes
from phonate.text.english import arpabet, derivation, lexicon
from phonate.text.phonemes import Word

Phones = tuple[str, ...]

_TOKEN = re.compile(
    r"(?:[A-Za-z]\.){2,}(?:'?s\b)?"  # U.S., e.g.
    r"|(?<![\w'])[A-HJ-Z]\.(?=\s+[A-Z])"  # an initial
    r"|'?[A-Za-z]+(?:'[A-Za-z]+)*'?"
)
WEAK = {"a": ("AH0",), "an": ("AH0", "N"), "and": ("AH0", "N", "D"), "the": ("DH", "AH0"), "to": ("T", "AH0")}
_STRONG = {"a": ("EY1",), "an": ("AE1", "N"), "and": ("AE1", "N", "D"), "the": ("DH", "AH0"), "to": ("T", "UW1")}
_ACRONYMS = {"US", "ID", "AI", "GI", "OS", "LA", "PA", "ER", "AD", "MO", "SI", "TA", "AG", "EST"}
"""In capitals these are spelt, although the lexicon has them as words."""
_PREFIXES = {"re": ("R", "IY1"), "de": ("D", "IY1")}
"""Before a hyphen: re-entry, de-icing."""
_LETTERED = frozenset(
    str.split("vitamin plan grade type class group appendix hepatitis letter section exhibit team row")
)


@dataclass(frozen=True)
class _Token:
    """A word of the text, the mark after it, what sets it off, whether it is spelt, and whether a hyphen follows."""

    text: str
    mark: str
    pause: str
    spelt: bool
    hyphen: bool


class EnglishPhonemizer:
    """Text -> words with ARPAbet phones as in CMUdict (AA0 ... ZH)."""

    name = "english"

    def __init__(self, language: str = "en-us") -> None:
        if language.lower().replace("_", "-") not in {"en", "en-us"}:
            raise InputError(f"the phonemizer 'english' supports en-us, not {language!r}; use the phonemizer 'espeak'")
        self.language = "en-us"
        self.symbols = arpabet.PHONES

    def __call__(self, text: str) -> list[Word]:
        """The words of `text`. Raises InputError if it has no words."""
        from phonate.text.english.normalisation import normalise  # its patterns are many

        tokens = _tokens(normalise(text))
        if not tokens:
            raise phonemes.NothingToSay(text)
        words: list[Word] = []
        for n in range(len(tokens) - 1, -1, -1):  # backwards, because a weak form depends on the word after it
            following = words[-1] if words and not tokens[n].mark else None
            before = tokens[n - 1].text.lower() if n and not tokens[n - 1].mark else ""
            phones = _in_context(tokens[n], before, following)
            words.append(Word(tokens[n].text, phones, tokens[n].mark, tokens[n].pause))
        return words[::-1]


def _tokens(text: str) -> list[_Token]:
    shouted = not re.search(r"[a-z]", text) and len(re.findall(r"[A-Z]{2,}", text)) > 1
    matches = list(_TOKEN.finditer(text))
    tokens: list[_Token] = []
    for n, match in enumerate(matches):
        end = matches[n + 1].start() if n + 1 < len(matches) else len(text)
        between = text[match.end() : end]
        word = match[0]
        dotted = word.endswith(".") or bool(re.search(r"\.'?s$", word))
        if dotted and n + 1 == len(matches):
            between = "." + between  # its full stop also ends the text
        hyphen = between == "-" and n + 1 < len(matches)
        if hyphen:  # it is not a pause
            between = ""
        word = word if dotted else _unquoted(word)
        if shouted and not dotted and word not in _ACRONYMS and lexicon.entry(word.lower()):
            word = word.lower()
        tokens.append(_Token(word, phonemes.mark_of(between), phonemes.pause_of(between), dotted, hyphen))
    return [token for token in tokens if token.text]


def _unquoted(word: str) -> str:
    """`word` without quotes around it; apostrophes that belong to it stay."""
    if word.startswith("'") and not lexicon.entry(word.lower().rstrip("'")):
        word = word[1:]
    if word.endswith("'") and not re.search(r"(?:[sS]|in)'$", word):
        word = word[:-1]
    return word


def _in_context(token: _Token, before: str, following: Word | None) -> Phones:
    """The phones of a word in its context; `following` is None before a pause."""
    word = token.text.lower()
    if token.spelt or (word == "a" and token.text == "A" and before in _LETTERED):
        return _spelt(word)
    if token.hyphen and word in _PREFIXES:
        return _PREFIXES[word]
    if word in WEAK:
        if following is None:
            return _STRONG[word]
        vowel = arpabet.is_vowel(following.phones[0])
        return ("DH", "IY0") if word == "the" and vowel else WEAK[word]
    entries = _entries(token.text)
    if len(entries) > 1:
        return lexicon.choose_homograph(word, entries, before, following.text.lower() if following else "")
    return pronounce(token.text)


def _entries(word: str) -> dict[str, Phones]:
    """The lexicon's pronunciations of `word` by part of speech, in any capitalisation."""
    lower = word.lower()
    if lower in lexicon.HOMOGRAPHS:
        return lexicon.HOMOGRAPHS[lower]
    for checked in (True, False):
        for spelling in dict.fromkeys((word, lower, lower.capitalize())):
            if entries := lexicon.entry(spelling, checked):
                return entries
    return {}


def _lookup(word: str) -> Phones | None:
    return _entries(word).get("DEFAULT")


def _lookup_verb(word: str) -> Phones | None:
    """Like `_lookup`, but of a homograph the verb: "lived" comes from the verb."""
    return _entries(word).get("VERB") or _lookup(word)


def _spelt(word: str) -> Phones:
    """The names of the letters; a final 's is a plural."""
    letters = re.sub(r"[^a-z]", "", re.sub(r"'?s$", "", word) if re.search(r"\.'?s$|'s$", word) else word)
    phones = [phone for letter in letters for phone in lexicon.entry(letter.upper())["DEFAULT"]]
    plural = bool(re.search(r"\.'?s$|'s$", word)) and bool(phones)
    return derivation.plural(tuple(phones)) if plural else tuple(phones)


def pronounce(word: str) -> Phones:
    """The phones of one word by itself, in its dictionary form."""
    return _dictionary_form(word) or derivation.pronounce_by_rules(word) or _spelt(word.lower())


def _dictionary_form(word: str) -> Phones | None:
    lower = word.lower()
    capitals = re.fullmatch(r"([A-Z]{2,})('?s)?", word)
    if capitals:
        exact = lexicon.entry(capitals[1], checked=True) if capitals[1] not in _ACRONYMS else {}
        pronunciations = exact or lexicon.entry(lower, checked=True) if capitals[1] not in _ACRONYMS else {}
        if not pronunciations and (len(capitals[1]) < 6 or not re.search(r"[AEIOUY]", capitals[1])):
            return _spelt(capitals[1].lower() + ("'s" if capitals[2] else ""))
    if len(lower) == 1:
        return _spelt(lower)
    if phones := _lookup(word):
        return phones
    if not re.search(r"[aeiouy]", lower) and len(lower) <= 6:
        return _spelt(lower)
    if derived := derivation.derive(lower, _lookup, _lookup_verb):
        return derived
    return _pieces(word)


def _pieces(word: str) -> Phones | None:
    """CamelCase by its parts, and words with repeated letters ("sooo") without the repetition."""
    parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z']+", word)
    if len(parts) > 1 and parts[0] in {"Mc", "Mac"}:
        return ("M", "AH0", "K", *pronounce("".join(parts[1:])))
    if len(parts) > 1 and all(len(part.strip("'")) > 0 for part in parts):
        return tuple(phone for part in parts for phone in pronounce(part))
    for replacement in (r"\1", r"\1\1"):
        shorter = re.sub(r"([a-z])\1{2,}", replacement, word.lower())
        if shorter != word.lower() and (phones := _lookup(shorter)):
            return phones
    return None
