"""The ARPAbet phones of American English as CMUdict writes them, and the way to them from misaki's IPA."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from phonate.config.errors import InputError

VOWELS = ("AA", "AE", "AH", "AO", "AW", "AY", "EH", "ER", "EY", "IH", "IY", "OW", "OY", "UH", "UW")
"""The vowels without their stress digit."""

CONSONANTS = (
    "B", "CH", "D", "DH", "F", "G", "HH", "JH", "K", "L", "M", "N", "NG", "P", "R", "S", "SH", "T", "TH", "V", "W",
    "Y", "Z", "ZH",
)  # fmt: skip
"""The consonants."""

PHONES = tuple(sorted([*(vowel + digit for vowel in VOWELS for digit in "012"), *CONSONANTS]))
"""Every phone, AA0 to ZH: 15 vowels with three degrees of stress and 24 consonants."""

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


def is_vowel(phone: str) -> bool:
    """Whether `phone` is a vowel, with or without its digit."""
    return phone.rstrip("012") in VOWELS


def without_stress(phones: Sequence[str]) -> tuple[str, ...]:
    """The phones without their digits."""
    return tuple(phone.rstrip("012") for phone in phones)


@functools.lru_cache(maxsize=8192)
def from_ipa(ipa: str) -> tuple[str, ...]:
    """misaki's IPA of one word as ARPAbet with stress digits. Raises InputError naming a symbol it has not.

    A word that bears no primary stress in misaki (it marks sentence stress on little words) gets one on its first
    full vowel, as in CMUdict; a lone schwa stays unstressed.
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
            raise InputError(f"{ipa!r}: no ARPAbet phone for {symbol!r} (U+{ord(symbol):04X})")
        at += len(symbol)
    return tuple(_with_a_primary(phones))


def _with_a_primary(phones: list[str]) -> list[str]:
    """`phones` with a first primary stress if there is none: on a secondary one, else on a vowel that is no schwa."""
    if any(phone.endswith("1") for phone in phones):
        return phones
    vowels = [n for n, phone in enumerate(phones) if is_vowel(phone)]
    marked = [n for n in vowels if phones[n].endswith("2")]
    full = [n for n in vowels if phones[n] != "AH0" and (phones[n] != "ER0" or len(vowels) == 1)]
    for n in [*marked, *full][:1]:
        phones[n] = phones[n][:-1] + "1"
    return phones
