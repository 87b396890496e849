"""Packing: several short sequences in one row, to pad less."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from phonate.config.randomness import generator


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
