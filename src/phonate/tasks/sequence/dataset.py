"""Training samples of token sequences.

Shapes: B samples, N source sequences (samples or their windows), S source tokens, T target tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from phonate.data.batches.dataset import digest_of
from phonate.data.dialogues.dialogue import Dialogue
from phonate.data.dialogues.tokenizer import Tokens
from phonate.training.task import Batch

IGNORED = -100
"""The label of positions that do not enter the loss."""

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Item:
    """One sample."""

    id: str
    sources: tuple[Ids, ...] = ()
    """The encoder's input tokens (S,): one sequence, or the windows of a long one. Empty for decoder-only models."""
    target: Tokens | None = None
    """The decoder's targets; None for encoder-only models."""
    label: int = 0
    """The class, for encoder-only models."""
    row: Dialogue | None = None
    """The row it was made from; None for all but the first window of a row."""

    @property
    def length(self) -> int:
        """Number of source and target tokens."""
        return sum(map(len, self.sources)) + (0 if self.target is None else len(self.target.ids))


class SequenceDataset:
    """The samples of one split."""

    frames_per_second = None
    """Lengths are tokens."""
    cached = True
    """All tokens are in memory."""

    def __init__(self, items: Sequence[Item], pad: int) -> None:
        self.items = list(items)
        self._pad = pad

    @cached_property
    def ids(self) -> Sequence[str]:
        """The origin of each sample, file:line."""
        return [item.id for item in self.items]

    @cached_property
    def lengths(self) -> Ids:
        """(N,) tokens of each sample."""
        return np.array([item.length for item in self.items], dtype=np.int64)

    @property
    def digests(self) -> Mapping[str, int]:
        """See `Digested`: of the tokens and the label of each sample."""
        nothing = np.zeros(0)
        return {
            item.id: digest_of(*item.sources, nothing if item.target is None else item.target.ids, item.label)
            for item in self.items
        }

    def get(self, index: int, rng: np.random.Generator) -> Item:
        """Sample number `index`. `rng` is not used."""
        return self.items[index]

    def collate(self, items: list[Any]) -> Batch:
        """Collate samples into a batch.

        Returns:
            For models with an encoder: `source` (N, S), `source_lengths` (N,), and `item` (N,), the index of the sample
            (0 .. B - 1) that each source belongs to; several sources are the windows of one sample.
            For models with a decoder: `input` (B, T), `lengths` (B,), and `labels` (B, T), the next tokens, `IGNORED`
            where they do not enter the loss.
            For encoder-only models: `label` (B,), classes; `lengths` is `source_lengths`.
            `labelled`: the number of labels that enter the loss.
        """
        batch: dict[str, Any] = {"labelled": float(len(items))}
        windows = [(number, ids) for number, item in enumerate(items) for ids in item.sources]
        if windows:
            batch |= batched([ids for _, ids in windows], self._pad, "source")
            batch["item"] = torch.tensor([number for number, _ in windows])
        targets = [item.target for item in items if item.target is not None]
        if not targets:
            labels = torch.tensor([item.label for item in items])
            return batch | {"label": labels, "lengths": batch["source_lengths"]}
        inputs = batched([one.ids[:-1] for one in targets], self._pad, "input")
        targets_BT = torch.full(inputs["input"].shape, IGNORED)
        for number, one in enumerate(targets):
            ids = torch.from_numpy(one.ids[1:].astype(np.int64))
            targets_BT[number, : len(ids)] = torch.where(torch.from_numpy(one.learnt[1:]), ids, IGNORED)
        return batch | {
            "input": inputs["input"],
            "lengths": inputs["input_lengths"],
            "labels": targets_BT,
            "labelled": float((targets_BT != IGNORED).sum()),
        }


def batched(sequences: Sequence[NDArray[Any]], pad: int, name: str) -> dict[str, Tensor]:
    """`name` (N, S), the sequences padded with `pad`, and `name_lengths` (N,)."""
    rows = [torch.from_numpy(np.asarray(ids, dtype=np.int64)) for ids in sequences]
    return {
        name: torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=float(pad)),
        f"{name}_lengths": torch.tensor([len(ids) for ids in rows]),
    }


def spans(length: int, size: int, overlap: int) -> list[tuple[int, int]]:
    """Start and end (exclusive) of windows of at most `size` positions that cover `length` positions, each overlapping
    the previous one by `overlap` positions."""
    found = [(0, min(size, length))]
    while found[-1][1] < length:
        start = found[-1][1] - overlap
        found.append((start, min(start + size, length)))
    return found


def windows(tokens: Tokens, size: int, overlap: int) -> list[Tokens]:
    """A sequence divided into overlapping windows. Each token enters the loss once, in the first window that contains
    it, and so has at least `overlap` tokens of context, except at the beginning of the sequence."""
    found: list[Tokens] = []
    done = 0
    for start, end in spans(len(tokens.ids), size, overlap):
        part = slice(start, end)
        learnt = tokens.learnt[part].copy()
        learnt[: done - start] = False
        found.append(Tokens(tokens.ids[part], learnt, tokens.characters[part]))
        done = end
    return found
