"""Loading in the planned order: the same batches whatever the workers, the ranks and the start."""

from __future__ import annotations

import multiprocessing
import os

import numpy as np
import pytest
import torch

from phonate.config.errors import DataError, PhonateError, TrainingError
from phonate.data.batches import Dataset
from phonate.data.loading import BatchSource
from phonate_process import run_python


class Noise:
    """Samples that are random, as augmented ones are: the first number tells the item, the rest are drawn."""

    cached = True
    frames_per_second = 10.0

    def __init__(self, count=23, broken=None, error=None):
        self.ids = [f"clip-{number}" for number in range(count)]
        self.lengths = np.arange(5, 5 + count)
        self.broken = broken
        self.error = error

    def get(self, index, rng):
        if self.ids[index] == self.broken:
            raise self.error
        return np.concatenate([[index], rng.standard_normal(3)])

    def collate(self, items):
        return {"values": torch.from_numpy(np.stack(items)), "names": "left alone"}


def source(samples=None, **options):
    return BatchSource(samples or Noise(), **{"seed": 7, "batch_size": 4, **options})


def drawn(batches):
    return [(planned.ids, planned.weight, planned.batch["values"].numpy().tobytes()) for planned in batches]


def test_samples_protocol():
    assert isinstance(Noise(), Dataset)


@pytest.mark.parametrize("how", [{"batch_size": 4}, {"max_frames": 90}])
@pytest.mark.parametrize("persistent", [True, False])
def test_the_same_bits_with_and_without_workers(how, persistent):
    direct, working = source(**how), source(**how, num_workers=2, persistent_workers=persistent)
    for epoch in range(3):
        assert drawn(working.epoch(epoch)) == drawn(direct.epoch(epoch))
    working.close()


def test_randomness_from_global_generators_would_be_caught():
    """The faulty variant: augmentation drawn from NumPy's global generator, which every worker has its own of."""

    class Global(Noise):
        def get(self, index, rng):
            return np.concatenate([[index], np.random.standard_normal(3)])

    direct, working = source(Global()), source(Global(), num_workers=2)
    np.random.seed(1)
    assert drawn(working.epoch(0)) != drawn(direct.epoch(0))
    assert drawn(direct.epoch(0)) != drawn(direct.epoch(0))
    working.close()


def test_items_differ_between_epochs_and_seeds():
    first, second = drawn(source().epoch(0)), drawn(source().epoch(1))
    assert {name for ids, _, _ in first for name in ids} == {name for ids, _, _ in second for name in ids}
    values = {planned.ids[0]: planned.batch["values"][0, 1].item() for planned in source(batch_size=1).epoch(0)}
    later = {planned.ids[0]: planned.batch["values"][0, 1].item() for planned in source(batch_size=1).epoch(1)}
    other = {planned.ids[0]: planned.batch["values"][0, 1].item() for planned in source(batch_size=1, seed=8).epoch(0)}
    assert all(values[name] not in (later[name], other[name]) for name in values)


@pytest.mark.parametrize(("workers", "persistent"), [(0, True), (2, True), (2, False)])
def test_going_on_from_any_position(workers, persistent):
    whole = drawn(source().epoch(2))
    following = drawn(source().epoch(3))
    for start in (0, 1, 4, len(whole)):
        resumed = source(num_workers=workers, persistent_workers=persistent)
        assert drawn(resumed.epoch(2, ((None, 4 * start),))) == whole[start:]
        assert drawn(resumed.epoch(3)) == following
        resumed.close()


@pytest.mark.parametrize(
    "parts",
    [
        [(4, None, 3), (5, None, 1), (2, None, 99)],
        [(4, None, 3), (None, 90, 1), (None, 60, 1), (3, None, 99)],
        [(None, 90, 2), (None, 90, 1), (None, 45, 99)],
        [(None, 60, 2), (4, None, 1), (None, 60, 99)],
    ],
)
@pytest.mark.parametrize("workers", [0, 2])
def test_each_sample_once_in_an_epoch_whose_batches_change_at_resumes(parts, workers):
    """Stopped after some batches, and gone on with batches of another size, by number or by length."""
    consumed, seen = (), []
    for size, cap, batches in parts:
        how = {"batch_size": size, "max_frames": cap, "num_workers": workers}
        resumed = source(**how)
        loaded = [one for _, one in zip(range(batches), resumed.epoch(1, consumed), strict=False)]
        resumed.close()
        seen += [name for planned in loaded for name in planned.ids]
        count = sum(planned.samples for planned in loaded)
        assert count == sum(len(planned.ids) for planned in loaded)
        same_cap = consumed and consumed[-1][0] == cap
        consumed = (*consumed[:-1], (cap, consumed[-1][1] + count)) if same_cap else (*consumed, (cap, count))
    assert sorted(seen) == sorted(Noise().ids)
    assert loaded[-1].last
    assert list(source().epoch(1, consumed)) == []


