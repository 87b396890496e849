"""Memory while training: watched, freed before it runs out, and recovered from when it has.

Reading the usage is slow (a driver call or a system file), and emptying an allocator's cache is slower. At most batches
`check` therefore only compares clocks. Reads and clean-ups are spaced so that together they take less than 1 % of the
time, whatever they cost on the machine.

Validation batches are split in the same way.

Losses are sums with counts, so the halves of a batch give the gradient of the whole. The failed phase is restarted,
because an interrupted backward pass leaves partial gradients. The sizes that fit are remembered by length, and later
batches of that length are split in advance. A batch is not split if that would change the result (see `Coupling`) or if
other ranks are in the middle of the same gradient exchange; the run then ends.

A model whose forward pass updates statistics (batch normalisation) also updates them in the failed attempt.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import torch

from phonate.compute.device import Usage, out_of_memory, release, usage_of
from phonate.compute.resources import DeviceType
from phonate.compute.system import limit_heap, return_freed_pages
from phonate.config.errors import TrainingError
from phonate.data.loading import MicroBatch
from phonate.training.task import Batch, move

logger = logging.getLogger(__name__)

# ------------------------------------- Monitors memory during training and frees it before it runs out

OUT_OF_MEMORY_ADVICE = (
    "lower training.batch_size or training.max_duration, or set training.mixed_precision=bf16 or "
    "model.checkpoint_segments"
)
"""Advice in out-of-memory messages."""

GB = 1e9


class Pressure(IntEnum):
    """How full memory is."""

    LOW = 0
    MODERATE = 1
    HIGH = 2
    CRITICAL = 3


THRESHOLDS = {
    DeviceType.CUDA: (0.60, 0.75, 0.85),
    # Of the size recommended by Metal, which already reserves memory for the rest of the machine.
    DeviceType.MPS: (0.65, 0.80, 0.90),
    # This memory is shared with everything else on the machine.
    DeviceType.CPU: (0.70, 0.80, 0.90),
}
"""Shares of memory above which pressure is moderate, high and critical."""

SECONDS_BETWEEN_LOOKS = (1.0, 0.5, 0.25, 0.25)
"""By pressure."""
LOOKS_SHARE = 0.002
"""Largest share of the time that reading the usage may take."""
CLEANING_SHARE = 0.005
"""Largest share of the time that clean-ups may take."""
SECONDS_BETWEEN_CLEANUPS = 10.0
SECONDS_BETWEEN_RETURNS = 15.0
"""How often freed pages are returned on a CPU, whatever the pressure: batches of varying lengths fragment the heap,
which would otherwise grow to several times the live memory."""
LONGEST_WAIT = 600.0
"""After a clean-up that freed nothing, the wait is doubled, up to this many seconds."""
WORTH_IT = 0.01
"""Share of memory that a clean-up must free to count as useful."""


def memory_manager(device: torch.device) -> AdaptiveMemoryManager:
    """The manager of a run on `device`. On a GPU, it monitors the host's memory as well; on a CPU, freed memory is
    returned to the system."""
    kind = DeviceType.of(device)
    if kind is DeviceType.CPU:
        limit_heap()
    host = None if kind is DeviceType.CPU else AdaptiveMemoryManager(torch.device("cpu"))
    return AdaptiveMemoryManager(device, host=host)


class AdaptiveMemoryManager:
    """Monitors the memory of `device` and cleans up under pressure.

    At low pressure, freed pages are returned to the system now and then (on a CPU). At moderate pressure memory is read
    more often. At high pressure the allocator's cache is emptied (on a CPU, garbage is collected). At critical pressure
    garbage is also collected, freed pages are returned to the system, and the log gives advice once. A clean-up that
    freed nothing is repeated less and less often; when pressure rises to a higher level, memory is cleaned up at once.

    Args:
        device: The monitored device.
        probe: Reads the memory usage. None: the default of the device.
        clean: Frees memory; called with True if pressure is critical. None: `phonate.compute.device.release`.
        return_pages: Returns freed pages to the system. None: `phonate.compute.system.return_freed_pages` on a CPU.
        clock: Clock in seconds.
        thresholds: Shares as in `THRESHOLDS`. None: those of the device type.
        host: Manager of the host's memory, for a GPU.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        probe: Callable[[], Usage] | None = None,
        clean: Callable[[bool], None] | None = None,
        return_pages: Callable[[], None] | None = None,
        clock: Callable[[], float] = time.perf_counter,
        thresholds: tuple[float, float, float] | None = None,
        host: AdaptiveMemoryManager | None = None,
    ) -> None:
        self.device = device
        self.thresholds = thresholds or THRESHOLDS[DeviceType.of(device)]
        self.pressure = Pressure.LOW
        self.checks = 0
        """Number of calls of `check`."""
        self.looks = 0
        """Number of times the usage was read."""
        self.cleanup_count = 0
        """Number of clean-ups, including emergencies."""
        self.usage = Usage(0.0, 0.0)
        """The latest reading."""
        self._host = host
        self._probe = probe or usage_of(device)
        self._clean = clean or (lambda thorough: release(device, thorough))
        own = return_freed_pages if DeviceType.of(device) is DeviceType.CPU else None
        self._return_pages = return_pages or own
        self._clock = clock
        self._began = clock()
        self._return_due = self._began + SECONDS_BETWEEN_RETURNS
        self._spent = 0.0
        self._look_due = self._began
        self._clean_due = self._began
        self._affordable = self._began
        self._wait = SECONDS_BETWEEN_CLEANUPS
        self._cleaned_at = Pressure.LOW
        """The pressure at the latest clean-up, reset once memory is free again."""
        self._warned = False

    def check(self) -> Pressure:
        """The pressure, read again when due. Called at every batch; takes a fraction of a microsecond."""
        self.checks += 1
        if self._clock() >= self._look_due:
            self._look()
        return self.pressure

    def level(self, share: float) -> Pressure:
        """The pressure for a memory usage from 0 to 1."""
        moderate, high, critical = self.thresholds
        if share > critical:
            return Pressure.CRITICAL
        if share >= high:
            return Pressure.HIGH
        return Pressure.MODERATE if share >= moderate else Pressure.LOW

    def _look(self) -> None:
        started = self._clock()
        self._read()
        looked = self._clock() - started
        if self.pressure is Pressure.LOW and started >= self._affordable:
            self._cleaned_at = Pressure.LOW
        risen = self.pressure > self._cleaned_at
        if self.pressure >= Pressure.HIGH and (risen or started >= self._clean_due):
            if risen:  # a useless clean-up at a lower pressure does not delay this one
                self._wait = SECONDS_BETWEEN_CLEANUPS
            self._clean_up()
        if self.pressure is Pressure.CRITICAL and not self._warned:
            self._warned = True
            logger.warning(
                "memory: %.0f %% of the %.1f GB of %s are in use. To avoid running out of memory, %s",
                100 * self.usage.share,
                self.usage.total / GB,
                self.device,
                OUT_OF_MEMORY_ADVICE,
            )
        if self._return_pages is not None and started >= self._return_due:
            self._return_freed(self._return_pages)
        if self._host is not None:
            self._host.check()
        ended = self._clock()
        self._spent += ended - started
        self._look_due = ended + max(SECONDS_BETWEEN_LOOKS[self.pressure], looked / LOOKS_SHARE)

    def _read(self) -> None:
        self.looks += 1
        self.usage = self._probe()
        self.pressure = self.level(self.usage.share)

    def _return_freed(self, return_pages: Callable[[], None]) -> None:
        started = self._clock()
        return_pages()
        ended = self._clock()
        self._return_due = ended + max(SECONDS_BETWEEN_RETURNS, (ended - started) / CLEANING_SHARE)

    def _clean_up(self) -> None:
        """Free memory, and measure whether that helped."""
        before, started = self.usage, self._clock()
        self._cleaned_at = self.pressure
        self._clean(self.pressure is Pressure.CRITICAL)
        self.cleanup_count += 1
        self._read()
        ended = self._clock()
        helped = before.used - self.usage.used >= WORTH_IT * before.total
        self._wait = SECONDS_BETWEEN_CLEANUPS if helped else min(2 * self._wait, LONGEST_WAIT)
        self._affordable = ended + (ended - started) / CLEANING_SHARE
        self._clean_due = max(ended + self._wait, self._affordable)

    def emergency(self) -> None:
        """Free everything possible at once, after an out-of-memory error."""
        started = self._clock()
        self._clean(True)
        self.cleanup_count += 1
        self._read()
        self._spent += self._clock() - started

    @property
    def overhead_percent(self) -> float:
        """Percent of the time since the start spent in reads and clean-ups."""
        elapsed = self._clock() - self._began
        return 100.0 * self._spent / elapsed if elapsed > 0 else 0.0

    def metrics(self) -> dict[str, float]:
        """Metrics for the trackers."""
        return {
            "memory/pressure": float(self.pressure),
            "memory/cleanup_count": float(self.cleanup_count),
            "memory/cleanup_overhead_percent": self.overhead_percent,
        }


