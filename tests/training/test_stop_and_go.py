"""Stopping real processes in every way and going on: nothing may differ from the undisturbed run."""

from __future__ import annotations

import json
import random
import signal
import time

import pytest
import torch
from processes import final, finish, last_step, rows, start, wait_for

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=[0, 2], ids=["no-workers", "two-workers"])
def undisturbed(request, tmp_path_factory):
    """A run to the end, and the override that says how many loader workers it had."""
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    workers = f"training.performance.num_workers={request.param}"
    finish(run, workers)
    return run, workers


def assert_same(run, reference):
    assert rows(run) == rows(reference)
    ours, theirs = final(run), final(reference)
    assert ours.keys() == theirs.keys()
    different = [name for name in ours if not torch.equal(ours[name], theirs[name])]
    assert not different


def test_killed_many_times_with_sigkill(tmp_path, undisturbed):
    """kill -9 at 20 random points (8 with workers), every second one while a save is being written."""
    reference, workers = undisturbed
    kills = 20 if workers.endswith("=0") else 8
    run = tmp_path / "run"
    chance = random.Random(7)
    inside = 0
    for kill in range(kills):
        process = start(run, workers, env={"SLOW_DATA": "0.005"})
        before = last_step(run)
        if kill % 2:
            found = wait_for(lambda before=before: last_step(run) > before, process)
            found = found and wait_for(lambda: any(run.glob("checkpoints/.step-*")), process)
        else:
            found = wait_for(lambda: (run / "metrics.jsonl").exists(), process)
            time.sleep(chance.uniform(0.0, 1.2))
        process.kill()
        process.wait()
        inside += any(run.glob("checkpoints/.step-*"))
        if not found:  # it had come to its end
            break
    assert inside >= kills // 6
    finish(run, workers)
    assert_same(run, reference)


def stop(process, number) -> int:
    process.send_signal(number)
    return process.wait(60)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_in_training_saves_within_a_step(tmp_path, undisturbed, number, code):
    reference, workers = undisturbed
    run = tmp_path / "run"
    process = start(run, workers, "training.checkpoint.interval=1000", env={"SLOW_DATA": "0.01"})
    assert wait_for(lambda: (run / "metrics.jsonl").exists() and len(rows(run)) >= 3, process)
    assert stop(process, number) == code
    steps = [row["step"] for row in rows(run)]
    assert 0 <= last_step(run) - max(steps) <= 3
    finish(run, workers)
    assert_same(run, reference)


def test_a_signal_in_validation_saves_and_the_validation_is_repeated(tmp_path, undisturbed):
    reference, workers = undisturbed
    run, flag = tmp_path / "run", tmp_path / "validating"
    process = start(run, workers, env={"SLOW_VALIDATION": "90", "VALIDATING": str(flag)})
    assert wait_for(flag.exists, process)
    began = time.monotonic()
    assert stop(process, signal.SIGTERM) == 143
    assert time.monotonic() - began < 90
    assert last_step(run) == 7
    state = json.loads((run / "checkpoints/step-00000007/state.json").read_text())
    assert "unfinished" in json.dumps(state)
    finish(run, workers)
    assert_same(run, reference)


def test_a_signal_in_a_wait_for_data_saves_at_once(tmp_path, undisturbed):
    reference, workers = undisturbed
    run = tmp_path / "run"
    process = start(run, workers, env={"SLOW_DATA": "90"})
    assert wait_for(lambda: (run / "system.json").exists(), process)
    time.sleep(1.0)
    began = time.monotonic()
    assert stop(process, signal.SIGTERM) == 143
    assert time.monotonic() - began < 90  # the wait for a single sample
    finish(run, workers)
    assert_same(run, reference)


def test_a_flipped_bit_in_the_newest_checkpoint_falls_back_and_says_so(tmp_path, undisturbed):
    reference, workers = undisturbed
    run = tmp_path / "run"
    finish(run, workers, "training.max_steps=40")
    newest = run / "checkpoints/step-00000040/weights.safetensors"
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(data)
    finish(run, workers)
    output = (tmp_path / "output.txt").read_text()
    assert "step-00000040 is damaged (weights.safetensors: SHA-256 differs)" in output
    assert "step-00000038 at step 38" in output
    assert_same(run, reference)
