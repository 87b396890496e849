"""Features that no file keeps: computed from the cached waveform when they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phonate.audio.decoding import FloatArray
from phonate.data.features import Features
from phonate.data.features._base import Frames
from phonate.data.store.cache import FeatureCache
from phonate.data.store.index import Index


class Unstored(Features):
    """What is written in the place of `features` that are computed when they are read: frames of no values."""

    def __init__(self, features: Features) -> None:
        self.audio = features.audio
        self.normalises_level = features.normalises_level
        self._features = features

    @property
    def width(self) -> int:
        """0."""
        return 0

    @property
    def fingerprint(self) -> str:
        """Waveforms and frames; the features themselves may change."""
        return self._features.framing

    def frames(self, samples: int) -> int:
        """As many as the features have."""
        return self._features.frames(samples)

    def compute(self, waveform_N: FloatArray) -> Frames:
        """(T, 0)."""
        return np.zeros((self.frames(len(waveform_N)), 0), dtype=self.dtype)

    def compute_blocks(self, read: Callable[[], Iterable[FloatArray]]) -> Iterator[Frames]:
        """(T, 0)."""
        yield np.zeros((self.frames(sum(len(block) for block in read())), 0), dtype=self.dtype)


class ComputedFeatures(FeatureCache):
    """A cache of waveforms whose features are computed when they are read, and equal those of a cache with features."""

    def __init__(self, folder: Path, index: Index, features: Features, hold: bool) -> None:
        """`hold`: whether the features of a recording that was read are held in memory."""
        super().__init__(folder, index)
        self.width, self.dtype = features.width, features.dtype
        self.computes = not hold
        self._features_of = features
        self._ids = index.id
        self._hold = hold
        self._held: dict[int, NDArray[Any]] = {}

    def __getstate__(self) -> dict[str, object]:
        """Without what is held."""
        return {**super().__getstate__(), "_held": {}}

    def _map_features(self) -> NDArray[Any]:
        return np.zeros((self._frame_start[-1], 0), dtype=self.dtype)

    def features(self, position: int, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """(frames, width) the clean features, or a part of them; must not be written to."""
        count = self._frame_start[position + 1] - self._frame_start[position]
        last = count if stop is None else min(stop, count)
        if not self._hold:
            return self._computed(position, start, last)
        if position not in self._held:
            self._held[position] = self._computed(position, 0, count)
        return self._held[position][start:last]

    def _computed(self, position: int, first: int, last: int) -> NDArray[Any]:
        samples = self._sample_start[position + 1] - self._sample_start[position]
        mine = self._features_of.of_recording(self._ids[position])
        return mine.part(partial(self.waveform, position), samples, first, last)