def test_workers_follow_a_jump():
    """An epoch that was left in the middle, then another one: nothing prepared ahead may leak into it."""
    working = source(num_workers=2)
    left = working.epoch(0)
    next(left), next(left)
    assert drawn(working.epoch(3)) == drawn(source().epoch(3))
    assert drawn(working.epoch(3, ((None, 4),))) == drawn(source().epoch(3))[1:]
    working.close()


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_ranks_see_the_same_global_batches(world_size):
    whole = [planned.ids for planned in source().epoch(1)]
    ranks = [list(source(rank=rank, world_size=world_size).epoch(1)) for rank in range(world_size)]
    for position, batch in enumerate(whole):
        seen = [name for rank in ranks if rank[position].weight for name in rank[position].ids]
        assert sorted(seen) == sorted(batch)


def test_a_rank_without_items_is_told_so():
    ranks = [list(source(Noise(5), rank=rank, world_size=2).epoch(0)) for rank in range(2)]
    last = [rank[-1] for rank in ranks]
    assert [planned.weight for planned in last] == [1.0, 0.0]
    assert last[0].ids == last[1].ids, "the stand-in is the batch's first item"


@pytest.mark.parametrize("workers", [0, 2])
def test_merged_batches_are_those_of_the_plan_one_after_another(workers):
    plain = [planned.ids for planned in source(batch_size=1).epoch(1)]
    ranks = [source(batch_size=1, merged=4, rank=rank, world_size=3, num_workers=workers) for rank in range(3)]
    made = [list(rank.epoch(1, ((None, 8),))) for rank in ranks]
    assert [[planned.planned for planned in rank] for rank in made] == [[4, 4, 4, 3]] * 3
    assert ranks[0].steps(1) == len(plain) - 8 == 15
    for number, parts in enumerate(zip(*made, strict=True)):
        expected = [name for ids in plain[8 + 4 * number : 12 + 4 * number] for name in ids]
        assert sorted(name for part in parts for name in part.ids) == sorted(expected)
    for rank in ranks:
        rank.close()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("its bits\nare rotten"), "sample clip-3: its bits are rotten"),
        (DataError("too short"), "sample clip-3: too short"),
        (DataError("clip-3.wav: too short"), "clip-3.wav: too short"),
        (TrainingError("no room"), "sample clip-3: no room"),
    ],
)
def test_a_failing_sample_is_one_line_that_names_it(workers, error, line):
    failing = source(Noise(broken="clip-3", error=error), num_workers=workers)
    with pytest.raises(PhonateError) as caught:
        list(failing.epoch(0))
    failing.close()
    assert str(caught.value) == line
    if workers:
        assert "in get" in caught.value.__notes__[0], "--traceback has nothing to show"


@pytest.mark.parametrize("workers", [0, 1])
def test_a_mistake_in_the_code_keeps_its_type_and_names_the_sample(workers):
    failing = source(Noise(broken="clip-3", error=TypeError("no such thing")), num_workers=workers)
    with pytest.raises(TypeError, match="sample clip-3 "):
        list(failing.epoch(0))
    failing.close()


@pytest.mark.slow
def test_a_mistake_in_collating_is_not_taken_for_a_dead_worker():
    class Uncollated(Noise):
        def collate(self, items):
            raise RuntimeError("stack expects equal sizes")

    failing = source(Uncollated(), num_workers=1)
    with pytest.raises(RuntimeError, match="stack expects equal sizes"):
        next(failing.epoch(0))
    failing.close()


@pytest.mark.parametrize("persistent", [True, False])
def test_workers_end_on_close(persistent):
    before = set(multiprocessing.active_children())
    working = source(num_workers=2, persistent_workers=persistent)
    left = working.epoch(0)
    next(left)
    workers = set(multiprocessing.active_children()) - before
    assert len(workers) == 2
    assert drawn(left) == drawn(source().epoch(0, ((None, 4),)))
    assert persistent == any(worker.is_alive() for worker in workers), "others end with their epoch"
    left = working.epoch(1)
    next(left)
    working.close()
    assert set(multiprocessing.active_children()) <= before
    with pytest.raises(AssertionError, match="closed"):
        next(left)


