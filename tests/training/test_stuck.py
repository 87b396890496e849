"""A step, a sample or a rank that hangs: its stacks and samples are told, and the process ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch
from small_tasks import RegressionTask, Sequences
from test_quarantine import BadTask
from test_trainer import train

from phonate.compute import distributed
from phonate.compute.distributed import Alarm, LostRankError, Ranks
from phonate.config.errors import CheckpointError, TrainingError
from phonate.training import stuck
from phonate.training.checkpoints.manager import other_shards
from phonate.training.settings import TrainingSettings
from phonate.training.setup import batch_source, stuck_seconds
from phonate.training.stuck import StuckWatch


class Ended(Exception):
    pass


@pytest.fixture
def told(monkeypatch, capfd):
    """Processes that count as stuck after a second are released in the place of ended."""
    release = threading.Event()

    def hang():
        assert release.wait(20), "nobody found it"
        raise Ended

    build = StuckWatch.__init__

    def built(self, folder, rank, seconds, describe):
        build(self, folder, rank, 0.5, describe, end=lambda code: release.set())

    monkeypatch.setattr(stuck.StuckWatch, "__init__", built)
    return hang, lambda: capfd.readouterr().err


def test_a_step_that_hangs_is_told_with_its_batch_and_stack(tmp_path, told):
    hang, said = told

    class Hanging(RegressionTask):
        def loss(self, model, batch, phase):
            if self.step == 5:
                hang()
            return super().loss(model, batch, phase)

    task = Hanging()
    with pytest.raises(Ended):
        train(tmp_path / "run", task)
    message = said()
    assert "rank 0: stuck for 0.5 s in step 6 (batch: item-1-" in message
    assert "the last checkpoint is" in message
    assert "step-00000004" in message
    stacks = (tmp_path / "run/logs/stuck-rank0.txt").read_text()
    assert "in hang" in stacks
    assert "in loss" in stacks


def test_a_sample_that_hangs_is_named(tmp_path, told):
    hang, said = told
    with pytest.raises(Ended):
        train(tmp_path / "run", BadTask(_7=hang), performance={"num_workers": 0})
    assert "at sample item-1-007; there is no checkpoint yet" in said()


def test_a_long_validation_is_not_stuck(tmp_path, told):
    _, said = told

    class Slow(RegressionTask):
        def evaluate(self, model, dataset, positions):
            time.sleep(0.8)
            return {}

    train(tmp_path / "run", Slow(), max_steps=4)
    assert "stuck" not in said()
    assert not any(thread.name == "stuck" for thread in threading.enumerate())


HELD = """
import os, signal, sys, time
from pathlib import Path
from phonate.training.stuck import StuckWatch
watch = StuckWatch(Path(sys.argv[1]), 0, 0.6, lambda: "here")
watch.start()
watch.enter()
print("in", flush=True)
time.sleep(0.1)
os.kill(os.getpid(), signal.SIGSTOP)
time.sleep(0.1)
watch.leave()
watch.close()
"""


def test_a_process_that_was_stopped_for_a_while_is_not_stuck(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", HELD, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    time.sleep(1.0)
    process.send_signal(signal.SIGCONT)
    assert (process.communicate(timeout=20)[1], process.returncode) == (b"", 0)


def test_features_that_the_first_batch_waits_for_are_not_stuck(tmp_path, told):
    _, said = told
    computed = []

    def compute_once():
        if not computed:
            computed.append(time.sleep(0.8))

    train(
        tmp_path / "run",
        BadTask(**{f"_{i}": compute_once for i in range(24)}),
        max_steps=2,
        performance={"num_workers": 0},
    )
    assert computed
    assert "stuck" not in said()


def test_a_loader_process_counts_as_stuck_before_the_ranks_that_wait_for_it():
    settings = TrainingSettings()
    ranks = Ranks(0, 2)
    source = batch_source(Sequences(6, 2), settings, ranks, torch.device("cpu"))
    assert source._stuck_seconds < stuck_seconds(settings, ranks) < 60.0 * settings.distributed.timeout_minutes


def test_a_process_ends_although_nobody_can_say_what_it_did(tmp_path, capfd):
    def lost():
        raise OSError("Stale file handle")

    ended = threading.Event()
    watch = StuckWatch(tmp_path, 0, 0.1, lost, end=lambda code: ended.set())
    watch.start()
    watch.enter()
    assert ended.wait(10)
    watch.close()
    assert "stuck for 0.1 s (where is not known: Stale file handle)" in capfd.readouterr().err
    assert "in wait" in (tmp_path / "stuck-rank0.txt").read_text()


@pytest.fixture
def two_ranks(monkeypatch):
    monkeypatch.setattr(distributed, "ALARM_SECONDS", 0.01)
    monkeypatch.setattr(distributed, "GRACE_SECONDS", 0.1)
    store, ended = torch.distributed.HashStore(), [threading.Event(), threading.Event()]
    alarms = [Alarm(store, rank, 2, end=lambda code, rank=rank: ended[rank].set()) for rank in (0, 1)]
    return [Ranks(rank, 2, alarm=alarm) for rank, alarm in enumerate(alarms)], ended


def fail(ranks, error):
    with pytest.raises(type(error)), ranks.together():
        raise error


def test_a_rank_that_waits_for_one_that_failed_is_ended_once_what_it_saves_is_saved(two_ranks, capfd):
    (first, second), (first_ended, second_ended) = two_ranks
    second.alarm.settle = lambda: print("saved")
    failing = threading.Thread(target=fail, args=(first, TrainingError("no space left")))
    with second.together():
        failing.start()
        assert second_ended.wait(10), "nothing else ends this wait"
    failing.join()
    assert not first_ended.is_set()
    assert tuple(capfd.readouterr()) == ("saved\n", "error: rank 0: no space left\n")


def test_the_first_rank_that_failed_is_what_others_tell(two_ranks):
    (first, second), _ = two_ranks
    failing = threading.Thread(target=fail, args=(first, ValueError("broken")))

    def lose():
        with second.together():
            failing.start()
            failing.join()
            raise RuntimeError("Connection closed by peer")

    with pytest.raises(LostRankError, match=r"^rank 0: ValueError: broken$"):
        lose()


def test_the_part_of_a_rank_that_has_ended_is_not_waited_for(tmp_path):
    abandoned = threading.Event()
    threading.Timer(0.05, abandoned.set).start()
    with pytest.raises(CheckpointError, match="rank 1 has not written its part of"):
        other_shards(tmp_path, 2, abandoned)
