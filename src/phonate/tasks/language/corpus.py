"""Documents -> tokens -> sequences of at most `max_length`: the samples of training.

Sequences are made once and stay the same in every epoch: documents in one sequence do not see each other, so who lies
beside whom changes nothing but the batches, and those the trainer's plan mixes anew.
"""

from __future__ import annotations

import bisect
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from phonate.config.errors import DataError
from phonate.config.randomness import generator
from phonate.tasks.language.documents import Document, Refused, divided, read_texts, warn_refused
from phonate.tasks.language.settings import LanguageData
from phonate.tasks.language.tokenizer import TextTokenizer, Tokens
from phonate.training.task import Batch

logger = logging.getLogger("phonate")

IGNORED = -100
"""The label of a token that is not learnt."""


@dataclass(frozen=True)
class Piece:
    """A document, or a part of a long one: what one forward pass sees of it."""

    id: str
    tokens: Tokens


class LanguageDataset:
    """Sequences of one or more pieces."""

    def __init__(self, pieces: Sequence[Piece], max_length: int, packing: bool, pad: int) -> None:
        self.pieces = list(pieces)
        self.packs = packed([len(piece.tokens.ids) for piece in pieces], max_length) if packing else None
        self._pad = pad

    def _members(self, index: int) -> list[Piece]:
        return [self.pieces[i] for i in self.packs[index]] if self.packs is not None else [self.pieces[index]]

    @cached_property
    def ids(self) -> Sequence[str]:
        """The first piece's id, and how many more there are."""
        if self.packs is None:
            return [piece.id for piece in self.pieces]
        names = ((self.pieces[pack[0]].id, len(pack) - 1) for pack in self.packs)
        return [f"{name} and {more} more" if more else name for name, more in names]

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each sequence."""
        count = len(self.pieces if self.packs is None else self.packs)
        return np.array(
            [sum(len(piece.tokens.ids) for piece in self._members(i)) for i in range(count)], dtype=np.int64
        )

    @property
    def frames_per_second(self) -> float:
        """Text has no seconds: `max_duration` counts tokens."""
        return 1.0

    @property
    def cached(self) -> bool:
        """All tokens are in memory."""
        return True

    def get(self, index: int, rng: np.random.Generator) -> list[Piece]:
        """The pieces of a sequence. Nothing about it is random."""
        return self._members(index)

    def collate(self, items: list[Any]) -> Batch:
        """`input_ids`, `position_ids` and `labels`, (B, L); `characters` (B,), those that the labels stand for.

        Positions begin anew at 0 with every piece; that is how attention knows where one ends. So do those of the
        padding, which is a piece of its own that nothing else sees. `labels[:, t]` is the token to predict at t, the
        one after `input_ids[:, t]`; the first token of a piece is nobody's label.
        """
        length = max(sum(len(piece.tokens.ids) for piece in pieces) for pieces in items)
        input_ids = torch.full((len(items), length), self._pad)
        labels = torch.full((len(items), length), IGNORED)
        position_ids = torch.zeros((len(items), length), dtype=torch.int64)
        characters = torch.zeros(len(items))
        for row, pieces in enumerate(items):
            start = 0
            for piece in pieces:
                ids = torch.from_numpy(piece.tokens.ids.astype(np.int64))
                end = start + len(ids)
                input_ids[row, start:end] = ids
                position_ids[row, start:end] = torch.arange(len(ids))
                scored = torch.from_numpy(piece.tokens.scored[1:])
                labels[row, start : end - 1] = torch.where(scored, ids[1:], IGNORED)
                characters[row] += int(piece.tokens.characters[1:][piece.tokens.scored[1:]].sum())
                start = end
            position_ids[row, start:] = torch.arange(length - start)
        return {"input_ids": input_ids, "position_ids": position_ids, "labels": labels, "characters": characters}


def packed(lengths: Sequence[int], max_length: int) -> list[list[int]]:
    """Positions of pieces that together fill a sequence each: in random order, each into the fullest sequence that
    still has room for it (best fit; Ding et al. 2024, https://arxiv.org/abs/2404.10830, pack without cutting
    likewise)."""
    packs: list[list[int]] = []
    room: list[tuple[int, int]] = []  # (tokens left, pack), sorted
    for i in generator("packing").permutation(len(lengths)).tolist():
        length = lengths[i]
        place = bisect.bisect_left(room, (length, -1))
        if place < len(room):
            left, pack = room.pop(place)
        else:
            left, pack = max_length, len(packs)
            packs.append([])
        packs[pack].append(i)
        if left > length:
            bisect.insort(room, (left - length, pack))
    return packs


def pieces_of(
    tokenizer: TextTokenizer, documents: Sequence[Document], max_length: int
) -> tuple[list[Piece], list[Refused]]:
    """Documents as pieces of at most `max_length` tokens, and those that can't be any.

    Plain text is cut, the last token of a piece being the first of the next, so that every token but the first is
    predicted once. A prompt and its response stay whole.
    """
    pieces: list[Piece] = []
    refused: list[Refused] = []
    for document in documents:
        try:
            tokens = tokenizer.tokens(document)
        except DataError as error:
            refused.append(Refused(document.id, str(error).removeprefix(f"{document.id}: ")))
            continue
        count = len(tokens.ids)
        if not tokens.scored[1:].any():
            refused.append(Refused(document.id, "too short: no token of it follows another"))
        elif count <= max_length:
            pieces.append(Piece(document.id, tokens))
        elif document.prompt is not None:
            refused.append(Refused(document.id, f"{count} tokens, over data.max_length {max_length}; raise it"))
        else:
            for number, start in enumerate(range(0, count - 1, max_length - 1)):
                part = slice(start, start + max_length)
                cut = Tokens(tokens.ids[part], tokens.scored[part], tokens.characters[part])
                pieces.append(Piece(f"{document.id}#{number}", cut))
    return pieces, refused


class Corpus:
    """The texts at `data.path`, read and divided when they are first needed."""

    def __init__(self, data: LanguageData) -> None:
        self.data = data

    @cached_property
    def documents(self) -> tuple[list[Document], list[Document]]:
        """Those to train on and those to validate on."""
        train, validation = divided(read_texts(self.data.path, self.data.documents).documents, self.data.validation)
        logger.info("%s: %d documents to train on, %d to validate on", self.data.path, len(train), len(validation))
        return train, validation

    @property
    def answered(self) -> bool:
        """Whether there are prompts with responses."""
        return any(document.prompt is not None for document in self.documents[0])

    def learn_tokenizer(self, size: int) -> TextTokenizer:
        """A tokenizer of the training documents."""
        texts = (text for one in self.documents[0] for text in (one.prompt, one.response) if text)
        return TextTokenizer.learn(texts, size)

    def dataset(self, split: str, tokenizer: TextTokenizer) -> LanguageDataset:
        """The sequences of "train" or "validation". Raises DataError where none can be made to train on."""
        pieces, refused = pieces_of(tokenizer, self.documents[split != "train"], self.data.max_length)
        warn_refused(Path(self.data.path), refused)
        if split == "train" and not pieces:
            raise DataError(
                f"{self.data.path}: nothing to train on; {refused[0].place}: {refused[0].reason}"
                if refused
                else f"{self.data.path}: nothing to train on"
            )
        return LanguageDataset(pieces, self.data.max_length, self.data.packing, tokenizer.pad)
