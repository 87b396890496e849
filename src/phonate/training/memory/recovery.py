"""Recovery from out-of-memory errors in a forward or backward pass: the batch is split, with the same gradient.

Validation batches are split in the same way.

Losses are sums with counts, so the halves of a batch give the gradient of the whole. The failed phase is restarted,
because an interrupted backward pass leaves partial gradients. The sizes that fit are remembered by length, and later
batches of that length are split in advance. A batch is not split if that would change the result (see `Coupling`) or if
other ranks are in the middle of the same gradient exchange; the run then ends.

A model whose forward pass updates statistics (batch normalisation) also updates them in the failed attempt.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from phonate.compute.memory import out_of_memory, release
from phonate.config.errors import TrainingError
from phonate.data.batches.loading import MicroBatch
from phonate.training.memory.manager import OUT_OF_MEMORY_ADVICE, AdaptiveMemoryManager
from phonate.training.task import Batch, move

logger = logging.getLogger(__name__)

Split = Callable[[MicroBatch], tuple[MicroBatch, MicroBatch] | None]
"""Halves of a micro-batch; None when it has only one item."""


@dataclass
class MicroBatchState:
    """State of a micro-batch during the phases of a step."""

    planned: MicroBatch
    batch: Batch
    """The batch on the device."""
    begun: bool = False
    """The callbacks' `on_batch_begin` has run."""
    reported: bool = False
    """The callbacks' `on_batch_end` has run."""
    means: dict[str, float] = field(default_factory=dict)
    """Means of the loss terms in the phases so far."""
    whole: Sequence[str] = ()
    """After a split: the ids of the whole micro-batch."""

    def begin(self, hooks: Sequence[Callable[[Batch], None]]) -> None:
        """Run `hooks` on the first call only."""
        if not self.begun:
            self.begun = True
            for hook in hooks:
                hook(self.batch)


class Recovery:
    """Splits micro-batches that do not fit into memory.

    Args:
        device: The device.
        split: Splits a micro-batch into halves. None: not supported by the data source.
        forbidden: Reason why batches can't be split. None: they can.
        memory: Memory manager, which frees memory and counts how often.
    """

    def __init__(
        self,
        device: torch.device,
        split: Split | None = None,
        forbidden: str | None = None,
        memory: AdaptiveMemoryManager | None = None,
    ) -> None:
        self.device = device
        self.split = split
        self.forbidden = forbidden if split is not None else "the data source does not give the ids of its items"
        self.memory = memory
        self._limits: dict[int, int] = {}
        """Length of a batch -> how many items of that length fit."""

    def load(self, group: Sequence[MicroBatch], split: Split | None = None) -> list[MicroBatchState]:
        """The micro-batches on the device, split if they are known not to fit; by `split` where they are not of the
        training data."""
        if self._limits:
            group = [part for planned in group for part in self._fitting(planned, split or self.split)]
        return [MicroBatchState(planned, move(planned.batch, self.device)) for planned in group]

    def _fitting(self, planned: MicroBatch, split: Split | None) -> list[MicroBatch]:
        assert split is not None
        if items_of(planned) <= self._limit(length_of(planned.batch)) or (halves := split(planned)) is None:
            return [planned]
        return [part for half in halves for part in self._fitting(half, split)]

    def _limit(self, length: int) -> float:
        """Known number of items that fit into a batch of `length`."""
        return min((items for known, items in self._limits.items() if known <= length), default=float("inf"))

    def halves(self, part: MicroBatchState, step: int, split: Split | None = None) -> list[MicroBatchState]:
        """The halves of a micro-batch that did not fit; `split` as in `load`. Raises TrainingError if it has none."""
        planned, means, whole = part.planned, part.means, part.whole or part.planned.ids
        del part  # also frees its tensors on the device
        if self.memory is not None:
            self.memory.emergency()
        else:
            release(self.device)
        if self.forbidden is not None:
            raise TrainingError(
                f"{_ran_out(step, planned.ids)}. The batch can't be split: {self.forbidden}. "
                f"{OUT_OF_MEMORY_ADVICE.capitalize()}"
            )
        split = split or self.split
        assert split is not None
        halves = split(planned)
        if halves is None:
            raise TrainingError(
                f"{_ran_out(step, planned.ids)}, and the batch is a single item. Exclude long recordings "
                f"(data.audio.max_seconds), or {OUT_OF_MEMORY_ADVICE}"
            )
        return [MicroBatchState(half, move(half.batch, self.device), means=dict(means), whole=whole) for half in halves]

    def learn(self, step: int, parts: Sequence[MicroBatchState]) -> None:
        """Remember the sizes that fit for each micro-batch split in this step, and log them."""
        wholes: dict[tuple[str, ...], list[MicroBatchState]] = {}
        for part in parts:
            if part.whole:
                wholes.setdefault(tuple(part.whole), []).append(part)
        for whole, fitting in wholes.items():
            length = max(length_of(part.planned.batch) for part in fitting)
            items = max(items_of(part.planned) for part in fitting)
            first, self._limits[length] = not self._limits, items
            logger.warning(
                "%s; it was computed in %d parts of at most %d items, with the same gradient. Later batches of this "
                "length (%d) will be split in the same way.%s",
                _ran_out(step, whole),
                len(fitting),
                items,
                length,
                f" To avoid that, {OUT_OF_MEMORY_ADVICE}" if first else "",
            )


def items_of(planned: MicroBatch) -> int:
    """Items in a micro-batch: its number of ids or, if the loader gives none, of rows of its tensors."""
    if len(planned.ids) > 1:
        return len(planned.ids)
    return max((len(value) for value in planned.batch.values() if _is_padded(value)), default=1)


def length_of(batch: Batch) -> int:
    """The padded length of a batch: the largest second dimension of its tensors."""
    return max((value.shape[1] for value in batch.values() if _is_padded(value)), default=1)


def _is_padded(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > 1


def _ran_out(step: int, ids: Sequence[str]) -> str:
    shown = ", ".join(ids[:8]) + (f" and {len(ids) - 8} more" if len(ids) > 8 else "")
    return f"out of memory at step {step} (batch: {shown})"


def memory_error(error: BaseException, step: int) -> TrainingError | None:
    """The error for running out of memory outside of a batch (optimizer state, a task's own metrics); else None."""
    if not out_of_memory(error):
        return None
    words = " ".join(str(error).split())
    return TrainingError(f"out of memory at step {step} ({words}): {OUT_OF_MEMORY_ADVICE}")
