"""Samples cut from recordings. Shapes: N samples, T frames, S speakers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from phonate.audio.decoding import FloatArray
from phonate.data.conversations.acoustics import Acoustics
from phonate.data.conversations.activity import mixed_activity
from phonate.data.store.prepared import Prepared
from phonate.tasks.diarization.corpus import Activity, Corpus
from phonate.tasks.diarization.data_settings import MixingSettings
from phonate.tasks.diarization.samples.item import Item
from phonate.tasks.diarization.samples.waveforms import features_of, samples_of

_DRAWS = 10
"""Attempts to find a chunk that may be added."""


@dataclass(frozen=True)
class _Chunk:
    """A chunk of a recording."""

    position: int
    start: int
    """Its first frame."""
    activity: Activity

    @property
    def frames(self) -> int:
        return len(self.activity[0])


class RecordedPieces:
    """Chunks of the recordings of a split: consecutive in validation, at random positions in training.

    A recording has ceil(frames / chunk) slots. In training, a slot is a range of start positions, so that the `count`
    chunks of an epoch cover all recordings evenly, whatever `count` is.
    """

    def __init__(
        self,
        corpus: Corpus,
        prepared: Prepared,
        split: str,
        count: int | None,
        acoustics: Acoustics | None,
        mixing: MixingSettings | None = None,
    ) -> None:
        self._corpus = corpus
        self._prepared = prepared
        self._training = split == "train"
        self._acoustics = acoustics
        self._mixing = mixing
        self._chunk = corpus.data.chunk_frames
        self._positions = np.array(corpus.positions(split), dtype=np.int64)
        self._frames = np.asarray(prepared.index.frames)[self._positions]
        self._first_slot = np.concatenate([[0], np.cumsum(-(-self._frames // self._chunk))])
        self.slots = int(self._first_slot[-1])
        self.count = self.slots if count is None or not self.slots else count

    @property
    def ids(self) -> Sequence[str]:
        """Ids of the chunks."""
        if self.count != self.slots:
            return [f"recorded#{number}" for number in range(self.count)]
        return [
            f"{self._prepared.index.id[int(self._positions[row])]}#{slot - int(self._first_slot[row])}"
            for slot in range(self.slots)
            for row in [self._row(slot)]
        ]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Frames of each chunk; the maximum if the recording is drawn at random."""
        if self.count != self.slots:
            return np.full(self.count, min(self._chunk, int(self._frames.max())), dtype=np.int64)
        spans = [self._span(slot, 0.0) for slot in range(self.slots)]
        return np.array([stop - start for _, start, stop in spans], dtype=np.int64)

    @property
    def cached(self) -> bool:
        """Whether features are only read, not computed."""
        return self._acoustics is None and self._mixing is None and not self._prepared.cache.computes

    def get(self, number: int, rng: np.random.Generator) -> Item:
        """Chunk number `number`."""
        slot = number if self.count == self.slots else int((number + rng.random()) * self.slots / self.count)
        chunk = self._cut(slot, rng)
        added = self._added(chunk, rng)
        activity_TS, numbers_S = chunk.activity
        if self._acoustics is None and added is None:
            features = self._prepared.cache.features(chunk.position, chunk.start, chunk.start + chunk.frames)
        else:
            heard_N = self._sound(chunk, rng)
            if added is not None:
                other_N = self._sound(added, rng)[: len(heard_N)]
                heard_N[: len(other_N)] += other_N
                activity_TS, numbers_S = mixed_activity(activity_TS, numbers_S, *added.activity)
            features = features_of(self._corpus, heard_N)[: chunk.frames]
        seconds = chunk.start / self._corpus.data.audio.frames_per_second
        name = self._prepared.index.id[chunk.position]
        return Item(np.asarray(features, dtype=np.float32), activity_TS, numbers_S, name, seconds)

    def _cut(self, slot: int, rng: np.random.Generator) -> _Chunk:
        row, start, stop = self._span(slot, rng.random() if self._training else 0.0)
        position = int(self._positions[row])
        return _Chunk(position, start, self._corpus.activity(position, start, stop))

    def _added(self, chunk: _Chunk, rng: np.random.Generator) -> _Chunk | None:
        """A random chunk of another recording to add to `chunk`. None: not mixed, or all attempts had too many
        speakers."""
        if self._mixing is None or rng.random() >= self._mixing.share:
            return None
        for _ in range(_DRAWS):
            other = self._cut(int(rng.integers(self.slots)), rng)
            if other.position == chunk.position:
                continue
            if mixed_activity(*chunk.activity, *other.activity)[0].shape[1] <= self._mixing.speakers:
                return other
        return None

    def _row(self, slot: int) -> int:
        return int(np.searchsorted(self._first_slot, slot, side="right")) - 1

    def _span(self, slot: int, where: float) -> tuple[int, int, int]:
        """Row of the split, first and end frame of a slot's chunk, at position `where` (0 to 1) in the slot's range."""
        row = self._row(slot)
        frames, first = int(self._frames[row]), int(self._first_slot[row])
        slots = int(self._first_slot[row + 1]) - first
        if not self._training:
            return row, frames * (slot - first) // slots, frames * (slot - first + 1) // slots
        possible = max(0, frames - self._chunk) + 1
        start = int(possible * (slot - first + where) / slots)
        return row, start, min(start + self._chunk, frames)

    def _sound(self, chunk: _Chunk, rng: np.random.Generator) -> FloatArray:
        """The waveform (N,) of a chunk, with augmented acoustics if configured."""
        hop = self._corpus.data.audio.hop_length
        start, samples = chunk.start * hop, samples_of(self._corpus, chunk.frames)
        waveform_N = self._prepared.cache.waveform(chunk.position, start, start + samples)
        if self._acoustics is None:
            return waveform_N
        speech = int(chunk.activity[0].any(axis=1).sum()) * hop
        return self._acoustics(waveform_N[None], speech, rng)
