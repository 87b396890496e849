"""The corpus of a sequence model: reads rows, splits them, and converts them to samples."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from phonate.config.errors import DataError
from phonate.data.dialogues.columns import Columns
from phonate.data.dialogues.dialogue import Dialogue, split_dialogues
from phonate.data.dialogues.reading import Refused, read_dialogues, warn_refused
from phonate.data.dialogues.tokenizer import TextTokenizer, Tokens
from phonate.tasks.sequence.dataset import Ids, Item, SequenceDataset, spans, windows
from phonate.tasks.sequence.model import longest
from phonate.tasks.sequence.settings import SequenceData, SequenceRecipe

logger = logging.getLogger("phonate")


class Corpus:
    """The rows at `data.path`, read on first use."""

    def __init__(self, recipe: SequenceRecipe) -> None:
        self.recipe = recipe
        self.data: SequenceData = recipe.data

    def read(self, path: str) -> list[Dialogue]:
        """The rows at `path` that this `model_type` can use. The others are logged.

        Raises DataError if no row has a source and a target, but the model needs both.
        """
        found = read_dialogues(path, columns=Columns(self.data.source, self.data.target)).dialogues
        if self.recipe.model.model_type == "decoder":
            return found
        pairs = [one for one in found if len(one.turns) == 2 and not one.is_plain]
        kept = set(map(id, pairs))
        wanted = "no target" if self.recipe.model.model_type == "encoder_decoder" else "no label"
        warn_refused(Path(path), [Refused(one.id, wanted) for one in found if id(one) not in kept])
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
        logger.info("%s: %d rows for training, %d for validation", self.data.path, len(train), len(validation))
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
        warn_refused(Path(self.data.path), refused)
        if split == "train" and not items:
            raise DataError(f"{self.data.path}: no usable training rows; {refused[0].place}: {refused[0].reason}")
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

    def make_all(self, rows: Sequence[Dialogue]) -> tuple[list[Item], list[Refused]]:
        """The samples, and the rows that can't be used."""
        items: list[Item] = []
        refused: list[Refused] = []
        for row in rows:
            try:
                items += self.make(row)
            except DataError as error:
                refused.append(Refused(row.id, str(error).removeprefix(f"{row.id}: ")))
        return items, refused

    def make(self, row: Dialogue) -> list[Item]:
        """The samples of one row. Raises DataError if it can't be used."""
        kind = self.recipe.model.model_type
        if kind == "decoder":
            return self._targets(row, (), self.tokenizer.encode(row), cut=row.is_plain)
        source = source_ids(self.tokenizer, row.prompt[0].text)
        if kind == "encoder":
            return [Item(row.id, self._sources(source), label=self._label(row.response.text), row=row)]
        self._check_source(len(source))
        target = self.tokenizer.encode(Dialogue.plain(row.id, row.response.text))
        return self._targets(row, (source,), target, cut=False)

    def _label(self, text: str) -> int:
        if text not in self.labels:
            raise DataError(f"the label {text!r} does not occur in the training rows")
        return self.labels.index(text)

    def _sources(self, ids: Ids) -> tuple[Ids, ...]:
        if self.window is None:
            self._check(len(ids), "source")
            return (ids,)
        return tuple(ids[start:end] for start, end in spans(len(ids), self.window, self.window // 2))

    def _targets(self, row: Dialogue, sources: tuple[Ids, ...], target: Tokens, cut: bool) -> list[Item]:
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
        return [Item(name, sources, part, row=of) for name, part, of in zip(names, parts, rows, strict=True)]

    def _check_source(self, count: int) -> None:
        """The targets of a window see the whole source, so learnable positions are the only limit."""
        if self.window is None:
            self._check(count, "source")
        elif (limit := longest(self.recipe.model)) is not None and count > limit:
            raise DataError(f"the source has {count} tokens, more than the {limit} learnable positions (max_seq_len)")

    def _check(self, count: int, what: str) -> None:
        if count > self.recipe.data.max_length:
            raise DataError(
                f"the {what} has {count} tokens, more than data.max_length {self.recipe.data.max_length}; raise that"
            )


def source_ids(tokenizer: TextTokenizer, text: str) -> Ids:
    """The encoder's input tokens (S,) for a text: begin, text, end."""
    return np.asarray(tokenizer.encode(Dialogue.plain("", text)).ids, dtype=np.int64)
