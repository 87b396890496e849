"""English abbreviations and Roman numerals, written out."""

from __future__ import annotations

import re

from phonate.text.english import dates, numbers
from phonate.text.patterns import lazy

_TITLES = {
    "Mr": "Mister", "Mrs": "Missus", "Ms": "Miz", "Messrs": "Messieurs", "Prof": "Professor", "Rev": "Reverend",
    "Gen": "General", "Col": "Colonel", "Capt": "Captain", "Lt": "Lieutenant", "Sgt": "Sergeant", "Sen": "Senator",
    "Gov": "Governor", "Rep": "Representative", "Hon": "Honorable", "Maj": "Major", "Cpl": "Corporal",
    "Pres": "President", "Mt": "Mount", "Ft": "Fort",
}  # fmt: skip
"""Before a name, with or without a full stop; without one, only those in `_PLAIN`."""
_PLAIN = {"Mr", "Mrs", "Ms", "Messrs", "Prof", "Lt", "Col", "Sgt", "Capt", "Mt"}

_WEEK = {
    "Mon": "Monday", "Tue": "Tuesday", "Tues": "Tuesday", "Wed": "Wednesday", "Thu": "Thursday", "Thur": "Thursday",
    "Thurs": "Thursday", "Fri": "Friday",
}  # fmt: skip
_WEEKEND = {"Sat": "Saturday", "Sun": "Sunday"}
"""With a capital only: he sat in the sun."""

_WORDS = {
    "etc": "et cetera", "vs": "versus", "approx": "approximately", "dept": "department", "est": "established",
    "fig": "figure", "vol": "volume", "vols": "volumes", "inc": "incorporated", "ltd": "limited", "corp": "corporation",
    "co": "company", "jr": "junior", "sr": "senior", "ave": "avenue", "rd": "road", "blvd": "boulevard", "ln": "lane",
    "hwy": "highway", "cf": "compare", "ca": "circa", "al": "al", "pp": "pages", "ed": "edition", "govt": "government",
    "dist": "district", "univ": "university", "assn": "association", "bros": "brothers", "misc": "miscellaneous",
    "tel": "telephone", "rm": "room", "ext": "extension", "max": "maximum", "min": "minimum", "avg": "average",
    "jan": "January", "feb": "February", "mar": "March", "apr": "April", "jun": "June", "jul": "July", "aug": "August",
    "sep": "September", "sept": "September", "oct": "October", "nov": "November", "dec": "December",
    **{short.lower(): day for short, day in _WEEK.items()},
}  # fmt: skip
"""With a full stop, anywhere. Those in `_ALSO_WORDS` need a capital or a number next to them."""

_ALSO_WORDS = {
    "al",
    "ed",
    "mar",
    "jun",
    "dec",
    "mon",
    "wed",
    "co",
    "max",
    "min",
    "fig",
    "est",
    "inc",
    "ca",
    "dist",
    "sep",
}
_NAMES = {"Al", "Ed", "EST"}
"""Names and a time zone, where no number is near."""
_KINGS = str.split(
    "Henry Louis Edward George Charles James William Elizabeth Richard John Pius Paul Benedict Leo Gregory Philip "
    "Alexander Napoleon Nicholas Catherine Mary Frederick Ferdinand Francis Otto Henri Robert David Christian Gustav "
    "Karl Carl Wilhelm Ramses Ptolemy Darius Xerxes Cyrus Innocent Clement Urban Boniface Peter Ivan Alfonso Malcolm "
    "Stephen Harald Haakon Olaf Pope Umberto Emmanuel Artaxerxes Antiochus Cleopatra Leopold Albert Rudolf Maximilian"
)
_PARTS = str.split(
    "Chapter Part Book Volume Act Scene Section Phase Type Article Appendix War Class Level Stage Figure Table Canto "
    "Psalm Vol Lesson Unit Grade Category Round Title Factor"
)
_LETTERED = {"Appendix", "Class", "Grade", "Type", "Unit"}
"""What is as often named by letters as counted: V and X behind these are letters."""
_VERBS = set(
    str.split(
        "agree am argue ask assume believe consider describe discuss do don't enjoy expect explain feel find give go "
        "guess have hope knew know mean never prefer propose recall remember say see show suggest suppose take tell "
        "thank think thought understand want wanted wish wonder write"
    )
)
"""In front of these, I is who speaks."""

