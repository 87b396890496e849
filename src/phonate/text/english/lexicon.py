"""The English lexicon: 180,000 words of the data that the misaki package carries, as ARPAbet.

Only its data is read (`us_gold.json`, `us_silver.json`); nothing of misaki's code is needed. Words are converted
when they are asked for.
"""

from __future__ import annotations

import functools
import importlib.resources
import json
import re
from typing import Any, cast

from phonate.config.errors import MissingPackageError
from phonate.text.english import arpabet

_WEAK_PREFIX = re.compile(r"be|de|di|e|i|hys|mis|mys|neg|pre|re|sec|sed")
# Where misaki writes one schwa for all weak vowels, CMUdict (and so the aligners trained with it) keeps IH0 for
# these spellings; and it joins what misaki keeps apart at the seams of a word.
_SEAMS = (
    (re.compile(r"ish"), ("AH0", "SH"), ("IH0", "SH")),
    (re.compile(r"[iy]c|ique"), ("AH0", "K"), ("IH0", "K")),
    (re.compile(r"iv"), ("AH0", "V"), ("IH0", "V")),
    (re.compile(r"age(?:s|d|ly|less|able|ment)?\b"), ("AH0", "JH"), ("IH0", "JH")),
    (re.compile(r".ex"), ("AH0", "K", "S"), ("IH0", "K", "S")),
    (re.compile(r"^adv(?!anc)"), ("AH0", "D", "V"), ("AE0", "D", "V")),
    (re.compile(r"^obe"), ("AH0", "B"), ("OW0", "B")),
    (re.compile(r"^acc[ei]"), ("AH0", "K", "S"), ("AE0", "K", "S")),
    (re.compile(r"^super"), ("AH0", "P"), ("UW0", "P")),
    (re.compile(r"nti[aeo]"), ("N", "CH"), ("N", "SH")),
    (re.compile(r"ssu"), ("SH", "Y"), ("SH",)),
    (re.compile(r"^disgust"), ("S", "K"), ("S", "G")),
    (re.compile(r"^catch"), ("EH1", "CH"), ("AE1", "CH")),
    (re.compile(r"^athl"), ("TH", "AH0", "L"), ("TH", "L")),
    (re.compile(r"^eighteen"), ("T", "T"), ("T",)),
    (re.compile(r"id\b|ids\b"), ("AH0", "D"), ("IH0", "D")),
    (re.compile(r"ically"), ("IH0", "K", "AH0", "L", "IY0"), ("IH0", "K", "L", "IY0")),
    (re.compile(r"est\b"), ("IH0", "S", "T"), ("AH0", "S", "T")),
    (re.compile(r"sis\b"), ("S", "IH0", "S"), ("S", "AH0", "S")),
    (re.compile(r"^every"), ("EH1", "V", "ER0", "IY0"), ("EH1", "V", "R", "IY0")),
    (re.compile(r"wh"), ("HH", "W"), ("W",)),
    (re.compile(r"^imm"), ("M", "M"), ("M",)),
    (re.compile(r"^irr"), ("R", "R"), ("R",)),
    (re.compile(r"^ill"), ("L", "L"), ("L",)),
)


@functools.cache
def _tables() -> tuple[dict[str, Any], dict[str, Any]]:
    """The checked table and the large one, as they lie in the package."""
    try:
        data = importlib.resources.files("misaki") / "data"
    except ModuleNotFoundError as error:
        raise MissingPackageError("the English lexicon comes with the package misaki; pip install misaki") from error
    gold, silver = (json.loads((data / f"us_{name}.json").read_text(encoding="utf-8")) for name in ("gold", "silver"))
    return gold, silver


def words() -> list[str]:
    """Every key of the lexicon."""
    gold, silver = _tables()
    return [*gold, *(word for word in silver if word not in gold)]


@functools.cache
def _names() -> dict[str, tuple[str, ...]]:
    """Names and other common words that misaki lacks: `word phone phone ...` a line."""
    text = (importlib.resources.files("phonate.text.english") / "english_names.txt").read_text(encoding="ascii")
    return {word: tuple(phones) for word, *phones in map(str.split, text.splitlines())}


def entry(word: str, checked: bool = False) -> dict[str, tuple[str, ...]]:
    """The pronunciations of exactly this spelling by part of speech (DEFAULT first), empty if there are none.

    `checked` looks into the hand-checked half only.
    """
    if word in _names():
        return {"DEFAULT": _names()[word]}
    gold, silver = _tables()
    found = gold.get(word) or (None if checked else silver.get(word))
    if found is None:
        return {}
    if isinstance(found, str):
        return {"DEFAULT": _phones(word, found)}
    return {tag: _phones(word, ipa) for tag, ipa in cast(dict[str, str | None], found).items() if ipa}


def _phones(word: str, ipa: str) -> tuple[str, ...]:
    return refined(word, arpabet.from_ipa(ipa))


def refined(word: str, phones: tuple[str, ...]) -> tuple[str, ...]:
    """`phones` with the weak vowels that CMUdict writes for the spelling of `word`."""
    spelling = word.lower()
    result = _weak_first_vowel(spelling, phones)
    result = _glide(spelling, result)
    for pattern, old, new in _SEAMS:
        if pattern.search(spelling):
            result = _replaced(result, old, new)
    return result


def _weak_first_vowel(spelling: str, phones: tuple[str, ...]) -> tuple[str, ...]:
    """be-, de-, dis-, re-, ...: the schwa of such a beginning is IH0 (but not that of "hello" or "method")."""
    if phones[:2] == ("IH0", "N") and re.match(r"en[^aeiou]", spelling):
        return ("EH0", *phones[1:])
    first = next((n for n, phone in enumerate(phones) if arpabet.is_vowel(phone)), None)
    if first is None or phones[first] != "AH0" or not _WEAK_PREFIX.match(spelling):
        return phones
    return (*phones[:first], "IH0", *phones[first + 1 :])


def _glide(spelling: str, phones: tuple[str, ...]) -> tuple[str, ...]:
    """AH0 W before a vowel: UW0 in "situation", OW0 in "following"."""
    vowel = "OW0" if "ow" in spelling else "UW0" if re.search(r"u[aeio]|ew", spelling) else None
    result = list(phones)
    for n in range(len(phones) - 3, -1, -1):
        if vowel and phones[n : n + 2] == ("AH0", "W") and arpabet.is_vowel(phones[n + 2]):
            result[n : n + 2] = [vowel]
        elif phones[n][:2] in {"AY", "OY"} and phones[n + 1] == "Y":
            del result[n + 1]  # "employer"
        elif phones[n] == "UH0" and arpabet.is_vowel(phones[n + 1]):
            result[n] = "UW0"
    return tuple(result)


def _replaced(phones: tuple[str, ...], old: tuple[str, ...], new: tuple[str, ...]) -> tuple[str, ...]:
    """`phones` with each run `old` replaced by `new`."""
    result: list[str] = []
    at = 0
    while at < len(phones):
        if phones[at : at + len(old)] == old:
            result.extend(new)
            at += len(old)
        else:
            result.append(phones[at])
            at += 1
    return tuple(result)
