"""When memory runs out in a forward or backward pass: the same batch in smaller parts, with the same gradient.

Losses are sums with counts, so a batch in halves has the gradient of the whole one; nothing is skipped and the step
stays the step. The phase that failed is begun anew, because a backward pass that breaks off leaves some gradients
behind. Batches are not split where that would change what is learnt (a loss that couples items) or where other ranks
are in the middle of the same exchange of gradients: there the run ends with what to change.

A model whose forward pass moves statistics (batch normalisation) moves them in the failed attempt too.
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

log = logging.getLogger("phonate")

Split = Callable[[MicroBatch], tuple[MicroBatch, MicroBatch] | None]
"""Halves of a micro-batch; None when it has one item only."""


@dataclass
class MicroBatchState:
    """A micro-batch on its way through the phases of a step."""

    planned: MicroBatch
    batch: Batch
    """On the device."""
    begun: bool = False
    """The callbacks have seen it before its first forward pass."""
    told: bool = False
    """The callbacks have its means."""
    means: dict[str, float] = field(default_factory=dict)
    """What phases of this step have found of it."""
    whole: Sequence[str] = ()
    """The ids of the micro-batch that this is a part of, where it was split."""


class Recovery:
    """Splits what did not fit into memory.

    Args:
        device: Where it ran out.
        split: Halves a micro-batch. None: nobody can.
        forbidden: Why a batch can't be split at all. None: it can.
        memory: Cleans up, and counts it.
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
        self.forbidden = forbidden if split is not None else "its source can't say which items it holds"
        self.memory = memory
        self.count = 0
        """Batches that were split, so far."""

    def halves(self, part: MicroBatchState, step: int) -> list[MicroBatchState]:
        """The halves of a micro-batch that did not fit. Raises TrainingError where it can't be split."""
        planned, means, whole = part.planned, part.means, part.whole or part.planned.ids
        del part  # and what it has on the device
        if self.memory is not None:
            self.memory.emergency()
        else:
            release(self.device)
        if self.forbidden is not None:
            raise TrainingError(
                f"{ran_out(step, planned.ids)}. The batch can't be computed in parts: {self.forbidden}. "
                f"{OUT_OF_MEMORY_ADVICE.capitalize()}; the last checkpoint is intact"
            )
        assert self.split is not None
        halves = self.split(planned)
        if halves is None:
            raise TrainingError(
                f"{ran_out(step, planned.ids)}, and that is a single item. Leave long recordings out "
                f"(data.audio.max_seconds), or {OUT_OF_MEMORY_ADVICE}; the last checkpoint is intact"
            )
        return [MicroBatchState(half, move(half.batch, self.device), means=dict(means), whole=whole) for half in halves]

    def warn(self, step: int, parts: Sequence[MicroBatchState]) -> None:
        """Say of each micro-batch that was split what did fit."""
        sizes: dict[tuple[str, ...], list[int]] = {}
        for part in parts:
            if part.whole:
                sizes.setdefault(tuple(part.whole), []).append(len(part.planned.ids))
        self.count += len(sizes)
        for whole, fitting in sizes.items():
            log.warning(
                "%s; it was computed in %d parts of at most %d items, with the same gradient. To save the failed "
                "attempts, %s",
                ran_out(step, whole),
                len(fitting),
                max(fitting),
                OUT_OF_MEMORY_ADVICE,
            )


def ran_out(step: int, ids: Sequence[str]) -> str:
    """Which batch memory had no room for."""
    shown = ", ".join(ids[:8]) + (f" and {len(ids) - 8} more" if len(ids) > 8 else "")
    return f"out of memory at step {step} (batch: {shown})"


def told_as_mistake(error: BaseException, step: int) -> TrainingError | None:
    """The error for memory that ran out elsewhere than in a batch (an optimizer's state, a validation); else None."""
    if not out_of_memory(error):
        return None
    words = " ".join(str(error).split())
    return TrainingError(
        f"out of memory at step {step} ({words}): {OUT_OF_MEMORY_ADVICE}; the last checkpoint is intact"
    )
