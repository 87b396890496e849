"""Packing: every sequence once, no pack too long, and full ones."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from phonate.data.batches import pack


@given(st.integers(1, 100).flatmap(lambda c: st.tuples(st.just(c), st.lists(st.integers(1, c), max_size=80))))
def test_every_sequence_is_in_one_pack_and_none_is_too_long(case: tuple[int, list[int]]) -> None:
    capacity, lengths = case
    packs = pack(lengths, capacity)
    assert sorted(i for group in packs for i in group) == list(range(len(lengths)))
    sums = sorted(sum(lengths[i] for i in group) for group in packs)
    assert all(packs)
    assert not sums or sums[-1] <= capacity
    # best fit: a pack is opened only for what fits in no other, so the two emptiest could not be one
    assert len(sums) < 2 or sums[0] + sums[1] > capacity
    assert pack(lengths, capacity) == packs


def test_packs_are_full() -> None:
    lengths = np.random.default_rng(0).integers(1, 60, 500).tolist()
    packs = pack(lengths, 64)
    assert sum(lengths) / (64 * len(packs)) > 0.9
