"""Symbols <-> ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from phonate.config.errors import InputError
from phonate.text import phonemes
from phonate.text.phonemes import MARKS, Phonemizer, Word

PAD = "<pad>"
"""Id 0: padding."""
WORD = "<word>"
"""The boundary after a word without punctuation."""
START = "<start>"
"""The boundary before the first word; its duration is the silence before speech."""

SPECIAL = (PAD, WORD, *MARKS, START)
"""The first symbols of every inventory."""


@dataclass(frozen=True)
class Inventory:
    """The symbols of a phonemizer and of boundaries; the id of a symbol is its position."""

    symbols: tuple[str, ...]
    phonemizer_name: str
    language: str

    def __post_init__(self) -> None:
        if self.symbols[: len(SPECIAL)] != SPECIAL or len(set(self.symbols)) != len(self.symbols):
            raise InputError(f"an inventory starts with {' '.join(SPECIAL)} and has no symbol twice")

    def __len__(self) -> int:
        return len(self.symbols)

    @classmethod
    def of(cls, phonemizer: Phonemizer) -> Inventory:
        """The inventory of all symbols of `phonemizer`."""
        return cls((*SPECIAL, *phonemizer.symbols), phonemizer.name, phonemizer.language)

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Inventory:
        """The inventory that `document()` returned. Raises InputError for anything else."""
        symbols, name, language = (document.get(key) for key in ("symbols", "phonemizer", "language"))
        texts = isinstance(symbols, list) and all(isinstance(symbol, str) for symbol in symbols)
        if not (texts and isinstance(name, str) and isinstance(language, str)):
            raise InputError("an inventory needs symbols (a list of texts), phonemizer and language")
        return cls(tuple(symbols or ()), name, language)

    def document(self) -> dict[str, Any]:
        """The inventory as JSON values, for `read`."""
        return {"phonemizer": self.phonemizer_name, "language": self.language, "symbols": list(self.symbols)}

    def phonemizer(self) -> Phonemizer:
        """The phonemizer that this inventory was made for."""
        return phonemes.phonemizer(self.phonemizer_name, self.language)

    def tokens(self, words: Sequence[Word]) -> list[str]:
        """START, then the phones of each word followed by a boundary: its mark, or WORD."""
        tokens = [START]
        for word in words:
            tokens += [*word.phones, word.mark or WORD]
        return tokens

    def ids(self, words: Sequence[Word]) -> list[int]:
        """The ids of `tokens`. Raises InputError for a symbol that is not in the inventory, naming it and its word."""
        for word in words:
            for symbol in (*word.phones, word.mark or WORD):
                if symbol not in self._ids:
                    raise InputError(
                        f"{symbol!r} of the word {word.text!r} is not among the {len(self)} symbols of this inventory "
                        f"({self.phonemizer_name}, {self.language})"
                    )
        return [self._ids[token] for token in self.tokens(words)]

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {symbol: index for index, symbol in enumerate(self.symbols)}
