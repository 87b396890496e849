"""Builds `src/phonate/text/english/lexicon.json`, the English lexicon, from the data of misaki 0.9.4.

    pip install misaki==0.9.4
    python scripts/build_lexicon.py

misaki's IPA becomes ARPAbet as in CMUdict. Where misaki writes one schwa for all weak vowels, CMUdict (and so the
aligners trained with it) keeps IH0 for some spellings, and it merges consonants that misaki keeps apart: that is what
the rules below are for.
"""

from __future__ import annotations

import argparse
import importlib.resources
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from phonate.text.english import arpabet

OUT = Path(__file__).parent.parent / "src" / "phonate" / "text" / "english" / "lexicon.json"

_WEAK_PREFIX = re.compile(r"be|de|di|e|i|hys|mis|mys|neg|pre|re|sec|sed")
# (spelling, phones of misaki, phones of CMUdict)
_REPLACEMENTS = (
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

# misaki writes diphthongs as one capital letter and puts the stress mark directly before the vowel
_VOWELS = {
    "əɹ": "ER", "ɜɹ": "ER", "ɑ": "AA", "æ": "AE", "ʌ": "AH", "ə": "AH", "ᵊ": "AH", "ᵻ": "IH", "ɔ": "AO", "W": "AW",
    "I": "AY", "ɛ": "EH", "ɜ": "ER", "A": "EY", "ɪ": "IH", "i": "IY", "O": "OW", "Y": "OY", "ʊ": "UH", "u": "UW",
}  # fmt: skip
_CONSONANTS = {
    "b": ("B",), "ʧ": ("CH",), "d": ("D",), "ð": ("DH",), "f": ("F",), "ɡ": ("G",), "h": ("HH",), "ʤ": ("JH",),
    "k": ("K",), "l": ("L",), "m": ("M",), "n": ("N",), "ŋ": ("NG",), "p": ("P",), "ɹ": ("R",), "s": ("S",),
    "ʃ": ("SH",), "t": ("T",), "T": ("T",), "ɾ": ("T",), "θ": ("TH",), "v": ("V",), "w": ("W",), "j": ("Y",),
    "z": ("Z",), "ʒ": ("ZH",), "ʔn": ("T", "AH0", "N"), "ʔ": ("T",),
}  # fmt: skip
_MARKS = {"ˈ": "1", "ˌ": "2"}


def main() -> None:
    """Build and write."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    OUT.write_bytes(build())
    print(f"{OUT.name}: {OUT.stat().st_size} bytes")


def build() -> bytes:
    """The content of the lexicon's file."""
    data = importlib.resources.files("misaki") / "data"
    tables = {
        half: {word: entry(word, found) for word, found in json.loads((data / name).read_text("utf-8")).items()}
        for half, name in (("checked", "us_gold.json"), ("unchecked", "us_silver.json"))
    }
    document = json.dumps(tables, separators=(",", ":"), ensure_ascii=False)
    return document.encode()


def entry(word: str, found: str | Mapping[str, str | None]) -> Any:
    """An entry of misaki (IPA, or part of speech -> IPA) with phones separated by spaces."""
    if isinstance(found, str):
        return " ".join(refined(word, from_ipa(found)))
    return {tag: " ".join(refined(word, from_ipa(ipa))) for tag, ipa in found.items() if ipa}


def from_ipa(ipa: str) -> tuple[str, ...]:
    """misaki's IPA of one word as ARPAbet with stress digits. Raises ValueError for an unknown symbol.

    A word without a primary stress (misaki marks that function words are unstressed in a sentence) gets one on its
    first full vowel, as in CMUdict; a lone schwa stays unstressed.
    """
    phones: list[str] = []
    stress = "0"
    at = 0
    while at < len(ipa):
        symbol = ipa[at : at + 2]
        if symbol not in _VOWELS and symbol not in _CONSONANTS:
            symbol = ipa[at]
        if symbol in _MARKS:
            stress = _MARKS[symbol]
        elif symbol in _VOWELS:
            phones.append(_VOWELS[symbol] + stress)
            stress = "0"
        elif symbol in _CONSONANTS:
            phones.extend(_CONSONANTS[symbol])
        else:
            raise ValueError(f"{ipa!r}: no ARPAbet phone for {symbol!r} (U+{ord(symbol):04X})")
        at += len(symbol)
    return tuple(_with_primary_stress(phones))


def _with_primary_stress(phones: list[str]) -> list[str]:
    """`phones` with a primary stress: if there is none, on the first secondary one, else on the first full vowel."""
    if any(phone.endswith("1") for phone in phones):
        return phones
    vowels = [n for n, phone in enumerate(phones) if arpabet.is_vowel(phone)]
    marked = [n for n in vowels if phones[n].endswith("2")]
    full = [n for n in vowels if phones[n] != "AH0" and (phones[n] != "ER0" or len(vowels) == 1)]
    for n in [*marked, *full][:1]:
        phones[n] = phones[n][:-1] + "1"
    return phones


def refined(word: str, phones: tuple[str, ...]) -> tuple[str, ...]:
    """`phones` with the weak vowels that CMUdict has for the spelling of `word`."""
    spelling = word.lower()
    result = _weak_prefix(spelling, phones)
    result = _glide(spelling, result)
    for pattern, old, new in _REPLACEMENTS:
        if pattern.search(spelling):
            result = _replaced(result, old, new)
    return result


def _weak_prefix(spelling: str, phones: tuple[str, ...]) -> tuple[str, ...]:
    """IH0 for the schwa of be-, de-, dis-, re-, ... (but not in "hello" or "method")."""
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


if __name__ == "__main__":
    main()
