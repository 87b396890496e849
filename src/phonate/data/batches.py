"""Batches: data sets and their collators, the plan of an epoch, padding and packing. No torch when imported.

The plan says which samples make up which batch, as a pure function of its arguments. Ranks, micro-batches and loader
workers take slices of it and never change it. That is what makes a run resumable at any point and on another number of
processes.
"""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from phonate.config.errors import InputError
from phonate.config.randomness import generator
from phonate.config.registry import Registry

if TYPE_CHECKING:
    import torch


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


def evaluation_batches(
    dataset: Dataset, positions: Sequence[int], size: int
) -> Iterator[tuple[list[int], list[Any], Batch]]:
    """The samples at `positions` for an evaluation, in batches of up to `size` of similar length: positions, items and
    the batch of each. Nothing about them is random."""
    order = np.asarray(positions)[np.argsort(dataset.lengths[np.asarray(positions)], kind="stable")].tolist()
    for start in range(0, len(order), size):
        places = order[start : start + size]
        items = [dataset.get(index, np.random.default_rng(0)) for index in places]
        yield places, items, dataset.collate(items)


class UnitCounts(Protocol):
    """A data set that counts what the sums of its task's loss are divided by."""

    def unit_counts(self, batch: Batch) -> Mapping[str, float]:
        """How many a batch has of each unit that loss terms name: items, frames, tokens and the like.

        Called on the host with a batch as it is trained on, whatever collator made it.
        """
        ...


def unit_counts(dataset: Dataset, batch: Batch) -> Mapping[str, float] | None:
    """The counts of `batch`; None of a data set that has no `UnitCounts`."""
    counts: Mapping[str, float] | None = dataset.unit_counts(batch) if hasattr(dataset, "unit_counts") else None
    return counts


@dataclass(frozen=True)
class SamplePreview:
    """A sample for people to look at and listen to."""

    text: str = ""
    speaker: str = ""
    waveform: NDArray[np.float32] | None = None
    """(samples,) of the recording. None: there is none."""
    sample_rate: int = 0


class PreviewDataset(Protocol):
    """A data set with samples for people to look at."""

    def preview(self, index: int, rng: np.random.Generator) -> SamplePreview:
        """The sample at `index`, as `get` makes it with an equal `rng`: augmented, but not cropped."""
        ...


class DigestedDataset(Protocol):
    """A data set that tells what its samples are made from, so that a resumed run can tell whether that is the same."""

    @property
    def digests(self) -> Mapping[str, int]:
        """A digest (64 bits, signed) of each recording, text or the like that samples are made from, by its id: of the
        sound, the texts, the speakers."""
        ...


@dataclass(frozen=True)
class Streams:
    """Where N samples are in shards, for plans that read each shard once an epoch, on one rank."""

    shard: NDArray[np.int64]
    """(N,) the number of each sample's shard."""
    run: NDArray[np.int64]
    """(N,) samples with the same number are in one run of a shard, which is read at once."""


class StreamedDataset(Protocol):
    """A data set whose samples may be in shards."""

    @property
    def streams(self) -> Streams | None:
        """Where they are; None where they are in no shard."""
        ...

    def expect(self, indices: Iterable[int]) -> None:
        """Told which samples will be asked for next, so that they can be fetched meanwhile."""
        ...


def digests_of(dataset: Dataset) -> Mapping[str, int]:
    """A digest of whatever the samples of `dataset` are made from; of another than a `DigestedDataset`, of lengths."""
    known: Mapping[str, int] | None = getattr(dataset, "digests", None)
    if known is not None:
        return known
    return {name: digest_of(int(length)) for name, length in zip(dataset.ids, dataset.lengths, strict=True)}


def digest_of(*parts: object) -> int:
    """A digest of arrays, and of anything else by its `repr`."""
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        data = part.tobytes() if isinstance(part, np.ndarray) else repr(part).encode("utf-8", "surrogateescape")
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return int.from_bytes(digest.digest(), "little", signed=True)


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


# ------------------------------------------------ What data sets make batches with: padding, packing


def padded(arrays: Sequence[NDArray[Any]]) -> torch.Tensor:
    """(B, longest, ...) of arrays (length, ...), zeros after their ends."""
    import torch  # not by who only names a collator

    out = np.zeros((len(arrays), max(map(len, arrays)), *arrays[0].shape[1:]), dtype=arrays[0].dtype)
    for row, array in zip(out, arrays, strict=True):
        row[: len(array)] = array
    return torch.from_numpy(out)


class PackedRows:
    """Rows of token sequences that do not see each other: all of `Dataset` but the samples.

    Rows are packed once and stay the same in every epoch: packing affects nothing but which sequences share a batch,
    and batches are shuffled in every epoch.
    """

    frames_per_second: float | None = None
    """Lengths are tokens."""
    cached = True
    """Tokens are in memory, or in a memory-mapped file."""

    def __init__(self, names: Sequence[str], lengths: Sequence[int], max_length: int, packing: bool) -> None:
        """`names`, `lengths`: of the sequences; `packing`: whether rows hold several, up to `max_length` together."""
        self.rows = pack(lengths, max_length) if packing else [[i] for i in range(len(lengths))]
        """Positions of the sequences that each row holds."""
        self.lengths: NDArray[np.int64] = np.array([sum(lengths[i] for i in row) for row in self.rows], dtype=np.int64)
        """(N,) tokens of each row."""
        self._names = names

    @cached_property
    def ids(self) -> Sequence[str]:
        """The name of a row's first sequence, and how many more there are."""
        names = ((self._names[row[0]], len(row) - 1) for row in self.rows)
        return [f"{name} and {more} more" if more else name for name, more in names]


