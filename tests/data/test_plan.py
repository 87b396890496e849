"""The plan of an epoch, held to its promises whatever the lengths."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from phonate.config.errors import InputError
from phonate.data.batches import PART_COST, epoch_plan, parts_by_length, slice_for

LENGTHS = st.lists(st.integers(1, 400), min_size=1, max_size=300).map(lambda values: np.array(values, dtype=np.int64))


def ids(plan):
    return [batch.tolist() for batch in plan]


def padding(plan, lengths):
    """Padded frames over real frames, in per cent."""
    padded = sum(len(batch) * int(lengths[batch].max()) for batch in plan)
    return 100 * (padded / int(lengths.sum()) - 1)


@given(LENGTHS, st.integers(0, 2**31), st.integers(0, 50), st.integers(400, 3000))
def test_by_length_every_sample_once_and_the_cap_is_hard(lengths, seed, epoch, cap):
    plan = epoch_plan(seed, epoch, lengths, max_frames=cap)
    assert sorted(np.concatenate(plan)) == list(range(len(lengths)))
    assert all(len(batch) * lengths[batch].max() <= cap for batch in plan)
    assert ids(plan) == ids(epoch_plan(seed, epoch, lengths, max_frames=cap))


@given(LENGTHS, st.integers(0, 2**31), st.integers(1, 40))
def test_by_number_every_sample_once_in_full_batches(lengths, seed, batch_size):
    plan = epoch_plan(seed, 0, lengths, batch_size=batch_size)
    assert sorted(np.concatenate(plan)) == list(range(len(lengths)))
    assert {len(batch) for batch in plan[:-1]} <= {batch_size}
    assert 1 <= len(plan[-1]) <= batch_size


@given(LENGTHS, st.integers(1, 8), st.integers(400, 2000))
def test_both_caps_hold_together(lengths, batch_size, cap):
    plan = epoch_plan(3, 1, lengths, batch_size=batch_size, max_frames=cap)
    assert sorted(np.concatenate(plan)) == list(range(len(lengths)))
    assert all(len(batch) <= batch_size and len(batch) * lengths[batch].max() <= cap for batch in plan)


def cost(parts, lengths):
    """What `parts_by_length` makes small."""
    each = PART_COST * len(lengths) * int(lengths.max())
    return sum(len(part) * int(lengths[part].max()) + each for part in parts)


@given(LENGTHS)
def test_parts_of_a_batch_hold_every_sample_once_from_long_to_short(lengths):
    parts = parts_by_length(lengths)
    assert sorted(np.concatenate(parts)) == list(range(len(lengths)))
    assert all(lengths[one].min() >= lengths[other].max() for one, other in itertools.pairwise(parts))
    assert cost(parts, lengths) <= cost([np.arange(len(lengths))], lengths) + 1e-6


@given(st.lists(st.integers(0, 40), min_size=1, max_size=8).map(np.array))
def test_no_other_parts_of_a_batch_have_less_padding(lengths):
    ordered = np.argsort(-lengths)
    cuts = (c for n in range(len(lengths)) for c in itertools.combinations(range(1, len(lengths)), n))
    least = min(cost(np.split(ordered, list(cut)), lengths) for cut in cuts)
    assert cost(parts_by_length(lengths), lengths) == pytest.approx(least)


@given(LENGTHS, st.integers(1, 8))
def test_parts_of_a_batch_may_have_few_numbers_of_samples(lengths, multiple):
    parts = parts_by_length(lengths, multiple)
    assert sorted(np.concatenate(parts)) == list(range(len(lengths)))
    assert all(lengths[one].min() >= lengths[other].max() for one, other in itertools.pairwise(parts))
    assert all(len(part) % multiple == 0 for part in parts[:-1])
    assert cost(parts, lengths) <= cost([np.arange(len(lengths))], lengths) + 1e-6


def test_batches_of_like_length_stay_whole():
    assert [len(part) for part in parts_by_length(np.array([95, 100, 97, 99]))] == [4]
    assert [len(part) for part in parts_by_length(np.array([10, 100, 9, 11]))] == [1, 3]
    assert [len(part) for part in parts_by_length(np.array([10, 100, 9, 11]), 2)] == [2, 2]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_ranks_share_the_same_batches(world_size):
    lengths = np.random.default_rng(0).integers(10, 200, 101)
    for batch in epoch_plan(5, 2, lengths, batch_size=8):
        parts = [slice_for(batch, rank, world_size).tolist() for rank in range(world_size)]
        assert sorted(name for part in parts for name in part) == sorted(batch.tolist())
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_ranks_partition_batches_by_length_too(world_size):
    lengths = np.random.default_rng(0).integers(10, 200, 101)
    whole = epoch_plan(5, 2, lengths, max_frames=800)
    for batch in whole:
        parts = [slice_for(batch, rank, world_size) for rank in range(world_size)]
        assert sorted(np.concatenate(parts)) == sorted(batch)
        assert all(len(part) * lengths[batch].max() <= 800 for part in parts)


def seed_all(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def assert_pure(plan):
    """`plan(seed, epoch)` depends on both and on nothing else, and leaves the global generators alone."""
    seed_all(1)
    first = plan(1, 0)
    assert first != plan(1, 1), "epochs are alike"
    assert first != plan(2, 0), "seeds are alike"
    seed_all(2)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    assert first == plan(1, 0), "global generators have an influence"
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    assert before == after, "global generators were used"


@pytest.mark.parametrize("how", [{"batch_size": 8}, {"max_frames": 800}])
def test_order_differs_by_seed_and_epoch_and_by_nothing_else(how):
    lengths = np.random.default_rng(0).integers(10, 200, 200)
    assert_pure(lambda seed, epoch: ids(epoch_plan(seed, epoch, lengths, **how)))


@pytest.mark.parametrize(
    ("faulty", "complaint"),
    [
        (lambda seed, epoch: np.random.permutation(100).tolist(), "influence"),
        (lambda seed, epoch: torch.randperm(100).tolist(), "influence"),
        (lambda seed, epoch: np.random.default_rng(seed).permutation(100).tolist(), "epochs are alike"),
        (lambda seed, epoch: random.seed(f"{seed} {epoch}") or random.sample(range(100), 100), "were used"),
    ],
    ids=["numpy's global generator", "torch's global generator", "no epoch", "seeding the global generator"],
)
def test_plans_that_are_not_pure_are_caught(faulty, complaint):
    with pytest.raises(AssertionError, match=complaint):
        assert_pure(faulty)


def test_same_plan_in_another_process_without_torch():
    code = (
        "import sys, numpy as np; from phonate.data.batches import epoch_plan;"
        "plan = epoch_plan(7, 3, np.arange(1, 60), max_frames=300);"
        "assert 'torch' not in sys.modules; print([batch.tolist() for batch in plan])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == str(ids(epoch_plan(7, 3, np.arange(1, 60), max_frames=300)))


def test_a_sample_over_the_cap_is_refused():
    with pytest.raises(InputError, match=r"sample 2 .*900 frames.*800"):
        epoch_plan(0, 0, np.array([5, 7, 900]), max_frames=800)


def test_nothing_makes_no_batches():
    assert epoch_plan(0, 0, np.array([], dtype=np.int64), max_frames=800) == []


CORPORA = {
    "normal": (13_100, lambda rng, clips: np.clip(rng.normal(6.6, 2.2, clips), 1.1, 10.1)),
    "left-skewed": (28_539, lambda rng, clips: 2 + 15 * rng.beta(4, 1.5, clips)),
    "lognormal": (20_000, lambda rng, clips: np.clip(rng.lognormal(1.6, 0.6, clips), 2, 17)),
}
"""Clips and durations in seconds, like those of LJSpeech, LibriSpeech and a corpus with a long tail."""


def frames(shape, clips=None):
    """Lengths at 80 frames a second, and the cap that 16 clips of mean length fit under."""
    usual, durations = CORPORA[shape]
    lengths = np.round(80 * durations(np.random.default_rng(0), clips or usual)).astype(np.int64)
    return lengths, int(16 * lengths.mean())


@pytest.mark.parametrize("shape", CORPORA)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_large_corpus_is_padded_by_half_a_per_cent_at_most(shape, seed):
    lengths, cap = frames(shape)
    assert padding(epoch_plan(seed, seed, lengths, max_frames=cap), lengths) <= 0.5


def test_pools_that_are_too_small_are_caught():
    """The faulty variant: sorted within pools of eight batches, as group-by-length samplers do."""
    lengths, cap = frames("lognormal")
    order = np.random.default_rng(0).permutation(len(lengths))
    pools = [pool[np.argsort(lengths[pool])] for pool in np.array_split(order, len(order) // 128)]
    assert padding([batch for pool in pools for batch in cut(pool, lengths, cap)], lengths) > 0.5


def shared(plan):
    """Batches (as sets of samples) that the epoch before had too, in per cent, over eight epochs of `plan`."""
    epochs = [{frozenset(batch.tolist()) for batch in plan(epoch)} for epoch in range(8)]
    return np.mean([100 * len(a & b) / len(b) for a, b in itertools.pairwise(epochs)])


@pytest.mark.parametrize("shape", CORPORA)
def test_a_small_corpus_is_padded_little_and_mixed_anew(shape):
    lengths, cap = frames(shape, 1000)
    plans = [epoch_plan(0, epoch, lengths, max_frames=cap) for epoch in range(8)]
    assert np.mean([padding(plan, lengths) for plan in plans]) <= 2.0
    assert shared(plans.__getitem__) < 5


def cut(order, lengths, cap):
    """The plain way to fill batches in a given order."""
    batches, batch = [], []
    for sample in order.tolist():
        if batch and max(lengths[[*batch, sample]]) * (len(batch) + 1) > cap:
            batches.append(np.array(batch))
            batch = []
        batch.append(sample)
    return [*batches, np.array(batch)]


@pytest.mark.parametrize("ties", ["fixed", "shuffled"])
def test_batches_that_come_back_are_caught(ties):
    """The faulty variants: buckets made once for the corpus, and a plain sort that only breaks ties anew."""
    lengths, cap = frames("normal", 1000)

    def plan(epoch):
        rng = np.random.default_rng(epoch)
        order = np.arange(len(lengths)) if ties == "fixed" else rng.permutation(len(lengths))
        batches = cut(order[np.argsort(lengths[order], kind="stable")], lengths, cap)
        return [batches[i] for i in rng.permutation(len(batches))]

    assert padding(plan(0), lengths) <= 2.0
    assert shared(plan) >= (100 if ties == "fixed" else 5)
