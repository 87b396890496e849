"""Batches in the planned order, from any position of an epoch on, with or without worker processes."""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import logging
import multiprocessing
import os
import shutil
import signal
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch.utils.data

from phonate.compute.device import out_of_memory
from phonate.compute.system import ignore_console
from phonate.config.errors import DataError, InputError, PhonateError, TrainingError
from phonate.config.randomness import generator
from phonate.data.batches import (
    Batch,
    Consumed,
    Dataset,
    Indices,
    SamplePreview,
    Streams,
    digests_of,
    epoch_plan,
    lanes,
    parts_by_length,
    slice_for,
    unit_counts,
)

logger = logging.getLogger(__name__)


NO_SAMPLE = -1
"""In place of the position of a sample: none is being loaded."""


@dataclass(frozen=True)
class LeftOut:
    """A sample without which a batch was made."""

    id: str
    reason: str


@dataclass(frozen=True)
class MicroBatch:
    """A micro-batch as one rank computes it."""

    ids: list[str]
    batch: Batch
    weight: float = 1.0
    """0 on a rank that got no items: it computes a placeholder that must not count."""
    planned: int = 1
    """How many micro-batches of the plan are done after it: 0 where it is a part of one and others follow."""
    samples: int = 0
    """How many samples, of all ranks, are consumed after it: likewise."""
    last: bool = False
    """Whether the epoch ends with it."""
    counts: Mapping[str, float] | None = None
    """How many it has of each unit that loss terms name (see `UnitCounts`). None: the data set does not count."""
    left_out: tuple[LeftOut, ...] = ()
    """Samples that belong to it and could not be loaded."""

    def pin_memory(self) -> MicroBatch:
        """The same with its tensors in page-locked memory. torch's loader calls this."""
        batch = {k: v.pin_memory() if isinstance(v, torch.Tensor) else v for k, v in self.batch.items()}
        return replace(self, batch=batch)


