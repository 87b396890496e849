"""Samples that can't be loaded, loader processes that die or are stuck: named, begun again, left out up to a number."""

from __future__ import annotations

import errno
import itertools
import json
import os
import signal
import time

import psutil
import pytest
import torch
from small_tasks import RegressionTask, Sequences
from test_trainer import lines, same, train, weights

from phonate.compute.distributed import Ranks
from phonate.config.errors import DataError, TrainingError
from phonate.data.loading import BatchSource, LeftOut
from phonate.training import quarantine
from phonate.training.quarantine import Quarantine


class Bad(Sequences):
    """Samples that do something else when they are loaded, by number."""

    cached = False

    def __init__(self, count: int, seed: int, bad: dict[int, object]) -> None:
        super().__init__(count, seed)
        self.bad = bad

    def get(self, index, rng):
        if index in self.bad:
            self.bad[index]()
        return super().get(index, rng)


class BadTask(RegressionTask):
    def __init__(self, **bad) -> None:
        super().__init__()
        self.bad = {int(name[1:]): action for name, action in bad.items()}

    def dataset(self, split):
        return Bad(24, 1, self.bad) if split == "train" else Sequences(6, 2)


def damaged():
    raise ValueError("a broken header")


def killed():
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sample_that_can_not_be_loaded_is_left_out_and_listed(tmp_path, workers, caplog):
    changes = {"quarantine": 2, "performance": {"num_workers": workers}, "epochs": 2, "max_steps": None}
    trainer = train(tmp_path / "run", BadTask(_7=damaged), **changes)
    listed = [json.loads(line) for line in (tmp_path / "run/quarantine.jsonl").read_text().splitlines()]
    assert [(one["id"], one["reason"]) for one in listed] == [("item-1-007", "sample item-1-007: a broken header")]
    assert caplog.text.count("sample item-1-007: a broken header; left out, as 1 of at most 2") == 1
    assert all("item-1-007" not in ids for ids in trainer.task.seen)
    assert sum(map(len, trainer.task.seen)) == 2 * 23
    # one that is there and not used from the start on
    other = tmp_path / "other"
    other.mkdir()
    (other / "logs").mkdir()
    (other / "quarantine.jsonl").write_text((tmp_path / "run/quarantine.jsonl").read_text())
    assert same(weights(trainer), weights(train(other, RegressionTask(), **changes)))
    assert lines(other)[-1]["loss"] == lines(tmp_path / "run")[-1]["loss"]


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
        RuntimeError("could not create a primitive"),
        OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
        MemoryError("std::bad_alloc"),
    ],
)
def test_memory_that_runs_out_is_no_fault_of_the_sample(tmp_path, error):
    def full():
        raise error

    with pytest.raises(TrainingError, match=r"memory ran out while sample item-1-007 was loaded.*num_workers"):
        train(tmp_path / "run", BadTask(_7=full), quarantine=1)
    assert not (tmp_path / "run/quarantine.jsonl").exists()


def test_one_more_than_allowed_is_an_error(tmp_path):
    with pytest.raises(DataError, match=r"sample item-1-007: a broken header$"):
        train(tmp_path / "none", BadTask(_7=damaged))
    with pytest.raises(DataError, match=r"1 sample is left out already, no more than training\.quarantine allows"):
        train(tmp_path / "run", BadTask(_7=damaged, _8=damaged), quarantine=1)


def test_ranks_have_one_list_with_one_cap(tmp_path):
    class Two(Ranks):
        other: tuple = ()

        def gather(self, value):
            return [value, [*self.other]]

    path, ranks = tmp_path / "quarantine.jsonl", Two()
    listed = Quarantine(path, 3, ranks)
    ranks.other = [("b", "broken"), ("a", "broken")]
    assert [one.id for one in listed.add([LeftOut("a", "broken")], 1)] == ["a", "b"]
    assert list(quarantine.read(path)) == ["a", "b"] == list(Quarantine(path, 3, Ranks()).samples)
    ranks.other = [("c", "broken"), ("d", "broken")]
    with pytest.raises(DataError, match="sample d: broken; 3 samples are left out already"):
        listed.add([], 2)