def test_two_epochs_at_a_time_are_refused():
    """Both would take from one stream of batches and get each other's."""
    working = source(num_workers=1)
    first, second = working.epoch(0), working.epoch(1)
    next(first), next(second)
    with pytest.raises(AssertionError, match="another epoch"):
        next(first)
    working.close()


@pytest.mark.parametrize("workers", [0, 1])
def test_memory_is_pinned_with_cuda_only(monkeypatch, workers, recwarn):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    plain = source(pin_memory=True, num_workers=workers)
    assert not any(planned.batch["values"].is_pinned() for planned in plain.epoch(0))
    plain.close()
    assert not [one for one in recwarn.list if "pin" in str(one.message)]


@pytest.mark.gpu
@pytest.mark.parametrize("workers", [0, 2])
def test_memory_is_pinned_on_request(workers):
    for pin in (True, False):
        pinned = source(pin_memory=pin, num_workers=workers)
        batches = list(pinned.epoch(0))
        pinned.close()
        assert all(planned.batch["values"].is_pinned() == pin for planned in batches)
        assert all(planned.batch["names"] == "left alone" for planned in batches)


def test_a_sample_over_max_duration_is_named_before_training_starts():
    with pytest.raises(DataError, match=r"max_duration: .*2\.00 s .*clip-22 of 2\.70 s"):
        source(max_frames=20)


def test_nothing_to_load_is_an_error_and_not_an_endless_loop():
    with pytest.raises(DataError, match="no samples"):
        source(Noise(0), num_workers=2)


def test_global_generators_are_left_alone():
    torch.manual_seed(1)
    np.random.seed(1)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()
    for workers in (0, 1):
        used = source(num_workers=workers)
        list(used.epoch(0))
        used.close()
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == np.random.get_state()[1].tolist()


GROUP = """
import os, signal, subprocess, sys
sys.path[:0] = {folders!r}
from test_loading import Noise, source
import numpy as np

class Tells(Noise):
    def get(self, index, rng):
        return np.array([float(os.getpid())])

working = source(Tells(200), num_workers=2, stuck_seconds=3.0)
batches = working.epoch(0)
workers = {{int(next(batches).batch["values"][0].item()) for _ in range(4)}}
assert os.getpid() not in workers
"""


def run(code):
    """A process of its own: it must end by itself, workers and all."""
    here = os.path.dirname(__file__)
    program = GROUP.format(folders=[here, os.path.dirname(here)]) + code
    return run_python("-c", program, timeout=60)


def test_workers_outlive_a_signal_to_the_whole_group():
    """Ctrl-C, a closed terminal, a scheduler's SIGTERM reach loaders too: they go on, so that the trainer can save."""
    ended = run(
        "for worker in workers:\n"
        "    subprocess.run(['kill', '-INT', str(worker)])\n"
        "    subprocess.run(['kill', '-HUP', str(worker)])\n"
        "    subprocess.run(['kill', '-TERM', str(worker)])\n"
        "print(len(list(batches)))\n"
        "working.close()"
    )
    assert (ended.stdout, ended.stderr) == ("46\n", "")


@pytest.mark.slow
def test_workers_end_with_a_process_that_forgets_them():
    ended = run("raise SystemExit('left in the middle')")  # torch waits five seconds for each worker
    assert ended.stderr == "left in the middle\n"


def test_the_work_of_a_killed_worker_is_begun_again():
    ended = run("os.kill(workers.pop(), signal.SIGKILL)\nprint(len(list(batches)))\nworking.close()")
    assert ended.stdout == "46\n", ended.stderr
    assert "its work is begun again" in ended.stderr


@pytest.mark.slow
def test_a_worker_that_stands_still_with_a_batch_announced_is_replaced():
    """This process then waits for it inside torch, which asks it for the memory of the batch."""
    ended = run(
        "import time\n"
        "time.sleep(1.0)\n"  # both have announced what comes next
        "for worker in workers:\n"
        "    os.kill(worker, signal.SIGSTOP)\n"
        "print(len(list(batches)))\nworking.close()"
    )
    assert ended.stdout == "46\n", ended.stderr
    assert "loader processes gave no batch for 3 s" in ended.stderr
    assert "its work is begun again" in ended.stderr