def pack(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Group sequences into packs whose lengths add up to at most `capacity`: in random order, each goes into the
    fullest pack that still has room for it (best fit, as in Ding et al. 2024, https://arxiv.org/abs/2404.10830).

    The result depends on the arguments alone.

    Args:
        lengths: (N,) length of each sequence, from 1 to `capacity`.
        capacity: Length of a pack, at most.

    Returns:
        Packs of positions in `lengths`; every position is in exactly one.
    """
    assert max(lengths, default=0) <= capacity, "a sequence is longer than a pack"
    packs: list[list[int]] = []
    room: list[tuple[int, int]] = []  # (length left, pack), sorted
    for i in generator("packing").permutation(len(lengths)).tolist():
        length = lengths[i]
        place = bisect.bisect_left(room, (length, -1))
        if place < len(room):
            left, number = room.pop(place)
        else:
            left, number = capacity, len(packs)
            packs.append([])
        packs[number].append(i)
        if left > length:
            bisect.insort(room, (left - length, number))
    return packs


# -------------------------------------------- The plan of an epoch: which samples make up which batch

Indices = NDArray[np.int64]

Consumed = tuple[tuple[int | None, int], ...]
"""What was consumed of an epoch: numbers of samples, one after the other, each with the cap on frames (None: none) of
the batches that held them. There are several only where a resume changed the cap."""

POOL = 6144
"""Samples that are sorted by length together. Larger pools pad less and mix less."""
MIXED_PLACES = 8
"""How many places a clip may move in a sorted pool, so that even in a corpus of one pool neighbours change between
epochs. Places rather than seconds keep padding small where clips of some length are rare."""
PART_COST = 0.05
"""What a part of a batch costs beside its frames, as a share of the frames of the whole padded batch: small tensors are
computed less efficiently."""


def epoch_plan(
    seed: int,
    epoch: int,
    lengths: NDArray[np.int64],
    *,
    batch_size: int | None = None,
    max_frames: int | None = None,
    consumed: Consumed = (),
    streams: Streams | None = None,
) -> list[Indices]:
    """The batches of an epoch: every position exactly once, but for those that were consumed.

    With `max_frames` a batch holds clips of like length, and its number of clips times its longest clip never
    exceeds `max_frames` (nor its number of clips `batch_size`, if that is given too): shuffle, sort within pools of
    POOL, mix neighbours, cut, shuffle the batches. With `batch_size` alone the order is a plain shuffle.
    With `streams` it is that of `streamed_order`, pools are of STREAMED_POOL, and batches are shuffled within them.

    Args:
        seed: the run's seed.
        epoch: number of the epoch, from 0.
        lengths: (N,) frames of each sample.
        batch_size: items of a batch, at most.
        max_frames: frames of a padded batch, at most.
        consumed: samples of the epoch that are left out because a run has used them, in batches of whatever size.
        streams: where the samples are in shards.

    Raises:
        InputError: a sample alone is longer than `max_frames`.
    """
    skipped = 0
    if consumed and consumed[-1][0] == max_frames:  # batches under the same cap go on where they were
        skipped, consumed = consumed[-1][1], consumed[:-1]
    remains_N = np.ones(len(lengths), dtype=bool)
    for i, (cap, count) in enumerate(consumed):
        size = len(lengths) if cap is None else None
        for batch in epoch_plan(
            seed, epoch, lengths, batch_size=size, max_frames=cap, consumed=consumed[:i], streams=streams
        ):
            remains_N[batch[: max(count, 0)]] = False
            count -= len(batch)
    rng = generator(seed, "plan", epoch)
    order = rng.permutation(len(lengths)) if streams is None else streamed_order(seed, epoch, streams)
    order = order[remains_N[order]]
    if max_frames is None:
        assert batch_size is not None
        return [order[start : start + batch_size] for start in range(skipped, len(order), batch_size)]
    if len(lengths) and int(lengths.max()) > max_frames:
        longest = int(lengths.argmax())
        raise InputError(f"sample {longest} alone has {lengths[longest]} frames, over the {max_frames} of a batch")
    batches: list[Indices] = []
    for pool in _pools(order, POOL if streams is None else STREAMED_POOL):
        ordered = pool[np.argsort(lengths[pool], kind="stable")]
        places = np.arange(len(ordered)) + MIXED_PLACES * rng.random(len(ordered))
        cut = _cut(ordered[np.argsort(places, kind="stable")], lengths, max_frames, batch_size)
        batches.extend(cut if streams is None else (cut[i] for i in rng.permutation(len(cut))))
    if streams is not None:
        return _after(skipped, batches)
    return _after(skipped, [batches[i] for i in rng.permutation(len(batches))])


def _after(skipped: int, batches: list[Indices]) -> list[Indices]:
    """`batches` without their first `skipped` samples."""
    ends = np.cumsum([len(batch) for batch in batches], dtype=np.int64)
    first = int(np.searchsorted(ends, skipped, side="right"))
    if first == len(batches):
        return []
    return [batches[first][skipped - int(ends[first]) :], *batches[first + 1 :]]


LANES = 32
"""How many shards are read side by side, all ranks together: samples of a batch come from so many."""
WINDOW = 4
"""Runs of a lane whose samples are shuffled together."""
STREAMED_POOL = 1024
"""What POOL is for shards: smaller, because what is in a pool is in reach at the same time."""


def lanes(seed: int, epoch: int, shards: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Of each shard, by its number up to the highest in `shards`, the lane in which it is read in this epoch, and its
    turn there. A lane is read by one rank: `lane % world_size`."""
    present = np.unique(shards)
    order = generator(seed, "shards", epoch).permutation(present)
    count = min(LANES, len(present))
    lane_S, turn_S = np.zeros((2, int(present.max(initial=-1)) + 1), dtype=np.int64)
    lane_S[order] = np.arange(len(order)) % count
    turn_S[order] = np.arange(len(order)) // count
    return lane_S, turn_S


def streamed_order(seed: int, epoch: int, streams: Streams) -> Indices:
    """All samples in an order that reads every shard once: shards are dealt to lanes at random, in each of which they
    are read one after the other, their runs in random order, with samples shuffled within WINDOW runs. Lanes advance
    side by side, in proportion to their lengths. A pure function of its arguments."""
    rng = generator(seed, "streams", epoch)
    lane_S, turn_S = lanes(seed, epoch, streams.shard)
    count = int(streams.run.max(initial=-1)) + 1
    shard_R = np.full(count, -1, dtype=np.int64)
    shard_R[streams.run] = streams.shard
    present = shard_R >= 0  # of a split's samples, some runs may have none
    run_N = (np.cumsum(present) - 1)[streams.run]
    shard_R = shard_R[present]
    lane_R = lane_S[shard_R]
    order_R = np.lexsort((rng.random(len(shard_R)), turn_S[shard_R], lane_R))
    place_R = np.empty(len(shard_R), dtype=np.int64)
    begins = np.searchsorted(lane_R[order_R], lane_R[order_R], side="left")
    place_R[order_R] = np.arange(len(shard_R)) - begins  # of a run in its lane
    window_R = lane_R * (len(shard_R) // WINDOW + 1) + place_R // WINDOW
    order = np.lexsort((rng.random(len(run_N)), window_R[run_N]))
    size_L = np.bincount(lane_R[run_N])
    progress = np.arange(len(order)) - np.repeat(np.cumsum(size_L) - size_L, size_L) + 0.5
    progress /= np.repeat(size_L, size_L)
    return np.asarray(order[np.argsort(progress, kind="stable")], dtype=np.int64)


def _pools(order: Indices, size: int) -> list[Indices]:
    """Slices of a shuffled order, of equal size."""
    return np.array_split(order, max(1, round(len(order) / size)))


def _cut(ordered: Indices, lengths: NDArray[np.int64], max_frames: int, batch_size: int | None) -> list[Indices]:
    """Consecutive batches of `ordered`, each as large as the caps allow."""
    batches = []
    start, longest = 0, 0
    limit = batch_size or len(ordered)
    for end, length in enumerate(lengths[ordered].tolist()):
        raised = length if length > longest else longest
        size = end - start
        # No clip alone is over the cap, so an empty batch always takes one.
        if raised * (size + 1) > max_frames or size >= limit:
            batches.append(ordered[start:end])
            start, longest = end, length
        else:
            longest = raised
    if start < len(ordered):
        batches.append(ordered[start:])
    return batches


def parts_by_length(lengths: NDArray[np.int64], multiple: int = 1) -> list[Indices]:
    """Cut a batch into parts of similar length, such that all parts together have the fewest frames with padding.

    Args:
        lengths: (B,) frames of each sample.
        multiple: all parts but the last have a multiple of so many samples.

    Returns:
        Positions in the batch, for each part; long samples come first. One part where cutting does not pay.
    """
    order = np.argsort(-lengths, kind="stable")
    sorted_B = lengths[order]
    count = len(order)
    each = PART_COST * count * float(sorted_B[0])
    least = np.zeros(count + 1)  # cost of the first i samples
    begins = np.zeros(count + 1, dtype=np.int64)  # where the last part of the first i samples begins
    for end in (*range(multiple, count, multiple), count):
        starts = np.arange(0, end, multiple)
        costs = least[starts] + sorted_B[starts] * (end - starts) + each
        begins[end] = starts[costs.argmin()]
        least[end] = costs.min()
    parts, end = [], count
    while end:
        parts.append(order[begins[end] : end])
        end = int(begins[end])
    return parts[::-1]


def slice_for(batch: Indices, rank: int, world_size: int) -> Indices:
    """The part of a global batch that `rank` computes."""
    return batch[rank::world_size]