SHORT = {"dr", "st", "ste", "vs", "no", "nos", *(one.lower() for one in _TITLES), *_WORDS}
"""All that may be read as something longer, in small letters."""
_CAPITAL = r"[A-Z][a-z]"
_DRIVE = lazy(rf"\b(?!The |A |And )([A-Z][a-z]+) Dr\b(?!\.?\s+{_CAPITAL})(\.?)")
_DOCTOR = lazy(r"\bDr\b\.?(?=\s|$)")
_SAINT = lazy(rf"\bSt\.?(?=\s+{_CAPITAL})|\bSte\.(?=\s+{_CAPITAL})")
_STREET_BEFORE = lazy(
    r"(?:[a-z,;:]\s+[A-Z][a-z]+|\d(?:st|nd|rd|th)|\b(?:first|second|third|(?:four|fif|six|seven|eigh|nin|ten|eleven|twelf"
    r"|(?:thir|four|fif|six|seven|eigh|nine)teen|(?:twen|thir|for|fif|six|seven|eigh|nine)tie|hundred)th)"
    r"|\d\s+[A-Z][a-z]+|(?:West|East|North|South|Main|Wall|High)) $"
)
_STREET = lazy(r"\bSt(\.?)(?=\W|$)")
_END = lazy(r"\s*$|\s+[\"'(]*[A-Z]")
_TITLE = lazy(rf"\b({'|'.join(_TITLES)})(\.?)(?=\s+{_CAPITAL}|\s+[A-Z]\.)")
_TITLE_ANYWHERE = lazy(r"\b(Mr|Mrs|Ms|Messrs)\b\.?")
_WORD = lazy(rf"\b({'|'.join(sorted(_WORDS, key=len, reverse=True))})\.(?![A-Za-z])", re.IGNORECASE)
_LATIN = ((lazy(r"\be\.\s?g\.,?", re.I), "for example,"), (lazy(r"\bi\.\s?e\.,?", re.I), "that is,"))
_NUMBERED = lazy(r"\b(Nos?|nos?)(\.\s?|\s)(?=\d)")
_PAGE = lazy(r"\bp\.\s?(?=\d)")
_HALF_DAY = lazy(r"\b([ap])\.\s?m\b\.?", re.IGNORECASE)
_KING = lazy(rf"\b(?!Malcolm X\b)({'|'.join(_KINGS)}) ([IVXL]+)(?=('s)?\b)(?P<after>.?)")
_PART = lazy(rf"\b({'|'.join(_PARTS)}|{'|'.join(_PARTS).upper()})(\.? )([IVXLC]+)\b(?!')(?=(?:\s([a-z']+))?)")
_DATED = lazy(
    rf"(?<!\b[Tt]he )\b({'|'.join([*_WEEK, *_WEEKEND])})\.(?=,?\s+(?:\d|the [a-z-]+ of|{'|'.join(dates.MONTHS)}))"
)
_SATURDAY = lazy(r"\b(Sat)\.(?![A-Za-z])")
_SUNDAY = lazy(
    r"(?:(?<!\b[Tt]he )(?<!\b[Oo]ur )\b(?=Sun\.(?:,|\s*[-&]|\s+[a-z\d]))"
    r"|(?:(?<=\b[Oo]n )|(?<=\b[Ee]very )|(?<=\b[Uu]ntil )|(?<=day and )|(?<=day & )|(?<=day or )|(?<=day to )|(?<=-)))"
    r"(Sun)\.(?![A-Za-z])"
)
"""Not the star."""


def _sentence_end(text: str, at: int) -> str:
    """ "." if the abbreviation that ends at `at` also ends a sentence: its full stop then had both meanings."""
    return "." if _END.match(text, at) else ""


def _word(match: re.Match[str]) -> str:
    short, text = match[1], match.string
    near_number = re.match(r"\s*\d", text[match.end() :]) or re.search(r"\d\s*$", text[: match.start()])
    if short in _NAMES and not near_number:
        return match[0]
    as_word = short.lower() in _ALSO_WORDS and not near_number and not (short[0].isupper() and match.start() > 0)
    if as_word and not (short.lower() == "al" and text[: match.start()].endswith("et ")):
        return match[0]
    return _WORDS[short.lower()] + _sentence_end(text, match.end())


def _weekend(match: re.Match[str]) -> str:
    return _WEEKEND[match[1]] + _sentence_end(match.string, match.end())


def _street_or_saint(text: str) -> str:
    def saint(match: re.Match[str]) -> str:
        return match[0] if _STREET_BEFORE.search(text, 0, match.start()) else "Saint"

    def street(match: re.Match[str]) -> str:
        return "Street" + (_sentence_end(text, match.end()) if match[1] else "")

    text = _SAINT.sub(saint, text)
    return _STREET.sub(street, text)


def _drive(match: re.Match[str]) -> str:
    return f"{match[1]} Drive" + (_sentence_end(match.string, match.end()) if match[2] else "")


def _king(match: re.Match[str]) -> str:
    value = numbers.roman(match[2])
    lone = match[2] in {"I", "V", "X"} and match["after"] not in {"", ".", ",", ";", ":", "'", ")", "?", "!"}
    if value is None or lone or match[2] == "L":  # "and John I think", "Charles L. Brown"
        return match[0]
    return f"{match[1]} the {numbers.ordinal(str(value))}{match['after']}"


def _part(match: re.Match[str]) -> str:
    value, word = numbers.roman(match[3]), match[1].capitalize()
    letter = match[3] in {"C", "L"} or (match[3] in {"V", "X"} and word in _LETTERED)
    if value is None or letter or (match[3] == "I" and word != "War" and match[4] in _VERBS):  # "In Part I think"
        return match[0]
    return f"{match[1]} {numbers.cardinal(str(value))}"


def expand(text: str) -> str:
    """`text` with abbreviations written out."""
    for pattern, words in _LATIN:
        text = pattern.sub(words, text)
    text = _HALF_DAY.sub(lambda match: f"{match[1].upper()}.M.", text)
    text = _KING.sub(_king, text)
    text = _PART.sub(_part, text)
    text = _DRIVE.sub(_drive, text)
    text = _DOCTOR.sub("Doctor", text)
    text = _street_or_saint(text)
    text = _TITLE.sub(lambda match: _TITLES[match[1]] if match[2] or match[1] in _PLAIN else match[0], text)
    text = _TITLE_ANYWHERE.sub(lambda match: _TITLES[match[1]], text)
    text = _NUMBERED.sub(lambda match: "numbers " if match[1].lower() == "nos" else "number ", text)
    text = _PAGE.sub("page ", text)
    text = _DATED.sub(lambda match: (_WEEK | _WEEKEND)[match[1]], text)
    text = _SUNDAY.sub(_weekend, _SATURDAY.sub(_weekend, text))
    return _WORD.sub(_word, text)
