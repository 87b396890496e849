"""The corpus of a sequence model: rows read, split, and converted to training samples.

Shapes: B samples, N source sequences (samples or their windows), S source tokens, T target tokens.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from phonate.config.errors import DataError
from phonate.config.words import number_of
from phonate.data.batches import SamplePreview, digest_of
from phonate.data.dialogue_tokens import TextTokenizer, Tokens
from phonate.data.dialogues import (
    Columns,
    Dialogue,
    RefusedRow,
    read_dialogues,
    require_rows,
    split_dialogues,
    warn_refused,
)
from phonate.nn.losses import IGNORED
from phonate.nn.sequences import frame_mask
from phonate.tasks.sequence.settings import SequenceData, SequenceRecipe
from phonate.training.task import Batch

logger = logging.getLogger("phonate")

# ----------------------------------------------------------------- Training samples of token sequences

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class SequenceItem:
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

    def __init__(self, items: Sequence[SequenceItem], pad: int) -> None:
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
        """See `DigestedDataset`: of the tokens and the label of each sample."""
        nothing = np.zeros(0)
        return {
            item.id: digest_of(*item.sources, nothing if item.target is None else item.target.ids, item.label)
            for item in self.items
        }

    def get(self, index: int, rng: np.random.Generator) -> SequenceItem:
        """Sample number `index`. `rng` is not used."""
        return self.items[index]

    def preview(self, index: int, rng: np.random.Generator) -> SamplePreview:
        """See `PreviewDataset`: the texts of a row, where the first of its windows is asked for."""
        row = self.items[index].row
        if row is None:
            return SamplePreview()
        return SamplePreview("\n".join(turn.text for turn in row.turns), row.speaker or "")

    def collate(self, items: list[Any]) -> Batch:
        """Collate samples into a batch.

        Returns:
            For models with an encoder: `source` (N, S), `source_lengths` (N,), and `item` (N,), the index of the sample
            (0 .. B - 1) that each source belongs to; several sources are the windows of one sample.
            For models with a decoder: `input` (B, T), `lengths` (B,), and `labels` (B, T), the next tokens, `IGNORED`
            where they do not enter the loss.
            For encoder-only models: `label` (B,), classes; `lengths` is `source_lengths`.
        """
        batch: dict[str, Any] = {}
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
        }

    def unit_counts(self, batch: Batch) -> dict[str, float]:
        """Items, and labels that enter the loss."""
        targets = batch["label"] if "label" in batch else labels_within(batch["labels"], batch["lengths"])
        return {"items": len(targets), "targets": int((targets != IGNORED).sum())}


def labels_within(labels_BT: Tensor, lengths_B: Tensor) -> Tensor:
    """Masks the labels beyond the lengths: `training.performance.batch_shim` pads batches with zeros."""
    return labels_BT.masked_fill(~frame_mask(lengths_B, labels_BT.shape[1]), IGNORED)


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
    result = [(0, min(size, length))]
    while result[-1][1] < length:
        start = result[-1][1] - overlap
        result.append((start, min(start + size, length)))
    return result


def windows(tokens: Tokens, size: int, overlap: int) -> list[Tokens]:
    """A sequence divided into overlapping windows. Each token enters the loss once, in the first window that contains
    it, and so has at least `overlap` tokens of context, except at the beginning of the sequence."""
    parts: list[Tokens] = []
    done = 0
    for start, end in spans(len(tokens.ids), size, overlap):
        part = slice(start, end)
        learnt = tokens.learnt[part].copy()
        learnt[: done - start] = False
        parts.append(Tokens(tokens.ids[part], learnt, tokens.characters[part]))
        done = end
    return parts


# --------------- The corpus of a sequence model: reads rows, splits them, and converts them to samples


class SequenceCorpus:
    """The rows at `data.path`, read on first use."""

    def __init__(self, recipe: SequenceRecipe) -> None:
        self.recipe = recipe
        self.data: SequenceData = recipe.data

    def read(self, path: str) -> list[Dialogue]:
        """The rows at `path` that this `model_type` can use. The others are logged.

        Raises DataError if no row has a source and a target, but the model needs both.
        """
        rows = read_dialogues(path, columns=Columns(self.data.source, self.data.target)).dialogues
        if self.recipe.model.model_type == "decoder":
            return rows
        pairs = [one for one in rows if len(one.turns) == 2 and not one.is_plain]
        usable = set(map(id, pairs))
        missing = "no target" if self.recipe.model.model_type == "encoder_decoder" else "no label"
        warn_refused(Path(path), [RefusedRow(one.id, missing) for one in rows if id(one) not in usable])
        if not pairs:
            raise DataError(
                f"{path}: no row has a source and a target, which model_type {self.recipe.model.model_type} needs; "
                "set their columns in data.source and data.target"
            )
        return pairs

    @cached_property
    def dialogues(self) -> tuple[list[Dialogue], list[Dialogue]]:
        """Training and validation rows."""
        train, validation = split_dialogues(self.read(self.data.path), self.data.validation)
        logger.info(
            "%s: %s for training, %d for validation", self.data.path, number_of(len(train), "row"), len(validation)
        )
        return train, validation

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The sorted classes of an encoder-only model; empty for other models."""
        if self.recipe.model.model_type != "encoder":
            return ()
        return tuple(sorted({one.response.text for one in self.dialogues[0]}))

    @cached_property
    def tokenizer(self) -> TextTokenizer:
        """A tokenizer trained on the training rows."""
        return TextTokenizer.train(self.dialogues[0], self.data.vocabulary)

    def dataset(self, split: str) -> SequenceDataset:
        """The samples of the split "train" or "validation". Raises DataError if there are no training samples."""
        window = self.recipe.training.eval_knobs.sliding_window if split == "validation" else None
        rows = self.dialogues[split != "train"]
        maker = ItemMaker(self.recipe, self.tokenizer, self.labels, window)
        items, refused = maker.make_all(rows)
        require_rows(self.data.path, items, refused, "to train on" if split == "train" else None)
        return SequenceDataset(items, self.tokenizer.pad)


