"""The `Dataset` protocol: one split of a data set, addressed by position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Batch = Mapping[str, Any]
"""What `Dataset.collate` returns: names to tensors (moved to the device) or anything else (left alone)."""


@runtime_checkable
class Dataset(Protocol):
    """One split of a data set, addressed by position."""

    @property
    def ids(self) -> Sequence[str]:
        """A stable, unique name for each sample; it keys the sample's randomness."""
        ...

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The length of each sample in frames: what a batch is capped by and what padding is counted in."""
        ...

    @property
    def frames_per_second(self) -> float | None:
        """Frames in a second of audio, to turn `max_duration` into frames. None: lengths are not of audio, and
        `max_length` is in their unit."""
        ...

    @property
    def cached(self) -> bool:
        """True when `get` only copies memory, so that loader workers would slow it down."""
        ...

    def get(self, index: int, rng: np.random.Generator) -> Any:
        """The sample at `index`. Every random choice comes from `rng`, keyed by (seed, epoch, sample id)."""
        ...

    def collate(self, items: list[Any]) -> Batch:
        """Make a batch of items."""
        ...
