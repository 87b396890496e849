"""Samples that are whole recordings: what the tasks that take them whole have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from phonate.data.store.prepared import Prepared


class WholeRecordings:
    """Some recordings of a corpus by number: all of `data.batches.dataset.Dataset` but the samples themselves."""

    def __init__(self, prepared: Prepared, positions: Sequence[int], frames_per_second: float) -> None:
        self.prepared = prepared
        self.positions = positions
        """Positions of the recordings in the corpus."""
        self.frames_per_second = frames_per_second
        """Mel frames in a second."""

    @property
    def ids(self) -> Sequence[str]:
        """Ids of recordings."""
        return [self.prepared.index.id[position] for position in self.positions]

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Frames of each recording."""
        return np.asarray(self.prepared.index.frames[self.positions], dtype=np.int64)

    @property
    def digests(self) -> Mapping[str, int]:
        """See `Digested`: of the recordings."""
        return self.prepared.digests(self.positions)

    @property
    def cached(self) -> bool:
        """Nothing is computed for a sample that takes long."""
        return True


def padded(arrays: Sequence[NDArray[Any]]) -> torch.Tensor:
    """(B, longest, ...) of arrays (length, ...), zeros after their ends."""
    out = np.zeros((len(arrays), max(map(len, arrays)), *arrays[0].shape[1:]), dtype=arrays[0].dtype)
    for row, array in zip(out, arrays, strict=True):
        row[: len(array)] = array
    return torch.from_numpy(out)