@dataclass(frozen=True)
class ItemMaker:
    """Converts rows to samples."""

    recipe: SequenceRecipe
    tokenizer: TextTokenizer
    labels: Sequence[str]
    window: int | None
    """`eval_knobs.sliding_window`, for validation and evaluation: long sequences are divided into windows of this many
    tokens that overlap by half; sources of targets stay whole. None: long plain texts are divided without overlap,
    other long rows are rejected."""

    def make_all(self, rows: Sequence[Dialogue]) -> tuple[list[SequenceItem], list[RefusedRow]]:
        """The samples, and the rows that can't be used."""
        items: list[SequenceItem] = []
        refused: list[RefusedRow] = []
        for row in rows:
            try:
                items += self.make(row)
            except DataError as error:
                refused.append(RefusedRow(row.id, str(error).removeprefix(f"{row.id}: ")))
        return items, refused

    def make(self, row: Dialogue) -> list[SequenceItem]:
        """The samples of one row. Raises DataError if it can't be used."""
        kind = self.recipe.model.model_type
        if kind == "decoder":
            return self._targets(row, (), self.tokenizer.encode(row), cut=row.is_plain)
        source = np.asarray(self.tokenizer.encode(Dialogue.plain("", row.prompt[0].text)).ids, dtype=np.int64)
        if kind == "encoder":
            if row.response.text not in self.labels:
                raise DataError(f"the label {row.response.text!r} does not occur in the training rows")
            return [SequenceItem(row.id, self._sources(source), label=self.labels.index(row.response.text), row=row)]
        # the targets of a window see the whole source, so learnable positions are the only limit
        count = len(source)
        if self.window is None:
            self._check(count, "source")
        elif (limit := self.recipe.model.max_tokens) is not None and count > limit:
            raise DataError(f"the source has {count} tokens, more than the {limit} learnable positions (max_seq_len)")
        target = self.tokenizer.encode(Dialogue.plain(row.id, row.response.text))
        return self._targets(row, (source,), target, cut=False)

    def _sources(self, ids: Ids) -> tuple[Ids, ...]:
        if self.window is None:
            self._check(len(ids), "source")
            return (ids,)
        return tuple(ids[start:end] for start, end in spans(len(ids), self.window, self.window // 2))

    def _targets(self, row: Dialogue, sources: tuple[Ids, ...], target: Tokens, cut: bool) -> list[SequenceItem]:
        size, overlap = self.recipe.data.max_length, 1
        if self.window is not None:
            size, overlap = self.window, self.window // 2
        elif not cut:
            self._check(len(target.ids), "target" if sources else "row")
        parts = [part for part in windows(target, size, overlap) if part.learnt[1:].any()]
        if not parts:
            raise DataError("too short: there is no token to predict")
        names = [row.id] if len(parts) == 1 else [f"{row.id}#{number}" for number in range(len(parts))]
        rows = [row, *[None] * (len(parts) - 1)]
        return [SequenceItem(name, sources, part, row=of) for name, part, of in zip(names, parts, rows, strict=True)]

    def _check(self, count: int, what: str) -> None:
        if count > self.recipe.data.max_length:
            raise DataError(
                f"the {what} has {count} tokens, more than data.max_length {self.recipe.data.max_length}; raise that"
            )
