"""Piper's side of a voice: the numbers that its runtime gives to phones, what they are to us, and its config file.

Piper sends `^ _ h _ ə _ l _ ... , _   _ ... . _ $`: everything is followed by a pad, words are apart by spaces, and a
space follows each mark within a sentence. We have one boundary after a word, its mark or `<word>`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from phonate.text.espeak import SYMBOLS
from phonate.text.inventory import PAD, START, WORD, Inventory
from phonate.text.phonemes import is_english

VERSION = "1.0.0"
"""Of Piper's file format."""

NOT_SAID, PHONE, SPACE, LIGHTEST_MARK = 0, 1, 2, 3
"""Weights of numbers, for `SpokenPiper`."""

_FIRST = "_^$ !'(),-.:;?"
"""Piper's first phonemes. Some runtimes have the numbers of `_`, `^` and `$` built in, so ours are the same."""
_MARKS = ",:;.!?"
"""Of marks, the ones that Piper sends; the weightiest last."""
_SAME = {"g": "ɡ", "Z": "ʒ", "S": "ʃ", "N": "ŋ", "X": "χ", "A": "ɑ", "Φ": "ɸ", "ʦ": "ts"}
"""Mnemonics of espeak's for which our phonemizer writes IPA."""
_SILENT = "|‿`\u200d"
"""Ties, which our phonemizer leaves out."""


@dataclass(frozen=True)
class PiperNumbers:
    """The numbers of a voice."""

    of_phonemes: dict[str, list[int]]
    """Piper's phoneme_id_map."""
    tokens: Sequence[int]
    """Our token for each number."""
    weights: Sequence[int]
    """What each number is to us: not said, a phone, or a boundary, the weightier the more."""


def piper_numbers(inventory: Inventory) -> PiperNumbers:
    """The numbers for a voice whose phones are espeak's."""
    phonemes = [*_FIRST, *(symbol for symbol in SYMBOLS if symbol not in _FIRST)]
    numbers = {phoneme: number for number, phoneme in enumerate(phonemes)}
    ours = {symbol: number for number, symbol in enumerate(inventory.symbols)}
    tokens, weights = [ours[PAD]] * len(phonemes), [NOT_SAID] * len(phonemes)

    def mean(phoneme: str, symbol: str, weight: int) -> None:
        tokens[numbers[phoneme]], weights[numbers[phoneme]] = ours[symbol], weight

    for symbol in SYMBOLS:
        # Piper's espeak glides between vowels (ðɪʲ ˈoʊld) where ours does not; English has no other use for it
        if symbol in ours and not (symbol == "ʲ" and is_english(inventory.language)):
            mean(symbol, symbol, PHONE)
    for weight, mark in enumerate(_MARKS, LIGHTEST_MARK):
        mean(mark, mark, weight)
    mean(" ", WORD, SPACE)
    mean("$", WORD, SPACE)  # the end of a text without a mark
    mean("^", START, LIGHTEST_MARK + len(_MARKS))
    of_phonemes = {phoneme: [number] for phoneme, number in numbers.items()}
    of_phonemes |= {written: [numbers[phone] for phone in phones] for written, phones in _SAME.items()}
    of_phonemes |= dict.fromkeys(_SILENT, of_phonemes["_"])
    return PiperNumbers(of_phonemes, tokens, weights)


def piper_config(
    numbers: PiperNumbers, name: str, language: str, speakers: Sequence[str], sample_rate: int, hop_length: int
) -> dict[str, Any]:
    """The document that lies beside a voice, as `voice.onnx.json`."""
    family, _, region = language.partition("-")
    several = len(speakers) > 1
    return {
        "audio": {"sample_rate": sample_rate},
        "hop_length": hop_length,
        "dataset": name,
        "espeak": {"voice": language},
        "language": {"code": f"{family}_{region.upper()}" if region else family, "family": family, "region": region},
        "inference": {"noise_scale": 1.0, "length_scale": 1.0, "noise_w": 0.0},
        "phoneme_type": "espeak",
        "phoneme_map": {},
        "phoneme_id_map": numbers.of_phonemes,
        "num_symbols": len(numbers.tokens),
        "num_speakers": len(speakers),
        "speaker_id_map": {speaker: number for number, speaker in enumerate(speakers)} if several else {},
        "piper_version": VERSION,
    }
