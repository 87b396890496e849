"""The `Dataset` protocol: one split of a data set, addressed by position; and collators of other packages.

An entry is a subclass of `Collator`, named by `data.collator`, from an entry point of group `phonate.collators` or a
plug-in file that says `COLLATORS.register("mine", MyCollator)`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from phonate.config.registry import Registry
from phonate.data.store.cache import digest_of

# ------------------------------ The `Dataset` protocol: one split of a data set, addressed by position

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


class Digested(Protocol):
    """A data set that tells what its samples are made from, so that a resumed run can tell whether that is the same."""

    @property
    def digests(self) -> Mapping[str, int]:
        """A digest (64 bits, signed) of each recording, text or the like that samples are made from, by its id: of the
        sound, the texts, the speakers."""
        ...


def digests_of(dataset: Dataset) -> Mapping[str, int]:
    """A digest of whatever the samples of `dataset` are made from; of one that is not `Digested`, of the lengths."""
    known: Mapping[str, int] | None = getattr(dataset, "digests", None)
    if known is not None:
        return known
    return {name: digest_of(int(length)) for name, length in zip(dataset.ids, dataset.lengths, strict=True)}


# ------------------------------------------------------------------------- Collators of other packages

Data = TypeVar("Data", bound=Dataset)


class Collator:
    """Makes batches of the items of `dataset`; as it stands, as the data set itself does."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset

    def __call__(self, items: list[Any]) -> Batch:
        """The batch of `items`, which `dataset.get` returned."""
        return type(self.dataset).collate(self.dataset, items)


COLLATORS: Registry[type[Collator]] = Registry("collator", group="phonate.collators")


def with_collator(dataset: Data, name: str | None) -> Data:
    """`dataset`, whose `collate` is now the collator called `name`. Raises InputError for an unknown name."""
    if name is not None:
        # on the instance, so that training, validation and previews all use it
        dataset.collate = COLLATORS.get(name)(dataset)  # type: ignore[method-assign]
    return dataset
