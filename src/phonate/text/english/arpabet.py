"""The ARPAbet phones of American English, as in CMUdict, and how the IPA is written in them."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from phonate.config.errors import InputError
from phonate.text.patterns import lazy

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


# ------------------------------------- The IPA: pronunciations written in it, and phones that sound like a symbol of it

_LIKE = {
    "a": "AA AE", "æ": "AE", "ɐ": "AH", "ɑ": "AA", "ɒ": "AO", "b": "B", "c": "HH SH", "d": "D", "ð": "DH", "e": "EY",
    "ə": "AH0", "ɚ": "ER", "ɛ": "EH", "ɜ": "ER", "ɝ": "ER", "f": "F", "ɡ": "G", "h": "HH", "i": "IY", "ɪ": "IH",
    "j": "Y", "k": "K", "l": "L", "m": "M", "n": "N", "ŋ": "NG", "o": "OW", "ø": "ER UW", "œ": "ER EH", "ɔ": "AO",
    "p": "P", "r": "R", "ɹ": "R", "ɾ": "R", "ʁ": "R", "s": "S", "ʃ": "SH", "t": "T", "θ": "TH", "u": "UW", "ʊ": "UH",
    "v": "V", "ʌ": "AH", "w": "W", "x": "HH K", "χ": "HH K", "y": "UW IY", "ʏ": "UH IH", "z": "Z", "ʒ": "ZH",
}  # fmt: skip
"""Symbols in NFD, in which c and a cedilla are ç -> phones; vowels with each degree of stress, unless one is named."""

_ENGLISH = {
    "tʃ": "CH", "ʧ": "CH", "dʒ": "JH", "ʤ": "JH", "eɪ": "EY", "ej": "EY", "aɪ": "AY", "aj": "AY", "ɔɪ": "OY",
    "ɔj": "OY", "aʊ": "AW", "aw": "AW", "oʊ": "OW", "əʊ": "OW", "ow": "OW", "ɜr": "ER", "ɜɹ": "ER", "ər": "ER",
    "əɹ": "ER", "ɝr": "ER", "ɚr": "ER", "ɝ": "ER", "ɚ": "ER", "ɜ": "ER", "i": "IY", "ɪ": "IH", "ɨ": "IH", "e": "EH",
    "ɛ": "EH", "æ": "AE", "a": "AA", "ɑ": "AA", "ɒ": "AA", "ɔ": "AO", "o": "OW", "u": "UW", "ʉ": "UW", "ʊ": "UH",
    "ʌ": "AH", "ə": "AH", "ɐ": "AH", "n\u0329": "AH N", "m\u0329": "AH M", "l\u0329": "AH L", "ɫ\u0329": "AH L",
    "b": "B", "d": "D", "ð": "DH", "f": "F", "g": "G", "ɡ": "G", "h": "HH", "ʍ": "W", "j": "Y", "k": "K", "l": "L",
    "ɫ": "L", "m": "M", "n": "N", "ŋ": "NG", "p": "P", "r": "R", "ɹ": "R", "ɻ": "R", "s": "S", "ʃ": "SH", "t": "T",
    "ɾ": "T", "θ": "TH", "v": "V", "w": "W", "z": "Z", "ʒ": "ZH",
}  # fmt: skip
"""Symbols of American English in NFD -> phones, vowels without stress."""
_SYMBOL = lazy("|".join(sorted(map(re.escape, _ENGLISH), key=len, reverse=True)))
_STRESS = {"ˈ": "1", "'": "1", "ˌ": "2"}
_LENGTH = lazy("[ː:ˑ]")
"""It follows from the vowel."""
_SILENT = frozenset(" .‿|ʰ")
_SYLLABIC = "\u0329"


def phones_of_ipa(ipa: str) -> tuple[str, ...]:
    """The phones of ARPAbet for a pronunciation in the IPA: "təˈmeɪtoʊ" -> T AH0 M EY1 T OW0.

    A word of one vowel is stressed without a mark. Raises InputError for a sound that English does not have, and where
    there is none.
    """
    decomposed = unicodedata.normalize("NFD", ipa)
    text = "".join(one for one in decomposed if one == _SYLLABIC or not unicodedata.combining(one))
    text = _LENGTH.sub("", text)
    arpabet: list[str] = []
    stress, at = "0", 0
    while at < len(text):
        if text[at] in _STRESS:
            stress = _STRESS[text[at]]
        elif symbol := _SYMBOL.match(text, at):
            for phone in _ENGLISH[symbol[0]].split():
                vowel = phone in VOWELS
                arpabet.append(phone + stress if vowel else phone)
                stress = "0" if vowel else stress
            at = symbol.end() - 1
        elif text[at] not in _SILENT:
            raise InputError(f"{text[at]!r} is no sound of American English in the IPA")
        at += 1
    if not arpabet:
        raise InputError(f"{ipa!r} has no sound")
    vowels = [n for n, phone in enumerate(arpabet) if phone[-1].isdigit()]
    if len(vowels) == 1:
        arpabet[vowels[0]] = f"{arpabet[vowels[0]][:-1]}1"
    return tuple(arpabet)


def like(symbol: str) -> tuple[str, ...]:
    """The phones of ARPAbet among which a symbol of the IPA lies; none for marks and for sounds unlike any."""
    alike = _LIKE.get(symbol, "").split()
    return tuple(phone for phone in PHONES if phone in alike or phone.rstrip("012") in alike)
