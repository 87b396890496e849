"""The ARPAbet phones of American English, as in CMUdict."""

from __future__ import annotations

from collections.abc import Sequence

VOWELS = ("AA", "AE", "AH", "AO", "AW", "AY", "EH", "ER", "EY", "IH", "IY", "OW", "OY", "UH", "UW")
"""The vowels without their stress digit."""

CONSONANTS = (
    "B", "CH", "D", "DH", "F", "G", "HH", "JH", "K", "L", "M", "N", "NG", "P", "R", "S", "SH", "T", "TH", "V", "W",
    "Y", "Z", "ZH",
)  # fmt: skip
"""The consonants."""

PHONES = tuple(sorted([*(vowel + digit for vowel in VOWELS for digit in "012"), *CONSONANTS]))
"""Every phone, AA0 to ZH: 15 vowels with three degrees of stress and 24 consonants."""


def is_vowel(phone: str) -> bool:
    """Whether `phone` is a vowel, with or without its digit."""
    return phone.rstrip("012") in VOWELS


def without_stress(phones: Sequence[str]) -> tuple[str, ...]:
    """The phones without their digits."""
    return tuple(phone.rstrip("012") for phone in phones)
