"""The plan of an epoch, held to its promises whatever the lengths."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phonate.config.errors import InputError
from phonate.data.plan import epoch_plan, slice_for

LENGTHS = st.lists(st.integers(1, 400), min_size=1, max_size=300).map(lambda values: np.array(values, dtype=np.int64))


def ids(plan):
    return [batch.tolist() for batch in plan]


def padding(plan, lengths):
    """Padded frames over real frames, in per cent."""
    padded = sum(len(batch) * int(lengths[batch].max()) for batch in plan)
    return 100 * (padded / int(lengths.sum()) - 1)


@given(LENGTHS, st.integers(0, 2**31), st.integers(0, 50), st.integers(400, 3000))
@settings(deadline=None)
def test_by_length_every_sample_once_and_the_cap_is_hard(lengths, seed, epoch, cap):
    plan = epoch_plan(seed, epoch, lengths, max_frames=cap)
    assert sorted(np.concatenate(plan)) == list(range(len(lengths)))
    assert all(len(batch) * lengths[batch].max() <= cap for batch in plan)
    assert ids(plan) == ids(epoch_plan(seed, epoch, lengths, max_frames=cap))


@given(LENGTHS, st.integers(0, 2**31), st.integers(1, 40))
@settings(deadline=None)
def test_by_number_every_sample_once_in_full_batches(lengths, seed, batch_size):
    plan = epoch_plan(seed, 0, lengths, batch_size=batch_size)
    assert sorted(np.concatenate(plan)) == list(range(len(lengths)))
    assert {len(batch) for batch in plan[:-1]} <= {batch_size}
    assert 1 <= len(plan[-1]) <= batch_size


@given(LENGTHS, st.integers(1, 8), st.integers(400, 2000))
@settings(deadline=None)
def test_both_caps_hold_together(lengths, batch_size, cap):
    plan = epoch_plan(3, 1, lengths, batch_size=batch_size, max_frames=cap)
    assert sorted(np.concatenate(plan)) == list(range(len(lengths)))
    assert all(len(batch) <= batch_size and len(batch) * lengths[batch].max() <= cap for batch in plan)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_ranks_share_the_same_batches(world_size):
    lengths = np.random.default_rng(0).integers(10, 200, 101)
    for batch in epoch_plan(5, 2, lengths, batch_size=8):
        parts = [slice_for(batch, rank, world_size).tolist() for rank in range(world_size)]
        assert sorted(name for part in parts for name in part) == sorted(batch.tolist())
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("how", [{"batch_size": 8}, {"max_frames": 800}])
def test_order_differs_by_seed_and_epoch_and_by_nothing_else(how):
    lengths = np.random.default_rng(0).integers(10, 200, 200)
    plan = ids(epoch_plan(1, 0, lengths, **how))
    assert plan != ids(epoch_plan(1, 1, lengths, **how))
    assert plan != ids(epoch_plan(2, 0, lengths, **how))
    state = random.getstate(), np.random.get_state()[1].tolist()
    assert plan == ids(epoch_plan(1, 0, lengths, **how))
    assert state == (random.getstate(), np.random.get_state()[1].tolist()), "global generators were used"
    random.seed(99)
    np.random.seed(99)
    assert plan == ids(epoch_plan(1, 0, lengths, **how))


def test_a_plan_drawn_from_the_global_generator_would_be_caught():
    """The faulty variant: the order depends on what else the process drew."""

    def faulty(lengths):
        return np.random.permutation(len(lengths)).tolist()

    lengths = np.arange(1, 100)
    np.random.seed(99)
    first = faulty(lengths)
    assert first != faulty(lengths)


def test_same_plan_in_another_process_without_torch():
    code = (
        "import sys, numpy as np; from phonate.data.plan import epoch_plan;"
        "plan = epoch_plan(7, 3, np.arange(1, 60), max_frames=300);"
        "assert 'torch' not in sys.modules; print([batch.tolist() for batch in plan])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == str(ids(epoch_plan(7, 3, np.arange(1, 60), max_frames=300)))


def test_a_sample_over_the_cap_is_refused():
    with pytest.raises(InputError, match="sample 2 alone has 900 frames, over the 800"):
        epoch_plan(0, 0, np.array([5, 7, 900]), max_frames=800)


SHAPES = {
    "normal": lambda rng, clips: np.clip(rng.normal(6.6, 2.2, clips), 1.1, 10.1),
    "left-skewed": lambda rng, clips: 2 + 15 * rng.beta(4, 1.5, clips),
    "lognormal": lambda rng, clips: np.clip(rng.lognormal(1.6, 0.6, clips), 2, 17),
}


def frames(shape, clips):
    return np.round(80 * SHAPES[shape](np.random.default_rng(0), clips)).astype(np.int64)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_large_corpus_is_padded_by_half_a_per_cent_at_most(shape):
    lengths = frames(shape, 16_000)
    plan = epoch_plan(0, 0, lengths, max_frames=int(16 * lengths.mean()))
    assert padding(plan, lengths) <= 0.5


@pytest.mark.parametrize("shape", SHAPES)
def test_a_small_corpus_is_padded_little_and_mixed_anew(shape):
    lengths = frames(shape, 1000)
    cap = int(16 * lengths.mean())
    plans = [epoch_plan(0, epoch, lengths, max_frames=cap) for epoch in range(8)]
    assert np.mean([padding(plan, lengths) for plan in plans]) <= 2.0
    batches = [{frozenset(batch.tolist()) for batch in plan} for plan in plans]
    shared = [len(a & b) / len(b) for a, b in itertools.pairwise(batches)]
    assert np.mean(shared) < 0.05


def test_sorting_without_mixing_would_repeat_batches():
    """The faulty variant: with ties broken at random and nothing else, a third of the batches come back."""
    lengths = frames("normal", 1000)
    cap = int(16 * lengths.mean())

    def sorted_only(epoch):
        order = np.random.default_rng(epoch).permutation(len(lengths))
        order = order[np.argsort(lengths[order], kind="stable")]
        batches, batch = set(), []
        for i in order.tolist():
            if batch and max(lengths[[*batch, i]]) * (len(batch) + 1) > cap:
                batches.add(frozenset(batch))
                batch = []
            batch.append(i)
        return batches | {frozenset(batch)}

    first, second = sorted_only(0), sorted_only(1)
    assert len(first & second) / len(second) > 0.1
