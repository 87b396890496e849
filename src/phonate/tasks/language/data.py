"""The texts of a run: read, split, and packed into token sequences."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from phonate.config.errors import DataError
from phonate.config.words import number_of
from phonate.data.batches import PackedRows, SamplePreview, digest_of
from phonate.data.dialogue_tokens import TextTokenizer, Tokens
from phonate.data.dialogues import Dialogue, RefusedRow, read_dialogues, require_rows, split_dialogues
from phonate.nn.losses import IGNORED
from phonate.tasks.language.settings import LanguageData
from phonate.training.task import Batch

logger = logging.getLogger("phonate")

# ----------- Dialogues -> token sequences of at most `max_length`, several of them packed into one row


@dataclass(frozen=True)
class TokenSequence:
    """A dialogue, or a chunk of a long text: what one forward pass attends to."""

    id: str
    tokens: Tokens


class LanguageDataset(PackedRows):
    """Rows of one or more token sequences."""

    def __init__(
        self, sequences: Sequence[TokenSequence], max_length: int, packing: bool, tokenizer: TextTokenizer
    ) -> None:
        lengths = [len(one.tokens.ids) for one in sequences]
        super().__init__([one.id for one in sequences], lengths, max_length, packing)
        self.sequences = list(sequences)
        self._pad = tokenizer.pad
        self._tokenizer = tokenizer

    @property
    def digests(self) -> Mapping[str, int]:
        """See `DigestedDataset`: of the tokens of each sequence."""
        return {one.id: digest_of(one.tokens.ids, one.tokens.learnt) for one in self.sequences}

    def get(self, index: int, rng: np.random.Generator) -> list[TokenSequence]:
        """The sequences of a row. Nothing about it is random."""
        return [self.sequences[i] for i in self.rows[index]]

    def preview(self, index: int, rng: np.random.Generator) -> SamplePreview:
        """See `PreviewDataset`."""
        return SamplePreview("\n".join(self._tokenizer.decode(one.tokens.ids.tolist()) for one in self.get(index, rng)))

    def collate(self, items: list[Any]) -> Batch:
        """Rows as a batch.

        Returns:
            `input_ids` (B, L).
            `position_ids` (B, L): they start again at 0 with every sequence, which is how attention tells sequences
            apart. So do those of the padding, which nothing else attends to.
            `labels` (B, L): `labels[:, t]` is the token to predict at t, the one after `input_ids[:, t]`, or
            `IGNORED`. The first token of a sequence is never a label.
            `labelled` (N,): where labels are, as indices into a flattened (B * L).
            `characters` (B,): characters that the labels stand for.
        """
        length = max(sum(len(one.tokens.ids) for one in row) for row in items)
        input_ids = torch.full((len(items), length), self._pad)
        labels = torch.full((len(items), length), IGNORED)
        position_ids = torch.zeros((len(items), length), dtype=torch.int64)
        characters = torch.zeros(len(items))
        for number, row in enumerate(items):
            start = 0
            for one in row:
                ids = torch.from_numpy(one.tokens.ids.astype(np.int64))
                end = start + len(ids)
                input_ids[number, start:end] = ids
                position_ids[number, start:end] = torch.arange(len(ids))
                learnt = torch.from_numpy(one.tokens.learnt[1:])
                labels[number, start : end - 1] = torch.where(learnt, ids[1:], IGNORED)
                characters[number] += int(one.tokens.characters[1:][one.tokens.learnt[1:]].sum())
                start = end
            position_ids[number, start:] = torch.arange(length - start)
        return {
            "input_ids": input_ids,
            "position_ids": position_ids,
            "labels": labels,
            # found here, on the CPU: on a GPU, nonzero would wait for the device
            "labelled": (labels.flatten() != IGNORED).nonzero()[:, 0],
            "characters": characters,
        }

    def unit_counts(self, batch: Batch) -> dict[str, float]:
        """Learnt tokens, and their characters."""
        return {"tokens": len(batch["labelled"]), "characters": float(batch["characters"].sum())}


def encode_all(
    tokenizer: TextTokenizer, dialogues: Sequence[Dialogue], max_length: int
) -> tuple[list[TokenSequence], list[RefusedRow]]:
    """Dialogues as sequences of at most `max_length` tokens, and the dialogues that can't be used.

    Long plain texts are cut; the last token of a chunk is the first of the next one, so that every token but the first
    is predicted once. Conversations stay whole.
    """
    sequences: list[TokenSequence] = []
    refused: list[RefusedRow] = []
    for dialogue in dialogues:
        try:
            tokens = tokenizer.encode(dialogue)
        except DataError as error:
            refused.append(RefusedRow(dialogue.id, str(error).removeprefix(f"{dialogue.id}: ")))
            continue
        count = len(tokens.ids)
        if not tokens.learnt[1:].any():
            refused.append(RefusedRow(dialogue.id, "too short: it has no token that follows another one"))
        elif count <= max_length:
            sequences.append(TokenSequence(dialogue.id, tokens))
        elif not dialogue.is_plain:
            refused.append(RefusedRow(dialogue.id, f"{count} tokens, over data.max_length {max_length}; raise it"))
        else:
            for number, start in enumerate(range(0, count - 1, max_length - 1)):
                part = slice(start, start + max_length)
                chunk = Tokens(tokens.ids[part], tokens.learnt[part], tokens.characters[part])
                sequences.append(TokenSequence(f"{dialogue.id}#{number}", chunk))
    return sequences, refused


# ------------------------------------ The texts of a run: read, and split into training and validation


class LanguageCorpus:
    """The dialogues at `data.path`, read when they are first needed."""

    def __init__(self, data: LanguageData) -> None:
        self.data = data

    @cached_property
    def dialogues(self) -> tuple[list[Dialogue], list[Dialogue]]:
        """Training and validation dialogues."""
        dialogues = read_dialogues(self.data.path, self.data.documents).dialogues
        train, validation = split_dialogues(dialogues, self.data.validation)
        logger.info(
            "%s: %s for training, %d for validation", self.data.path, number_of(len(train), "document"), len(validation)
        )
        return train, validation

    @property
    def chat(self) -> bool:
        """Whether there are conversations, so that the model learns to answer."""
        return any(not dialogue.is_plain for dialogue in self.dialogues[0])

    def train_tokenizer(self, size: int) -> TextTokenizer:
        """A tokenizer of at most `size` tokens, trained on the training dialogues."""
        return TextTokenizer.train(self.dialogues[0], size)

    def dataset(self, split: str, tokenizer: TextTokenizer) -> LanguageDataset:
        """The sequences of "train" or "validation". Raises DataError if there is nothing to train on."""
        sequences, refused = encode_all(tokenizer, self.dialogues[split != "train"], self.data.max_length)
        require_rows(self.data.path, sequences, refused, "to train on" if split == "train" else None)
        return LanguageDataset(sequences, self.data.max_length, self.data.packing, tokenizer)
