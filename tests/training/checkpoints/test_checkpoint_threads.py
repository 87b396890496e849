"""Saves leave no threads behind: idle workers of OpenMP slow the training that goes on.

With more workers than cores, libgomp lets them sleep between operations, and a training with two threads on two
cores lost a third of its speed at its first checkpoint.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from phonate_process import run_python

SAVES = """
import os, sys, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import torch
from phonate.training.checkpoints import CheckpointManager

if sys.argv[2] == "kept":  # the faulty variant: the thread that writes lives on
    kept = []
    ThreadPoolExecutor.shutdown = lambda self, wait=True: kept.append(self)

def threads():
    return len(os.listdir("/proc/self/task"))

torch.set_num_threads(2)
weights = {"weight": torch.ones(1_000_000)}
weights["weight"].isnan().any()  # the workers of this thread
before = threads()
store = CheckpointManager(Path(sys.argv[1]))
for step in (1, 2):
    store.save_checkpoint(step=step, epoch=0, weights=weights, state={})
    store.flush()
deadline = time.monotonic() + 5
while threads() > before and time.monotonic() < deadline:
    time.sleep(0.01)
print(threads() - before, flush=True)
os._exit(0)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts the threads of a process by Linux's /proc")
@pytest.mark.parametrize(("thread", "left"), [("ended", False), ("kept", True)])
@pytest.mark.slow
def test_no_thread_outlives_its_save(thread: str, left: bool, tmp_path: Path) -> None:
    more = run_python("-c", SAVES, tmp_path / "checkpoints", thread)
    assert (more.returncode, more.stderr) == (0, "")
    assert (int(more.stdout) > 0) == left