def test_a_batch_of_which_nothing_is_left_counts_nothing():
    samples = Bad(6, 1, {2: damaged})
    source = BatchSource(samples, seed=1, batch_size=1, tolerant=True)
    batches = list(source.epoch(0))
    assert len(batches) == 6
    (empty,) = [one for one in batches if one.left_out]
    assert (empty.weight, empty.samples, empty.left_out[0].id) == (0.0, 1, "item-1-002")
    assert empty.ids != ["item-1-002"]
    nothing = Bad(2, 1, {0: damaged, 1: damaged})
    with pytest.raises(DataError, match="no other sample could take its place"):
        list(BatchSource(nothing, seed=1, batch_size=1, tolerant=True).epoch(0))


@pytest.mark.slow
def test_a_worker_that_dies_is_replaced_and_nothing_is_lost(tmp_path):
    """Killed once, it is begun again; the run is the same as one without."""
    once = tmp_path / "once"

    def killed_once():
        if not once.exists():
            once.touch()
            killed()

    ours = train(tmp_path / "run", BadTask(_7=killed_once), performance={"num_workers": 2})
    assert once.exists()
    assert same(weights(ours), weights(train(tmp_path / "other", RegressionTask())))
    assert not (tmp_path / "run/quarantine.jsonl").exists()


@pytest.mark.slow
def test_a_worker_that_dies_in_the_middle_of_a_step_is_no_error_of_that_step(tmp_path):
    """torch's handler of SIGCHLD would raise in the main thread, wherever it is."""
    once = tmp_path / "once"

    class Slow(BadTask):
        def loss(self, model, batch, phase):
            if torch.is_grad_enabled() and not once.exists():
                once.touch()
                children = psutil.Process().children()
                os.kill(children[-1].pid, signal.SIGKILL)
                time.sleep(0.3)
            return super().loss(model, batch, phase)

    ours = train(tmp_path / "run", Slow(), performance={"num_workers": 2})
    assert once.exists()
    assert same(weights(ours), weights(train(tmp_path / "other", RegressionTask())))


@pytest.mark.slow
def test_a_sample_that_kills_its_worker_twice_is_left_out_or_named(tmp_path, caplog):
    with pytest.raises(DataError, match=r"a loader process died .*at sample item-1-007, for the second time"):
        train(tmp_path / "none", BadTask(_7=killed), performance={"num_workers": 2})
    train(tmp_path / "run", BadTask(_7=killed), performance={"num_workers": 2}, quarantine=1)
    (line,) = (tmp_path / "run/quarantine.jsonl").read_text().splitlines()
    assert json.loads(line)["id"] == "item-1-007"
    assert "its work is begun again" in caplog.text


@pytest.mark.slow
def test_a_worker_that_is_stuck_is_told_with_its_stack(tmp_path, caplog):
    samples = Bad(12, 1, {5: stuck})
    source = BatchSource(samples, seed=1, batch_size=3, num_workers=2, tolerant=True, stuck_seconds=3.0)
    batches = list(source.epoch(0))
    source.close()
    assert [one.id for batch in batches for one in batch.left_out] == ["item-1-005"]
    assert "loader processes gave no batch for 3 s" in caplog.text
    assert "in stuck" in caplog.text, "the function that it hangs in"


def stuck():
    time.sleep(600)


def test_an_hour_in_which_this_process_was_stopped_is_no_wait_for_a_worker(monkeypatch):
    source = BatchSource(Sequences(12, 1), seed=1, batch_size=3, num_workers=2, stuck_seconds=3.0)

    class Stream:
        answers = iter([RuntimeError("DataLoader timed out after 2.0 seconds"), "a batch"])

        def __next__(self):
            answer = next(self.answers)
            if isinstance(answer, Exception):
                raise answer
            return answer

    clock = itertools.count(0, 3600)
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    assert source._next_of(Stream()) == "a batch"


def test_what_is_listed_is_read_back(tmp_path):
    path = tmp_path / "quarantine.jsonl"
    path.write_text(
        '{"id": "a", "reason": "b", "step": 3}\n{"id": "d"}\n5\n["e"]\n\udcff\n{"id": "c"', errors="surrogateescape"
    )
    assert quarantine.read(path) == {"a": "b"}
