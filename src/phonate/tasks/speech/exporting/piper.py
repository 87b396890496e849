"""Export to Piper: its phoneme ids, how they map to our tokens, and its config file.

Piper sends `^ _ h _ ə _ l _ ... , _   _ ... . _ $`: each phoneme is followed by a pad, words are separated by spaces,
and each mark within a sentence is followed by a space. Our models have one boundary after a word: its mark or `<word>`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from phonate.config.language_codes import is_english
from phonate.text.espeak import SYMBOLS
from phonate.text.inventory import PAD, START, WORD, Inventory

VERSION = "1.0.0"
"""Version of Piper's file format."""

UNUSED, PHONE, SPACE, FIRST_MARK = 0, 1, 2, 3
"""Weights of ids, for `SpokenPiper`."""

_FIRST = "_^$ !'(),-.:;?"
"""Piper's first phonemes. Some runtimes hard-code the ids of `_`, `^` and `$`, so we use the same ones."""
_MARKS = ",:;.!?"
"""The marks that Piper sends, in ascending order of weight."""
_SAME = {"g": "ɡ", "Z": "ʒ", "S": "ʃ", "N": "ŋ", "X": "χ", "A": "ɑ", "Φ": "ɸ", "ʦ": "ts"}
"""espeak mnemonics that our phonemizer replaces by IPA."""
_SILENT = "|‿`\u200d"
"""Ties, which our phonemizer omits."""


@dataclass(frozen=True)
class PiperNumbers:
    """The phoneme ids of a voice."""

    of_phonemes: dict[str, list[int]]
    """Piper's phoneme_id_map."""
    tokens: Sequence[int]
    """Our token for each id."""
    weights: Sequence[int]
    """Weight of each id: not said, a phone, or a boundary (of a mark, the stronger the higher)."""


def piper_numbers(inventory: Inventory) -> PiperNumbers:
    """The ids for a voice with espeak's phones."""
    phonemes = [*_FIRST, *(symbol for symbol in SYMBOLS if symbol not in _FIRST)]
    numbers = {phoneme: number for number, phoneme in enumerate(phonemes)}
    ours = {symbol: number for number, symbol in enumerate(inventory.symbols)}
    tokens, weights = [ours[PAD]] * len(phonemes), [UNUSED] * len(phonemes)

    def mean(phoneme: str, symbol: str, weight: int) -> None:
        tokens[numbers[phoneme]], weights[numbers[phoneme]] = ours[symbol], weight

    for symbol in SYMBOLS:
        # Piper's espeak inserts glides between vowels (ðɪʲ ˈoʊld), ours does not; English has no other use of it
        if symbol in ours and not (symbol == "ʲ" and is_english(inventory.language)):
            mean(symbol, symbol, PHONE)
    for weight, mark in enumerate(_MARKS, FIRST_MARK):
        mean(mark, mark, weight)
    mean(" ", WORD, SPACE)
    mean("$", WORD, SPACE)  # end of a text without a final mark
    mean("^", START, FIRST_MARK + len(_MARKS))
    of_phonemes = {phoneme: [number] for phoneme, number in numbers.items()}
    of_phonemes |= {written: [numbers[phone] for phone in phones] for written, phones in _SAME.items()}
    of_phonemes |= dict.fromkeys(_SILENT, of_phonemes["_"])
    return PiperNumbers(of_phonemes, tokens, weights)


def piper_config(
    numbers: PiperNumbers, name: str, language: str, speakers: Sequence[str], sample_rate: int, hop_length: int
) -> dict[str, Any]:
    """The contents of `voice.onnx.json`, the config file of a voice."""
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
