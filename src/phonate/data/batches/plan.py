"""The plan of an epoch: which samples make up which batch, as a pure function of its arguments.

Ranks, micro-batches and loader workers take slices of the plan and never change it. That is what makes a run
resumable at any point and on another number of processes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from phonate.config.errors import InputError
from phonate.config.randomness import generator

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
) -> list[Indices]:
    """The batches of an epoch: every position exactly once, but for those that were consumed.

    With `max_frames` a batch holds clips of like length, and its number of clips times its longest clip never
    exceeds `max_frames` (nor its number of clips `batch_size`, if that is given too): shuffle, sort within pools of
    POOL, mix neighbours, cut, shuffle the batches. With `batch_size` alone the order is a plain shuffle.

    Args:
        seed: the run's seed.
        epoch: number of the epoch, from 0.
        lengths: (N,) frames of each sample.
        batch_size: items of a batch, at most.
        max_frames: frames of a padded batch, at most.
        consumed: samples of the epoch that are left out because a run has used them, in batches of whatever size.

    Raises:
        InputError: a sample alone is longer than `max_frames`.
    """
    skipped = 0
    if consumed and consumed[-1][0] == max_frames:  # batches under the same cap go on where they were
        skipped, consumed = consumed[-1][1], consumed[:-1]
    remains_N = np.ones(len(lengths), dtype=bool)
    for i, (cap, count) in enumerate(consumed):
        size = len(lengths) if cap is None else None
        for batch in epoch_plan(seed, epoch, lengths, batch_size=size, max_frames=cap, consumed=consumed[:i]):
            remains_N[batch[: max(count, 0)]] = False
            count -= len(batch)
    rng = generator(seed, "plan", epoch)
    order = rng.permutation(len(lengths))
    order = order[remains_N[order]]
    if max_frames is None:
        assert batch_size is not None
        return [order[start : start + batch_size] for start in range(skipped, len(order), batch_size)]
    if len(lengths) and int(lengths.max()) > max_frames:
        longest = int(lengths.argmax())
        raise InputError(f"sample {longest} alone has {lengths[longest]} frames, over the {max_frames} of a batch")
    batches: list[Indices] = []
    for pool in _pools(order):
        ordered = pool[np.argsort(lengths[pool], kind="stable")]
        places = np.arange(len(ordered)) + MIXED_PLACES * rng.random(len(ordered))
        batches.extend(_cut(ordered[np.argsort(places, kind="stable")], lengths, max_frames, batch_size))
    return _after(skipped, [batches[i] for i in rng.permutation(len(batches))])


def _after(skipped: int, batches: list[Indices]) -> list[Indices]:
    """`batches` without their first `skipped` samples."""
    ends = np.cumsum([len(batch) for batch in batches], dtype=np.int64)
    first = int(np.searchsorted(ends, skipped, side="right"))
    if first == len(batches):
        return []
    return [batches[first][skipped - int(ends[first]) :], *batches[first + 1 :]]


def _pools(order: Indices) -> list[Indices]:
    """Slices of a shuffled order, of equal size."""
    return np.array_split(order, max(1, round(len(order) / POOL)))


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


def parts_by_length(lengths: NDArray[np.int64]) -> list[Indices]:
    """Cut a batch into parts of similar length, such that all parts together have the fewest frames with padding.

    Args:
        lengths: (B,) frames of each sample.

    Returns:
        Positions in the batch, for each part; long samples come first. One part where cutting does not pay.
    """
    order = np.argsort(-lengths, kind="stable")
    sorted_B = lengths[order]
    count = len(order)
    each = PART_COST * count * float(sorted_B[0])
    least = np.zeros(count + 1)  # cost of the first i samples
    begins = np.zeros(count + 1, dtype=np.int64)  # where the last part of the first i samples begins
    for end in range(1, count + 1):
        starts = np.arange(end)
        costs = least[:end] + sorted_B[:end] * (end - starts) + each
        begins[end] = costs.argmin()
        least[end] = costs[begins[end]]
    parts, end = [], count
    while end:
        parts.append(order[begins[end] : end])
        end = int(begins[end])
    return parts[::-1]


def slice_for(batch: Indices, rank: int, world_size: int) -> Indices:
    """The part of a global batch that `rank` computes."""
    return batch[rank::world_size]
