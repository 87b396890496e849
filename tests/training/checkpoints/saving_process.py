"""Processes that save and are killed. One process imports torch, then forks a real child for each line it reads.

A line is a JSON object: `folder`; `first` and `count`, the steps to save; `die_at`, the number of the file system
call before which the child sends itself SIGKILL (null: never); `keep`. The child writes each step to the file
`acknowledged` beside `folder` once it is safe. Answers: the child's pid, then its wait status and its calls.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from small_checkpoints import save

from phonate.training.checkpoints import CheckpointManager
from phonate.training.settings import CheckpointConfig

CALLS = ("fsync", "write", "rename", "replace", "mkdir", "unlink", "rmdir", "open")


def count_calls(die_at: int | None) -> list[int]:
    """Count calls that change the file system, or begin to; die before number `die_at`."""
    done = [0]

    def counted(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if done[0] == die_at:
                os.kill(os.getpid(), signal.SIGKILL)
            done[0] += 1
            return original(*arguments, **options)

        return call

    for name in CALLS:
        setattr(os, name, counted(getattr(os, name)))
    return done


def child(order: dict[str, Any]) -> None:
    """Save one checkpoint after the other, each the new best."""
    folder = Path(order["folder"])
    note = os.open(folder.parent / "acknowledged", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    calls = os.open(folder.parent / "calls", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    write = os.write
    config = CheckpointConfig(save_total_limit=order["keep"], track_git_info=False)
    done = count_calls(order["die_at"])
    manager = CheckpointManager(folder, config)
    for step in itertools.islice(itertools.count(order["first"]), order["count"]):
        save(manager, step, numel=order["numel"], best_metric=("val_loss", 1 / step))
        manager.flush()
        write(note, f"{step}\n".encode())
    write(calls, str(done[0]).encode())


def main() -> None:
    """Fork for each order."""
    torch.set_num_threads(1)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            child(json.loads(line))
            os._exit(0)
        print(pid, flush=True)
        print(os.waitpid(pid, 0)[1], flush=True)


if __name__ == "__main__":
    main()
