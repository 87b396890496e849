"""Samples of diarization: the features of a piece of a conversation, and who speaks in each of its frames.

Shapes: B batch, T frames, F features, S speakers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from phonate.audio.decoding import FloatArray
from phonate.data.batches.collators import Collator
from phonate.data.batches.recordings import padded
from phonate.tasks.diarization.corpus import NOBODY, Corpus
from phonate.training.task import Batch


@dataclass(frozen=True)
class Item:
    """One sample."""

    features_TF: FloatArray
    activity_TS: NDArray[np.uint8]
    """Speakers in the order in which they begin, those who begin together by name."""
    speakers_S: NDArray[np.int64]
    """Number of each speaker in `Corpus.speakers`; -1 for one who is not in training."""


@dataclass(frozen=True)
class _Piece:
    """A slot of a recording: of `slots` equal parts of it, the one at `slot`."""

    position: int
    slot: int
    slots: int
    frames: int
    """Of the whole recording."""


class DiarizationDataset:
    """One split: pieces of recordings, at random places in training, side by side in validation."""

    def __init__(self, corpus: Corpus, split: str) -> None:
        self._corpus = corpus
        self._training = split == "train"
        self._chunk = corpus.data.chunk_frames
        frames = np.asarray(corpus.prepared.index.frames)
        self._pieces = [
            _Piece(position, slot, slots, int(frames[position]))
            for position in corpus.positions(split)
            for slots in [-(-int(frames[position]) // self._chunk)]
            for slot in range(slots)
        ]
        self.frames_per_second: float | None = corpus.data.audio.frames_per_second

    @property
    def ids(self) -> Sequence[str]:
        """Names of pieces."""
        index = self._corpus.prepared.index
        return [f"{index.id[one.position]}#{one.slot}" for one in self._pieces]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Frames of each sample."""
        return np.array([self._length(one) for one in self._pieces], dtype=np.int64)

    @property
    def cached(self) -> bool:
        """Pieces are read from the cache."""
        return True

    def _length(self, piece: _Piece) -> int:
        if self._training:
            return min(piece.frames, self._chunk)
        return piece.frames * (piece.slot + 1) // piece.slots - piece.frames * piece.slot // piece.slots

    def _start(self, piece: _Piece, rng: np.random.Generator) -> int:
        """The first frame of a piece. In training somewhere in its share of the possible ones, so that an epoch covers
        the recording evenly."""
        if not self._training:
            return piece.frames * piece.slot // piece.slots
        possible = max(0, piece.frames - self._chunk) + 1
        return int(possible * (piece.slot + rng.random()) / piece.slots)

    def get(self, index: int, rng: np.random.Generator) -> Item:
        """Sample number `index`."""
        piece = self._pieces[index]
        start = self._start(piece, rng)
        stop = start + self._length(piece)
        features_TF = np.asarray(self._corpus.prepared.cache.features(piece.position, start, stop), dtype=np.float32)
        return Item(features_TF, *self._corpus.activity(piece.position, start, stop))

    def collate(self, items: list[Any]) -> Batch:
        """See `DiarizationCollator`."""
        most = max(item.activity_TS.shape[1] for item in items)
        activity = [_widened(item.activity_TS.astype(np.float32), most, 0.0) for item in items]
        speakers = [np.pad(item.speakers_S, (0, most - len(item.speakers_S)), constant_values=NOBODY) for item in items]
        return {
            "features": padded([item.features_TF for item in items]),
            "lengths": torch.tensor([len(item.features_TF) for item in items]),
            "activity": padded(activity),
            "speaker_count": torch.tensor([item.activity_TS.shape[1] for item in items]),
            "speakers": torch.from_numpy(np.stack(speakers)),
        }


def _widened(values_TS: NDArray[Any], width: int, value: float) -> NDArray[Any]:
    return np.pad(values_TS, ((0, 0), (0, width - values_TS.shape[1])), constant_values=value)


class DiarizationCollator(Collator):
    """Makes a batch of samples:

    `features` (B, T, F) float32 and `activity` (B, T, S) float32, zeros after the ends and for speakers that a sample
    lacks; `lengths` (B,) in frames; `speaker_count` (B,); `speakers` (B, S) numbers in the corpus, -1 for absent ones
    and for those who are not in training.

    A subclass that is registered (`COLLATORS`) and named by `data.collator` adds or changes labels.
    """

    def __call__(self, cuts: list[Item]) -> Batch:
        """The batch of `cuts`."""
        return super().__call__(cuts)