class PlannedBatches(torch.utils.data.Dataset[list[MicroBatch]]):
    """Micro-batches addressed by (epoch, position in the plan); each is `merged` of the plan's, from there on.

    It comes as a list of one or, with `by_length`, of parts of similar length.
    """

    def __init__(
        self,
        samples: Dataset,
        seed: int,
        batch_size: int,
        max_frames: int | None,
        rank: int,
        world_size: int,
        multiple: int = 1,
        merged: int = 1,
        by_length: bool = False,
        tolerant: bool = False,
    ) -> None:
        """`tolerant`: whether batches are made without samples that can't be loaded."""
        self.samples = samples
        self.by_length = by_length
        self.tolerant = tolerant
        self.unusable: dict[str, str] = {}
        """Samples that are not even tried, and why."""
        self.at = NO_SAMPLE
        """Position of the sample that this process loads."""
        self.note: Callable[[int], None] | None = None
        """Called with it too, in a worker."""
        self.multiple = multiple
        self.merged = merged
        self.ids = samples.ids
        self.lengths = np.asarray(samples.lengths)
        self.seed = seed
        self.batch_size = batch_size
        self.max_frames = max_frames
        self.rank = rank
        self.world_size = world_size
        self.streams: Streams | None = getattr(samples, "streams", None)
        self._positions: dict[str, int] = {}
        self._resumed: tuple[int, Consumed] = (0, ())
        self._check()
        # Two epochs: the current one, and the next for workers that run ahead.
        self.plan = functools.lru_cache(maxsize=2)(self._plan)
        self._ranks = functools.lru_cache(maxsize=2)(self._ranks_of)

    def _check(self) -> None:
        """Raise DataError for a sample that fits into no batch, before the first step."""
        if not len(self.ids):
            raise DataError("there are no samples to make batches of; look at the corpus with `phonate data check`")
        longest = int(self.lengths.argmax())
        if self.max_frames is not None and int(self.lengths[longest]) > self.max_frames:
            rate = self.samples.frames_per_second
            if rate is None:
                raise DataError(
                    f"training.max_length: a batch of {self.max_frames} can't hold sample {self.ids[longest]} of "
                    f"length {self.lengths[longest]}; raise it"
                )
            seconds, allowed = int(self.lengths[longest]) / rate, self.max_frames / rate
            raise DataError(
                f"training.max_duration: a batch of {allowed:.2f} s can't hold sample {self.ids[longest]} of "
                f"{seconds:.2f} s; raise it, or leave long recordings out with data.audio.max_seconds"
            )

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in {"plan", "_ranks"}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.plan = functools.lru_cache(maxsize=2)(self._plan)
        self._ranks = functools.lru_cache(maxsize=2)(self._ranks_of)

    def resume(self, epoch: int, consumed: Consumed) -> bool:
        """Leave what was consumed out of the plan of `epoch`; whether that changes it."""
        resumed, before = self._resumed
        if consumed == (before if epoch == resumed else ()):
            return False
        self._resumed = epoch, consumed
        self.plan.cache_clear()
        return True

    def _plan(self, epoch: int) -> list[Indices]:
        size = self.batch_size if self.max_frames is None else None
        resumed, consumed = self._resumed
        consumed = consumed if epoch == resumed else ()
        return epoch_plan(
            self.seed,
            epoch,
            self.lengths,
            batch_size=size,
            max_frames=self.max_frames,
            consumed=consumed,
            streams=self.streams,
        )

    def _ranks_of(self, epoch: int) -> Indices:
        """(S,) the rank that reads each shard in `epoch`."""
        assert self.streams is not None
        lane_S, _ = lanes(self.seed, epoch, self.streams.shard)
        return np.asarray(lane_S % self.world_size)

    def _mine(self, epoch: int, position: int) -> tuple[Indices, Indices]:
        """The global batch at a position of the plan, and the part of it that this rank computes."""
        batch = np.concatenate(self.plan(epoch)[position : position + self.merged])
        if self.streams is None:
            return batch, slice_for(batch, self.rank, self.world_size)
        return batch, batch[self._ranks(epoch)[self.streams.shard[batch]] == self.rank]

    def _placeholder(self, epoch: int, position: int) -> Indices:
        """A sample for a rank that has none in a batch: of shards, one of its own that is near."""
        plan = self.plan(epoch)
        if self.streams is None:
            return np.asarray(plan[position][:1])
        order = np.concatenate([*plan[position::-1], *plan[position:]])
        own = order[self._ranks(epoch)[self.streams.shard[order]] == self.rank]
        if not len(own):
            raise DataError(
                f"the shards can't be divided among {self.world_size} processes; write more of them with "
                "`phonate data prepare --shards`"
            )
        return np.asarray(own[:1])

    def __getitem__(self, where: tuple[int, int]) -> list[MicroBatch]:
        epoch, position = where
        plan = self.plan(epoch)
        merged = plan[position : position + self.merged]
        batch, mine = self._mine(epoch, position)
        weight = 1.0
        items, left_out = self._items(mine, epoch)
        if not items:
            weight = 0.0
            items = self._placeholder_items(epoch, position)
        mine = np.array([*items], dtype=np.int64)
        if self.streams is not None and position + self.merged < len(plan):
            self.samples.expect(self._mine(epoch, position + self.merged)[1].tolist())  # type: ignore[attr-defined]
        lengths = -(-self.lengths[mine] // self.multiple) * self.multiple
        each = 1 if self.multiple == 1 else PART_ITEMS
        parts = [mine[part] for part in parts_by_length(lengths, each)] if self.by_length else [mine]
        *before, last = (self._part(part, [items[int(i)] for i in part], weight) for part in parts)
        ends = position + len(merged) == len(plan)
        last = replace(last, planned=len(merged), samples=len(batch), last=ends, left_out=tuple(left_out))
        return [*(replace(part, planned=0) for part in before), last]

    def _placeholder_items(self, epoch: int, position: int) -> dict[int, Any]:
        """The first sample that can be loaded, from the one on that stands in where a rank has none."""
        items, left_out = self._items(self._placeholder(epoch, position), epoch)
        if not items and self.streams is None:
            plan = self.plan(epoch)
            for index in np.concatenate([*plan[position:], *plan[:position]]):
                items, _ = self._items(index[None], epoch)
                if items:
                    break
        if not items:
            raise DataError(f"sample {left_out[0].id}: {left_out[0].reason}; no other sample could take its place")
        return items

    def halves(self, planned: MicroBatch, epoch: int) -> tuple[MicroBatch, MicroBatch] | None:
        """`planned`, a micro-batch of `epoch`, as two of half the items, the same to the bit; None where it has one.

        Items are loaded again: what is random about them follows from seed, epoch and id.
        """
        if len(planned.ids) < 2:
            return None
        middle = (len(planned.ids) + 1) // 2
        positions = [self._position(name) for name in planned.ids]
        parts = positions[:middle], positions[middle:]
        first, second = (self._part(part, [self._item(i, epoch) for i in part], planned.weight) for part in parts)
        return first, second

    def alone(self, name: str, epoch: int) -> MicroBatch:
        """The sample `name` as a micro-batch of its own."""
        position = self._position(name)
        return self._part([position], [self._item(position, epoch)], 1.0)

    def preview(self, name: str, epoch: int) -> SamplePreview:
        """The sample `name` for people."""
        preview = getattr(self.samples, "preview", None)
        return SamplePreview() if preview is None else preview(self._position(name), generator(self.seed, epoch, name))

    def _position(self, name: str) -> int:
        if not self._positions:
            self._positions.update({name: i for i, name in enumerate(self.ids)})
        return self._positions[name]

    def _part(self, positions: Sequence[int] | Indices, items: list[Any], weight: float) -> MicroBatch:
        """The samples at `positions`, which are `items`, as a micro-batch."""
        batch = padded_to(self.samples.collate(items), self.multiple)
        return MicroBatch([self.ids[i] for i in positions], batch, weight, counts=unit_counts(self.samples, batch))

    def _items(self, positions: Indices, epoch: int) -> tuple[dict[int, Any], list[LeftOut]]:
        """The samples by position, and those that are left out. Raises DataError where none may be."""
        items: dict[int, Any] = {}
        left_out: list[LeftOut] = []
        for index in positions.tolist():
            name = self.ids[index]
            if name in self.unusable:
                left_out.append(LeftOut(name, self.unusable[name]))
                continue
            try:
                items[index] = self._item(index, epoch)
            except DataError as error:
                if not self.tolerant:
                    raise
                left_out.append(LeftOut(name, str(error)))
        return items, left_out

    def _item(self, index: int, epoch: int) -> Any:
        name = self.ids[index]
        self.at = index
        if self.note is not None:
            self.note(index)
        try:
            return self.samples.get(index, generator(self.seed, epoch, name))
        except (PhonateError, OSError, ValueError, RuntimeError, MemoryError) as error:
            if isinstance(error, PhonateError) and name in str(error):
                raise
            if out_of_memory(error):
                raise TrainingError(
                    f"memory ran out while sample {name} was loaded ({' '.join(str(error).split())}); lower "
                    "training.performance.num_workers or training.batch_size"
                ) from error
            raise DataError(f"sample {name}: {' '.join(str(error).split())}") from error
        except Exception as error:
            error.add_note(f"while sample {name} was loaded")
            raise


def accumulation_groups(planned: Iterator[MicroBatch], times: int) -> Iterator[list[MicroBatch]]:
    """The micro-batches `planned` for an epoch, grouped by optimizer step; the last step may have fewer.

    `times`: how many micro-batches of the plan a step has. One that stands for several counts as so many.
    """
    group: list[MicroBatch] = []
    for one in planned:
        group.append(one)
        if sum(member.planned for member in group) >= times:
            yield group
            group = []
    if group:
        yield group


PART_ITEMS = 4
"""Where batches are padded to few shapes, parts of them by length have a multiple of so many items."""
SHIM_TOKENS = 16
"""Where batches are padded to few shapes, tokens are to multiples of this."""


def padded_to(batch: Batch, multiple: int) -> Batch:
    """`batch` with its frames padded by zeros up to a multiple of `multiple`, and its tokens up to one of
    SHIM_TOKENS, so that few shapes occur.

    Only for batches that say their `lengths`: frames are the second dimension of each tensor that is as long there as
    the longest of them. Tokens are that of tensors as long as the longest of `token_lengths`.
    """
    if multiple == 1 or "lengths" not in batch:
        return batch
    multiples = {"token_lengths": SHIM_TOKENS, "lengths": multiple}
    missing = {}
    for name, each in multiples.items():
        if name in batch:
            longest = int(max(batch[name]))
            missing[longest] = -longest % each

    def padded(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.dim() < 2 or value.shape[1] not in missing:
            return value
        return torch.nn.functional.pad(value, (*([0, 0] * (value.dim() - 2)), 0, missing[value.shape[1]]))

    return {name: padded(value) for name, value in batch.items()}


def halves_of(batch: Batch, items: int, middle: int | None = None) -> tuple[Batch, Batch]:
    """Split a collated batch of `items` items in two, before item `middle`, for loaders that give no access to theirs.

    Values of length `items` are cut; scalars, strings and None go into both. Raises InputError for
    anything else: a list or tensor of another length may be about all items together.
    """
    middle = (items + 1) // 2 if middle is None else middle
    first, second = {}, {}
    for name, value in batch.items():
        single = not hasattr(value, "__len__") or isinstance(value, str) or getattr(value, "ndim", 1) == 0
        if not single and (isinstance(value, Mapping) or len(value) != items):
            raise InputError(f"the batch's {name!r} is not one entry for each of its {items} items")
        first[name], second[name] = (value, value) if single else (value[:middle], value[middle:])
    return first, second


class BatchSource:
    """The micro-batches of every epoch, as one rank computes them.

    The result is the same whatever the number of workers. `max_frames` makes batches by length instead of by
    `batch_size`. `pin_memory` has a meaning on machines with CUDA only. One epoch is read at a time. `merged`
    micro-batches of the plan are computed as one; `steps` counts those of the plan all the same.
    With `by_length` a micro-batch of short and long samples comes in parts of similar length.
    """

    def __init__(
        self,
        samples: Dataset,
        *,
        seed: int,
        batch_size: int,
        max_frames: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        num_workers: int = 0,
        prefetch_factor: int = 2,
        persistent_workers: bool = True,
        pin_memory: bool = False,
        multiple: int = 1,
        merged: int = 1,
        by_length: bool = False,
        tolerant: bool = False,
        stuck_seconds: float = 0.0,
    ) -> None:
        self._batches = PlannedBatches(
            samples, seed, batch_size, max_frames, rank, world_size, multiple, merged, by_length, tolerant
        )
        self._stuck_seconds = stuck_seconds
        self._watch: Watch | None = None
        self._patience: _Patience | None = None
        self._deaths: Counter[str] = Counter()
        self.merged = merged
        self.max_frames = max_frames
        self._workers = num_workers
        self._prefetch = prefetch_factor
        self._persistent = persistent_workers
        self._pin = pin_memory and torch.cuda.is_available()
        self._stream: Iterator[list[MicroBatch] | PhonateError] | None = None
        self._next: tuple[int, int] | None = None
        self._computed = False

    def steps(self, epoch: int) -> int:
        """Micro-batches in `epoch`; in a resumed one those that remain."""
        return len(self._batches.plan(epoch))

    def consumed_by(self, epoch: int, batches: int, batch_size: int | None) -> Consumed:
        """What `batches` micro-batches of `epoch` had consumed, each of `batch_size` samples (None: as now)."""
        if self.max_frames is None:
            return ((None, batches * (batch_size or self._batches.batch_size)),)
        return ((self.max_frames, sum(map(len, self._batches.plan(epoch)[:batches]))),)

    def digests(self) -> Mapping[str, int]:
        """A digest of everything that samples are made from, by its id."""
        return digests_of(self._batches.samples)

    def preview(self, name: str, epoch: int) -> SamplePreview:
        """The sample `name` for people, as it is in `epoch`; without text and sound where the data set shows none."""
        return self._batches.preview(name, epoch)

    def alone(self, name: str, epoch: int) -> MicroBatch:
        """The sample `name` of `epoch` as a micro-batch of its own."""
        return self._batches.alone(name, epoch)

    def padding(self, epoch: int) -> float:
        """The share of padding in the frames of all micro-batches of `epoch`."""
        lengths = [self._batches.lengths[batch] for batch in self._batches.plan(epoch)]
        padded = sum(len(batch) * int(batch.max()) for batch in lengths)
        return 1.0 - sum(int(batch.sum()) for batch in lengths) / max(padded, 1)

    def halves(self, planned: MicroBatch, epoch: int) -> tuple[MicroBatch, MicroBatch] | None:
        """The halves of a micro-batch of `epoch`; None where it has one item."""
        return self._batches.halves(planned, epoch)

    def epoch(self, epoch: int, consumed: Consumed = ()) -> Iterator[MicroBatch]:
        """The micro-batches of what remains of `epoch` when `consumed` of it is done."""
        if self._batches.resume(epoch, consumed):
            self.close()  # workers have the plan as it was
        end = self.steps(epoch)
        if self._workers == 0:
            for position in range(0, end, self.merged):
                for part in self._batches[epoch, position]:
                    yield part.pin_memory() if self._pin else part
            return
        # Persistent workers run on into the next epoch, unless the caller jumps.
        if self._next != (epoch, 0):
            if end and not self._computed:
                # Features that a data set computes on first use are computed here, on all cores, and inherited by
                # the workers, which are daemons and may not start processes themselves.
                self._batches[epoch, 0]
                self._computed = True
            self._start(epoch, 0)
        try:
            for position in range(0, end, self.merged):
                assert self._next == (epoch, position), "another epoch was begun, or the source closed"
                self._next = None
                planned = self._micro_batch(epoch, position)
                after = position + self.merged
                self._next = (epoch, after) if after < end else (epoch + 1, 0)
                yield from planned
        finally:
            if not self._persistent:
                self.close()

    def loading(self) -> str:
        """The sample that this process loads or has loaded last; empty where others do."""
        at = self._batches.at
        return "" if self._workers or at == NO_SAMPLE else self._batches.ids[at]

    def leave_out(self, samples: Mapping[str, str]) -> None:
        """Make batches without these samples: why, by id."""
        self._batches.unusable.update(samples)

    def _start(self, epoch: int, position: int) -> None:
        """Begin to load in worker processes from there on."""
        self.close()
        self._watch = Watch(self._workers)
        last = None if self._persistent else epoch + 1
        with _without_torchs_handler():
            self._stream = iter(self._loader(_Positions(self, epoch, position, last), self._watch))
        if self._stuck_seconds:
            self._patience = _Patience(self._watch, self._stuck_seconds)
        self._next = epoch, position

    def _micro_batch(self, epoch: int, position: int) -> list[MicroBatch]:
        """The micro-batch at a position of the plan, in its parts. A worker that dies or is stuck is replaced once; the
        second time, the sample that it was at is left out, or is an error."""
        while True:
            try:
                return self._received()
            except _WorkerLostError as lost:
                self._blame(lost)
            self._start(epoch, position)
            self._next = None

    def _blame(self, lost: _WorkerLostError) -> None:
        """Note at which samples workers were lost. Raises DataError where they can't be left out."""
        names = [self._batches.ids[index] for index in lost.at]
        where = f" at sample {', '.join(names)}" if names else ""
        self._deaths.update(names or [""])
        again = [name for name in names or [""] if self._deaths[name] > 1]
        if not again:
            logger.warning("%s%s; its work is begun again", lost, where)
            return
        if not (names and self._batches.tolerant):
            raise DataError(
                f"{lost}{where}, for the second time; if memory ran out, lower training.performance.num_workers; leave "
                "the recording out, or let up to so many be left out with training.quarantine"
            ) from lost
        self.leave_out(dict.fromkeys(again, f"{lost}, twice"))

    def _received(self) -> list[MicroBatch]:
        """The next micro-batch from the workers, in its parts; raises the error that they met."""
        assert self._stream is not None
        try:
            try:
                with self._patience or contextlib.nullcontext():
                    planned: list[MicroBatch] | PhonateError = self._next_of(self._stream)
            except (OSError, EOFError):
                # A worker that was killed resets its connection a moment before torch's signal handler names it.
                time.sleep(0.5)
                raise
        except (RuntimeError, OSError, EOFError) as error:
            if str(error).startswith("Caught "):  # torch's words for what our own code raised there
                raise
            assert self._watch is not None
            words = " ".join(str(error).split())
            if "timed out" in words:
                self._watch.end_stuck(self._stuck_seconds)
                words = f"nothing came from it for {self._stuck_seconds:g} s"
            raise _WorkerLostError(f"a loader process died ({words})", self._watch.samples()) from error
        if isinstance(planned, PhonateError):
            raise planned
        return planned

    def _next_of(self, stream: Iterator[Any]) -> Any:
        """What the workers give next, after at most the time in which they count as stuck."""
        waited = 0.0  # not by a clock, which goes on while this process is stopped
        while True:
            try:
                return next(stream)
            except RuntimeError as error:  # torch has looked whether they live; it waits on where it is asked again
                waited += _LOOKS_SECONDS
                if "timed out" not in str(error) or (self._stuck_seconds and waited >= self._stuck_seconds):
                    raise

    def close(self) -> None:
        """End the worker processes."""
        self._stream, self._next = None, None
        if self._patience is not None:
            self._patience.close()
            self._patience = None
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def _loader(
        self, positions: _Positions, watch: Watch
    ) -> torch.utils.data.DataLoader[list[MicroBatch] | PhonateError]:
        return torch.utils.data.DataLoader(
            _InWorker(self._batches, watch),
            batch_size=None,
            timeout=_LOOKS_SECONDS,
            sampler=positions,
            num_workers=self._workers,
            prefetch_factor=self._prefetch,
            pin_memory=self._pin,
            worker_init_fn=functools.partial(_begin_worker, watch),
            # The default one draws from torch's global generator, which is not the loader's to use.
            generator=torch.Generator().manual_seed(0),
        )


class _InWorker(torch.utils.data.Dataset[list[MicroBatch] | PhonateError]):
    """Returns errors as values: torch would turn them into a message with the whole traceback."""

    def __init__(self, batches: PlannedBatches, watch: Watch) -> None:
        self._batches = batches
        self._watch = watch

    def __getitem__(self, where: tuple[int, int]) -> list[MicroBatch] | PhonateError:
        self._batches.note = self._watch.note
        try:
            return self._batches[where]
        except PhonateError as error:
            error.add_note(f"in a loader process:\n{traceback.format_exc()}")
            return error
        finally:
            self._watch.note(NO_SAMPLE)


_STACKS = getattr(signal, "SIGUSR2", None)
"""Told so, a worker writes the stacks of its threads. None: this system has no such signal."""
_STACKS_SECONDS = 1.0
"""How long to wait for stacks."""
_LOOKS_SECONDS = 2.0
"""How often to look whether workers live, while a batch is waited for."""


@contextlib.contextmanager
def _without_torchs_handler() -> Iterator[None]:
    """Keep torch from handling SIGCHLD from now on, as it does once loader processes begin: its handler raises an error
    wherever the main thread is, in the middle of a step, too. A dead worker is found when its batch is waited for."""
    number = getattr(signal, "SIGCHLD", None)
    if number is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(number)
    yield
    is_torchs = getattr(before, "__module__", "").startswith("torch.")
    signal.signal(number, signal.SIG_DFL if before is None or is_torchs else before)


class _WorkerLostError(Exception):
    """A worker died or is stuck."""

    def __init__(self, message: str, at: Sequence[int]) -> None:
        super().__init__(message)
        self.at = at
        """Positions of the samples that were being loaded."""


class Watch:
    """What each of several loader processes is at, in memory that they share with the one that trains."""

    def __init__(self, workers: int) -> None:
        self._cells = multiprocessing.RawArray("q", [0, NO_SAMPLE] * workers)
        """For each worker its process id and the position of the sample that it loads."""
        self._folder = tempfile.mkdtemp(prefix="phonate-workers-")
        self._own = 0

    def begin(self, worker: int) -> None:
        """Called in worker number `worker` when it begins."""
        self._own = 2 * worker
        self._cells[self._own] = os.getpid()
        if _STACKS is not None:
            # closed when the process ends; faulthandler writes to it from a signal handler
            file = self._file(os.getpid()).open("w")
            faulthandler.register(_STACKS, file=file, all_threads=True)

    def note(self, index: int) -> None:
        """Called in a worker before it loads the sample at `index`."""
        self._cells[self._own + 1] = index

    def samples(self) -> list[int]:
        """Positions of the samples that dead workers were at; of all workers, where none is known to be dead."""
        at = {pid: index for pid, index in self._pairs() if index != NO_SAMPLE}
        dead = [index for pid, index in at.items() if not psutil.pid_exists(pid) or _has_ended(pid)]
        return sorted(dead or at.values())

    def kill(self) -> str:
        """End all workers; returns the stacks of those that were at a sample."""
        pids = [pid for pid, index in self._pairs() if index != NO_SAMPLE]
        if _STACKS is not None:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, _STACKS)
            time.sleep(_STACKS_SECONDS)
        stacks = [f"process {pid}:\n{file.read_text()}" for pid in pids if (file := self._file(pid)).is_file()]
        for pid, _ in self._pairs():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, getattr(signal, "SIGKILL", signal.SIGTERM))
        return "\n".join(stacks)

    def end_stuck(self, seconds: float) -> None:
        """End all workers, from which nothing came for so long, and log their stacks."""
        logger.error("loader processes gave no batch for %g s\n%s", seconds, self.kill())

    def close(self) -> None:
        """Remove the files of stacks."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _file(self, pid: int) -> Path:
        return Path(self._folder) / f"{pid}.txt"

    def _pairs(self) -> list[tuple[int, int]]:
        cells = list(self._cells)
        return [(pid, index) for pid, index in zip(cells[::2], cells[1::2], strict=True) if pid]


class _Patience:
    """Ends workers for which this process waits inside torch: for one that has announced a batch and then stands still,
    as in a decoder that holds Python's lock, torch waits without end. Within a `with` block a batch is waited for."""

    def __init__(self, watch: Watch, seconds: float) -> None:
        self._watch = watch
        self._seconds = seconds
        self._turns = 0
        """Odd while a batch is waited for."""
        self._closed = threading.Event()
        threading.Thread(target=self._look, daemon=True).start()

    def __enter__(self) -> None:
        self._turns += 1

    def __exit__(self, *_: object) -> None:
        self._turns += 1

    def close(self) -> None:
        """Watch no longer."""
        self._closed.set()

    def _look(self) -> None:
        waited, turn = 0.0, 0  # not by a clock, which goes on while this process is stopped
        while not self._closed.wait(_LOOKS_SECONDS):
            waited = waited + _LOOKS_SECONDS if turn % 2 and turn == self._turns else 0.0
            turn = self._turns
            if waited >= self._seconds:
                self._watch.end_stuck(self._seconds)
                return


def _has_ended(pid: int) -> bool:
    """Whether a process has ended and only waits to be forgotten."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def _begin_worker(watch: Watch, worker: int) -> None:
    watch.begin(worker)
    _ignore_signals()


def _ignore_signals() -> None:
    """Ignore signals that reach every process of a run (Ctrl-C, SIGHUP, a scheduler's SIGTERM): the trainer saves, then
    ends its workers."""
    ignore_console()
    if hasattr(signal, "sigwaitinfo"):  # not on macOS
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_exit_on_sigterm_from, args=(os.getppid(),), daemon=True).start()


def _exit_on_sigterm_from(parent: int) -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        pass
    os._exit(0)


class _Positions(torch.utils.data.Sampler[tuple[int, int]]):
    """(epoch, position) from an epoch on; without an end, for ever."""

    def __init__(self, source: BatchSource, epoch: int, position: int, end: int | None) -> None:
        self._source = source
        self._begin = epoch
        self._position = position
        self._end = end

    def __iter__(self) -> Iterator[tuple[int, int]]:
        epoch, first = self._begin, self._position
        while self._end is None or epoch < self._end:
            for position in range(first, self._source.steps(epoch), self._source.merged):
                yield epoch, position
            epoch, first = epoch + 1, 0
