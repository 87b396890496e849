"""Which English phones sound like a symbol of the IPA: a voice of English starts to speak another language by them."""

from __future__ import annotations

from phonate.text.english.arpabet import PHONES

_LIKE = {
    "a": "AA AE", "æ": "AE", "ɐ": "AH", "ɑ": "AA", "ɒ": "AO", "b": "B", "c": "HH SH", "d": "D", "ð": "DH", "e": "EY",
    "ə": "AH0", "ɚ": "ER", "ɛ": "EH", "ɜ": "ER", "ɝ": "ER", "f": "F", "ɡ": "G", "h": "HH", "i": "IY", "ɪ": "IH",
    "j": "Y", "k": "K", "l": "L", "m": "M", "n": "N", "ŋ": "NG", "o": "OW", "ø": "ER UW", "œ": "ER EH", "ɔ": "AO",
    "p": "P", "r": "R", "ɹ": "R", "ɾ": "R", "ʁ": "R", "s": "S", "ʃ": "SH", "t": "T", "θ": "TH", "u": "UW", "ʊ": "UH",
    "v": "V", "ʌ": "AH", "w": "W", "x": "HH K", "χ": "HH K", "y": "UW IY", "ʏ": "UH IH", "z": "Z", "ʒ": "ZH",
}  # fmt: skip
"""Symbols in NFD, in which c and a cedilla are ç -> phones; vowels with each degree of stress, unless one is named."""


def like(symbol: str) -> tuple[str, ...]:
    """The phones of ARPAbet among which a symbol of the IPA lies; none for marks and for sounds unlike any."""
    wanted = _LIKE.get(symbol, "").split()
    return tuple(phone for phone in PHONES if phone in wanted or phone.rstrip("012") in wanted)
