"""Training samples that are computed once and reused."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from phonate.config.randomness import generator
from phonate.tasks.diarization.samples.conversations import SimulatedConversations
from phonate.tasks.diarization.samples.item import Item
from phonate.tasks.diarization.samples.pieces import RecordedPieces


class PooledSamples:
    """Training samples of `part`, drawn from a pool of `size`, which does not depend on the training seed.

    Each process computes a sample when it is first drawn and holds it in memory.
    """

    cached = True

    def __init__(self, part: RecordedPieces | SimulatedConversations, size: int, name: str) -> None:
        self._part = part
        self._size = size
        self._name = name
        self._held: dict[int, Item] = {}
        self.count = part.count

    @property
    def ids(self) -> Sequence[str]:
        """Names of samples."""
        return self._part.ids

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Frames of each sample, as of `part`."""
        return self._part.lengths

    def __getstate__(self) -> dict[str, object]:
        """Without the samples held."""
        return {**vars(self), "_held": {}}

    def get(self, number: int, rng: np.random.Generator) -> Item:
        """A sample of the pool, from all parts of which an epoch draws evenly."""
        slot = int((number + rng.random()) * self._size / self.count)
        if slot not in self._held:
            origin = slot * self.count // self._size
            self._held[slot] = self._part.get(origin, generator("pool", self._name, slot))
        return self._held[slot]
