"""A caller's loader as a source of batches that resumes exactly.

The order of the batches is the loader's own. The global generators that it draws from are seeded by (seed, epoch) and
swapped in while it runs, so a loader that shuffles or augments gives the same batches again after a resume, and the
samples that were used are skipped.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sized
from typing import Any

import torch

from phonate.config.errors import InputError
from phonate.config.randomness import derived_seed
from phonate.data.batches.loading import MicroBatch, halves_of
from phonate.data.batches.plan import Consumed
from phonate.training.steps.generators import global_generators, restore_global_generators, seed_global_generators
from phonate.training.task import Batch


class Generators:
    """Global generators of a loader's own: within a block they go on from where its last block left them."""

    def __init__(self, seed: int) -> None:
        outside = global_generators()
        seed_global_generators(seed)
        torch.default_generator.manual_seed(seed)
        self._inside = global_generators()
        restore_global_generators(outside)

    def __enter__(self) -> None:
        self._outside = global_generators()
        restore_global_generators(self._inside)

    def __exit__(self, *_: object) -> None:
        self._inside = global_generators()
        restore_global_generators(self._outside)


class LoaderSource:
    """Batches of a caller's loader, in the loader's own order."""

    max_frames: int | None = None

    def __init__(self, loader: Iterable[Batch], seed: int, split: str) -> None:
        if not isinstance(loader, Sized):
            raise InputError("the loader has no length; give one with a map-style dataset")
        self.loader = loader
        self.seed = seed
        self.split = split
        self._length = len(loader)
        if self._length == 0:
            raise InputError(f"the {split} loader has no batches; with drop_last a small data set gives none")

    def steps(self, epoch: int) -> int:
        """Batches in `epoch`."""
        return self._length

    def epoch(self, epoch: int, consumed: Consumed = ()) -> Iterator[MicroBatch]:
        """The batches after the samples that were consumed, which must be at the beginning of the loader's order.

        A batch of which some were consumed is cut. Raises InputError where that can't be done, and when the loader has
        fewer batches than its length says.
        """
        skipped = sum(count for _, count in consumed)
        for number, batch in enumerate(self._loaded(epoch)):
            items = len(inputs_of(batch))
            used, skipped = min(items, skipped), max(0, skipped - items)
            if used == items:
                continue
            ids = [str(name) for name in batch.get("ids", [])] or [f"{self.split} batch {number}"]
            if used:
                ids = ids[used:] if len(ids) == items else ids
                batch = halves_of(batch, items, used)[1]
            yield MicroBatch(ids, batch, samples=items - used, last=number == self._length - 1)

    def consumed_by(self, epoch: int, batches: int, batch_size: int | None) -> Consumed:
        """What the first `batches` batches of `epoch` had consumed, of as many samples as the loader gives now."""
        return ((None, sum(len(inputs_of(batch)) for batch in itertools.islice(self._loaded(epoch), batches))),)

    def digests(self) -> None:
        """None: what the caller's samples are is not known."""
        return None

    def _loaded(self, epoch: int) -> Iterator[Batch]:
        """The loader's batches in `epoch`. Raises InputError when there are fewer than its length says."""
        parts: tuple[Any, ...] = (
            self.loader,
            getattr(self.loader, "sampler", None),
            getattr(self.loader, "dataset", None),
        )
        for part in parts:
            if hasattr(part, "set_epoch"):
                part.set_epoch(epoch)
        own = Generators(derived_seed(self.seed, self.split, epoch))
        with own:
            batches = iter(self.loader)
        for number in range(self._length):
            with own:
                batch = next(batches, None)
            if batch is None:
                raise InputError(
                    f"the {self.split} loader ended after {number} batches, but its length is {self._length}; "
                    "give a loader whose len() is what it yields"
                )
            yield batch

    def halves(self, planned: MicroBatch, epoch: int) -> tuple[MicroBatch, MicroBatch] | None:
        """The halves of a batch; None where it has one item. Raises InputError where it can't be told apart."""
        batch = planned.batch
        items = len(inputs_of(batch))
        if items < 2:
            return None
        middle = (items + 1) // 2
        names = planned.ids if len(planned.ids) == items else [f"{planned.ids[0]}, item {i}" for i in range(items)]
        first, second = halves_of(batch, items)
        return MicroBatch(names[:middle], first, planned.weight), MicroBatch(names[middle:], second, planned.weight)

    def close(self) -> None:
        """The loader is the caller's."""


def inputs_of(batch: Batch) -> Any:
    """What of a loader's batch goes into the model; its first dimension is the items."""
    return batch["features"] if "features" in batch else batch["mel_spec"]
