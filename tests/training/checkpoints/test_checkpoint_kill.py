"""kill -9 of real processes, between any two file system calls of a save and at random moments."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from small_checkpoints import assert_whole, save

from phonate.training.checkpoints import CheckpointManager
from phonate.training.settings import CheckpointConfig
from phonate_process import PythonProcess, run_python


class Forker:
    """Talks to saving_process.py."""

    def __init__(self) -> None:
        self.process = PythonProcess(
            Path(__file__).with_name("saving_process.py"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, folder: Path, **order: Any) -> int:
        """Start a child that saves; returns its pid."""
        defaults = {"folder": str(folder), "first": 1, "count": 1, "die_at": None, "keep": 2, "numel": 1000}
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({**defaults, **order}) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def wait(self) -> int:
        """The child's exit code, negative for a signal."""
        return os.waitstatus_to_exitcode(self._answer())

    def _answer(self) -> int:
        assert self.process.stdout is not None
        return int(self.process.stdout.readline())

    def stop(self) -> None:
        """End the process."""
        self.process.communicate()


@pytest.fixture(scope="module")
def forker() -> Iterator[Forker]:
    started = Forker()
    yield started
    started.stop()


def acknowledged(run: Path) -> int:
    """The last step that the child knew to be safe."""
    path = run / "acknowledged"
    return int(path.read_text().split()[-1]) if path.exists() and path.read_text() else 0


def check(run: Path, at_least: int, at_most: int) -> None:
    """The newest checkpoint is whole and no older than what was safe, so is the best; and saving goes on."""
    with CheckpointManager(run / "checkpoints", CheckpointConfig(save_total_limit=1)) as manager:
        loaded = manager.load_latest_checkpoint()
        assert loaded is not None
        assert not loaded.skipped
        assert at_least <= loaded.metadata.global_step <= at_most
        assert_whole(loaded)
        best = manager.load_best_checkpoint()
        assert not best.skipped
        assert_whole(best)
        following = loaded.metadata.global_step + 1
        save(manager, following, best_metric=("val_loss", 1.0))
        assert manager.load_checkpoint("latest").metadata.global_step == following
        hidden = [path.name for path in manager.folder.glob(".*") if path.name != ".lock"]
        assert not hidden, "what the killed process left was not cleaned"


@pytest.mark.parametrize(
    "step", [pytest.param(3, id="a new step"), pytest.param(2, id="a step saved again", marks=pytest.mark.slow)]
)
def test_killed_before_every_file_system_call_of_a_save(step: int, forker: Forker, tmp_path: Path) -> None:
    """Saving removes the oldest, moves the best pointer, writes the history: no moment of it loses anything."""
    start = tmp_path / "start"
    with CheckpointManager(start / "checkpoints") as manager:
        for earlier in (1, 2):
            save(manager, earlier, best_metric=("val_loss", 1 / earlier))
    run = tmp_path / "run"
    shutil.copytree(start, run)
    forker.start(run / "checkpoints", first=step, keep=1)
    assert forker.wait() == 0
    calls = int((run / "calls").read_text())
    assert calls > 40
    for die_at in range(calls):
        shutil.rmtree(run)
        shutil.copytree(start, run)
        forker.start(run / "checkpoints", first=step, keep=1, die_at=die_at)
        assert forker.wait() == -signal.SIGKILL
        check(run, at_least=2, at_most=step)


def test_killed_at_random_moments(forker: Forker, tmp_path: Path) -> None:
    """24 kills in a loop of saves of 4 MB each, resumed from what the last kill left."""
    rng = random.Random(7)
    run = tmp_path / "run"
    with CheckpointManager(run / "checkpoints") as manager:
        save(manager, 1, best_metric=("val_loss", 1.0))
    inside = 0
    for _ in range(24):
        first = CheckpointManager(run / "checkpoints").load_checkpoint("latest").metadata.global_step + 1
        pid = forker.start(run / "checkpoints", first=first, count=10_000, numel=500_000)
        while acknowledged(run) < first:  # on a busy machine it may take a second to get there
            time.sleep(0.002)
        time.sleep(rng.uniform(0.0, 0.1))
        os.kill(pid, signal.SIGKILL)
        assert forker.wait() == -signal.SIGKILL
        inside += any((run / "checkpoints").glob(".step-*"))
        with CheckpointManager(run / "checkpoints") as manager:
            loaded = manager.load_latest_checkpoint()
        assert loaded is not None
        assert not loaded.skipped
        assert loaded.metadata.global_step >= acknowledged(run)
        assert_whole(loaded)
    assert inside >= 5, "too few kills hit a save"


def test_the_lock_dies_with_its_process(forker: Forker, tmp_path: Path) -> None:
    """While a process saves, another one is refused; once it is killed, the next may save at once."""
    folder = tmp_path / "run" / "checkpoints"
    folder.mkdir(parents=True)
    pid = forker.start(folder, count=100_000)
    while not acknowledged(tmp_path / "run"):
        time.sleep(0.01)
    os.kill(pid, signal.SIGSTOP)  # so that it takes no time from the others
    code = (
        "import sys; from pathlib import Path; from phonate.training.checkpoints import files\n"
        "files.PATIENCE_SECONDS = 0.2\n"
        "try: files.folder_lock(Path(sys.argv[1]))\n"
        "except Exception as error: sys.exit(f'{type(error).__name__}: {error}')"
    )
    second = run_python("-c", code, folder)
    assert second.stderr.strip().startswith(f"CheckpointError: {folder}: another process ({pid}) is training")
    os.kill(pid, signal.SIGKILL)
    forker.wait()
    assert run_python("-c", code, folder).returncode == 0
