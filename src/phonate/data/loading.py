"""Batches in the planned order, from any position of an epoch on, with or without worker processes."""

from __future__ import annotations

import functools
import os
import signal
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch.utils.data

from phonate.compute.system import ignore_console
from phonate.config.errors import DataError, InputError, PhonateError
from phonate.config.randomness import generator
from phonate.data.batches import (
    Batch,
    Consumed,
    Dataset,
    Indices,
    Shown,
    Streams,
    digests_of,
    epoch_plan,
    lanes,
    parts_by_length,
    slice_for,
    unit_counts,
)


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
    ) -> None:
        self.samples = samples
        self.by_length = by_length
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
        if not len(mine):
            mine, weight = self._placeholder(epoch, position), 0.0
        if self.streams is not None and position + self.merged < len(plan):
            self.samples.expect(self._mine(epoch, position + self.merged)[1].tolist())  # type: ignore[attr-defined]
        parts = [mine[part] for part in parts_by_length(self.lengths[mine])] if self.by_length else [mine]
        *before, last = (self._part(part, epoch, weight) for part in parts)
        ends = position + len(merged) == len(plan)
        last = replace(last, planned=len(merged), samples=len(batch), last=ends)
        return [*(replace(part, planned=0) for part in before), last]

    def halves(self, planned: MicroBatch, epoch: int) -> tuple[MicroBatch, MicroBatch] | None:
        """`planned`, a micro-batch of `epoch`, as two of half the items, the same to the bit; None where it has one.

        Items are loaded again: what is random about them follows from seed, epoch and id.
        """
        if len(planned.ids) < 2:
            return None
        middle = (len(planned.ids) + 1) // 2
        positions = [self._position(name) for name in planned.ids]
        first, second = positions[:middle], positions[middle:]
        return self._part(first, epoch, planned.weight), self._part(second, epoch, planned.weight)

    def alone(self, name: str, epoch: int) -> MicroBatch:
        """The sample `name` as a micro-batch of its own."""
        return self._part([self._position(name)], epoch, 1.0)

    def shown(self, name: str, epoch: int) -> Shown:
        """The sample `name` for people."""
        show = getattr(self.samples, "shown", None)
        return Shown() if show is None else show(self._position(name), generator(self.seed, epoch, name))

    def _position(self, name: str) -> int:
        if not self._positions:
            self._positions.update({name: i for i, name in enumerate(self.ids)})
        return self._positions[name]

    def _part(self, positions: Sequence[int] | Indices, epoch: int, weight: float) -> MicroBatch:
        """The samples at `positions` as a micro-batch."""
        ids = [self.ids[i] for i in positions]
        items = [self._item(int(i), epoch, name) for i, name in zip(positions, ids, strict=True)]
        batch = padded_to(self.samples.collate(items), self.multiple)
        return MicroBatch(ids, batch, weight, counts=unit_counts(self.samples, batch))

    def _item(self, index: int, epoch: int, name: str) -> Any:
        try:
            return self.samples.get(index, generator(self.seed, epoch, name))
        except (PhonateError, OSError, ValueError, RuntimeError) as error:
            if isinstance(error, PhonateError) and name in str(error):
                raise
            raise DataError(f"sample {name}: {' '.join(str(error).split())}") from error
        except Exception as error:
            error.add_note(f"while sample {name} was loaded")
            raise


def padded_to(batch: Batch, multiple: int) -> Batch:
    """`batch` with its frames padded by zeros up to a multiple of `multiple`, so that few shapes occur.

    Only for batches that say their `lengths`: frames are the second dimension of each tensor that is as long there as
    the longest of them.
    """
    if multiple == 1 or "lengths" not in batch:
        return batch
    longest = int(max(batch["lengths"]))
    missing = -longest % multiple

    def padded(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.dim() < 2 or value.shape[1] != longest:
            return value
        return torch.nn.functional.pad(value, (*([0, 0] * (value.dim() - 2)), 0, missing))

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
    ) -> None:
        self._batches = PlannedBatches(
            samples, seed, batch_size, max_frames, rank, world_size, multiple, merged, by_length
        )
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

    def shown(self, name: str, epoch: int) -> Shown:
        """The sample `name` for people, as it is in `epoch`; without text and sound where the data set shows none."""
        return self._batches.shown(name, epoch)

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
            self.close()
            last = None if self._persistent else epoch + 1
            self._stream, self._next = iter(self._loader(_Positions(self, epoch, last))), (epoch, 0)
        try:
            for position in range(0, end, self.merged):
                assert self._next == (epoch, position), "another epoch was begun, or the source closed"
                self._next = None
                planned = self._received()
                after = position + self.merged
                self._next = (epoch, after) if after < end else (epoch + 1, 0)
                yield from planned
        finally:
            if not self._persistent:
                self.close()

    def _received(self) -> list[MicroBatch]:
        """The next micro-batch from the workers, in its parts; raises the error that they met."""
        assert self._stream is not None
        try:
            try:
                planned = next(self._stream)
            except (OSError, EOFError):
                # A worker that was killed resets its connection a moment before torch's signal handler names it.
                time.sleep(0.5)
                raise
        except (RuntimeError, OSError, EOFError) as error:
            if str(error).startswith("Caught "):  # torch's words for what our own code raised there
                raise
            raise DataError(
                f"a loader process died ({' '.join(str(error).split())}); if memory ran out, lower "
                "training.performance.num_workers"
            ) from error
        if isinstance(planned, PhonateError):
            raise planned
        return planned

    def close(self) -> None:
        """End the worker processes."""
        self._stream, self._next = None, None

    def _loader(self, positions: _Positions) -> torch.utils.data.DataLoader[list[MicroBatch] | PhonateError]:
        return torch.utils.data.DataLoader(
            _InWorker(self._batches),
            batch_size=None,
            sampler=positions,
            num_workers=self._workers,
            prefetch_factor=self._prefetch,
            pin_memory=self._pin,
            worker_init_fn=_ignore_signals,
            # The default one draws from torch's global generator, which is not the loader's to use.
            generator=torch.Generator().manual_seed(0),
        )


class _InWorker(torch.utils.data.Dataset[list[MicroBatch] | PhonateError]):
    """Returns errors as values: torch would turn them into a message with the whole traceback."""

    def __init__(self, batches: PlannedBatches) -> None:
        self._batches = batches

    def __getitem__(self, where: tuple[int, int]) -> list[MicroBatch] | PhonateError:
        try:
            return self._batches[where]
        except PhonateError as error:
            error.add_note(f"in a loader process:\n{traceback.format_exc()}")
            return error


def _ignore_signals(_: int) -> None:
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

    def __init__(self, source: BatchSource, epoch: int, end: int | None) -> None:
        self._source = source
        self._begin = epoch
        self._end = end

    def __iter__(self) -> Iterator[tuple[int, int]]:
        epoch = self._begin
        while self._end is None or epoch < self._end:
            for position in range(0, self._source.steps(epoch), self._source.merged):
                yield epoch, position
            epoch += 1
