"""What a voice takes from the one that its training starts from, where speakers or phones differ.

Shapes: S speakers, V symbols, D width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from phonate.text.english.ipa import like
from phonate.text.inventory import SPECIAL, Inventory


def voices(table_SD: Tensor, known: Sequence[str], wanted: Sequence[str]) -> Tensor:
    """The vectors of the speakers `wanted`: their own, or the average of those of `known`."""
    average_D = table_SD.mean(dim=0)
    return torch.stack([table_SD[known.index(name)] if name in known else average_D for name in wanted])


def phones(table_VD: Tensor, known: Inventory, wanted: Inventory) -> Tensor:
    """The vectors (V, D) of the symbols `wanted`.

    For espeak's, those of an English voice: of its marks, and averages of its phones that sound like a symbol; zeros
    for symbols unlike any. For other inventories the table as it is, which may not fit.
    """
    if (known.phonemizer_name, wanted.phonemizer_name) != ("english", "espeak"):
        return table_VD
    position = {symbol: index for index, symbol in enumerate(known.symbols)}
    rows = []
    for index, symbol in enumerate(wanted.symbols):
        similar = [symbol] if index < len(SPECIAL) else like(symbol)
        chosen = [position[one] for one in similar]
        rows.append(table_VD[chosen].mean(dim=0) if chosen else torch.zeros_like(table_VD[0]))
    return torch.stack(rows)