# ------------------------------------ Recovery from out-of-memory errors in a forward or backward pass

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
        self._fitted: dict[str, set[tuple[int, int]]] = {}
        """By phase that has run: numbers of items and lengths of the largest batches that fitted."""

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

    def is_larger(self, phase: str, parts: Sequence[MicroBatchState]) -> bool:
        """Whether one of the micro-batches is larger than all that fitted in this phase, so that memory may run out,
        and could be split then."""
        fitted = self._fitted.get(phase, set())
        return self.forbidden is None and not all(_within(_size(part.planned), fitted) for part in parts)

    def note_fitting(self, phase: str, parts: Sequence[MicroBatchState]) -> None:
        """Note that these micro-batches fitted in this phase; not of its first update, before which the optimizer has
        no state."""
        fitted = self._fitted.get(phase)
        if fitted is None:
            self._fitted[phase] = set()
            return
        for size in (_size(part.planned) for part in parts):
            if not _within(size, fitted):
                self._fitted[phase] = fitted = {one for one in fitted if not _within(one, {size})} | {size}

    def state(self) -> dict[str, list[tuple[int, int]]]:
        """What fitted, by phase."""
        return {phase: sorted(sizes) for phase, sizes in self._fitted.items()}

    def restore(self, state: Mapping[str, Sequence[Sequence[int]]]) -> None:
        """Take what fitted before."""
        self._fitted = {phase: {(items, length) for items, length in sizes} for phase, sizes in state.items()}

    def halves(
        self, part: MicroBatchState, step: int, split: Split | None = None, forbidden: str | None = None
    ) -> list[MicroBatchState]:
        """The halves of a micro-batch that did not fit; `split` as in `load`. Raises TrainingError if it has none, or
        if splitting is `forbidden` for a reason."""
        planned, means, whole = part.planned, part.means, part.whole or part.planned.ids
        del part  # also frees its tensors on the device
        if self.memory is not None:
            self.memory.emergency()
        else:
            release(self.device)
        if (forbidden := self.forbidden or forbidden) is not None:
            raise TrainingError(
                f"{_ran_out(step, planned.ids)}. The batch can't be split: {forbidden}. "
                f"{OUT_OF_MEMORY_ADVICE.capitalize()}"
            )
        split = split or self.split
        assert split is not None
        halves = split(planned)
        if halves is None:
            raise TrainingError(
                f"{_ran_out(step, planned.ids)}, and the batch is a single item; leave out long ones "
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


def _size(planned: MicroBatch) -> tuple[int, int]:
    """Items and length."""
    return items_of(planned), length_of(planned.batch)


def _within(size: tuple[int, int], others: set[tuple[int, int]]) -> bool:
    """Whether one of `others` has as many items of as great a length."""
    return any(size[0] <= items and size[1] <= length for items, length in others)


def _is_padded(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > 1


def _ran_out(step: int, ids: Sequence[str]) -> str:
    shown = ", ".join(ids[:8]) + (f" and {len(ids) - 8} more" if len(ids) > 8 else "")
    return f"out of memory at step {step + 1} (batch: {shown})"  # as it is counted in the log


def memory_error(error: BaseException, step: int) -> TrainingError | None:
    """The error for running out of memory outside of a batch (optimizer state, a task's own metrics), when `step` steps
    were done; else None."""
    if not out_of_memory(error):
        return None
    words = " ".join(str(error).split())
    return TrainingError(f"out of memory after step {step} ({words}): {OUT_OF_MEMORY_ADVICE}")
