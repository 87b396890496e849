"""Real training processes for tests: start, wait for something, stop."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from phonate_process import Process, run_ranks

HERE = Path(__file__).parent
PLUGIN = HERE / "plugin_task.py"

EVERYTHING = [
    "training.max_steps=60",
    "training.batch_size=4",
    "training.optimizer.lr=0.01",
    "training.gradient_accumulation_steps=2",
    "training.ema.decay=0.9",
    "training.scheduler={type: plateau, patience: 0, gamma: 0.5, warmup_steps: 2}",
    "training.validation={interval: 7, previews: false}",
    "training.checkpoint={interval: 2, save_total_limit: 3}",
    "training.early_stopping={patience: 50}",
    "training.logging={interval: 3, tensorboard: false, system: false}",
]


def start(
    run: Path,
    *overrides: str,
    ranks: int = 1,
    env: dict[str, str] | None = None,
    launcher: Sequence[str] = (),
    plugin: Path = PLUGIN,
) -> subprocess.Popen:
    """`phonate train` of the plug-in task as a process, resuming when there is something to resume.

    `launcher` is the module, with its arguments, that starts the processes; torchrun where there are several `ranks`.
    """
    command, options = prepared(run, *overrides, plugin=plugin, env=env)
    if ranks > 1 and not launcher:
        launcher = ["torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
    if not launcher:
        return Process(*command, **options)
    return subprocess.Popen([sys.executable, "-m", *launcher, "-m", "phonate", *command], **options)


def prepared(
    run: Path, *overrides: str, plugin: Path = PLUGIN, env: dict[str, str] | None = None
) -> tuple[list[str], dict[str, Any]]:
    """The arguments of `phonate`, and the options of its process."""
    run.parent.mkdir(parents=True, exist_ok=True)
    recipe = run.parent / "plugin.yaml"
    recipe.write_text("task: plugin\n")
    command = ["--plugin", str(plugin), "train", str(recipe), *EVERYTHING, *overrides]
    command += ["--output", str(run), "--resume", "auto", "--mode", "cpu"]
    log = (run.parent / "output.txt").open("ab")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}
    return command, {"env": environment, "stdout": log, "stderr": subprocess.STDOUT}


def finish(run: Path, *overrides: str, timeout: float = 180, **options: Any) -> None:
    """Train to the end; fails with the process's output when it fails. `options` are those of `start`, but for what
    starts several ranks: they have torchrun's environment without it."""
    if options.get("ranks", 1) > 1 and "launcher" not in options:
        command, streams = prepared(run, *overrides, plugin=options.get("plugin", PLUGIN), env=options.get("env"))
        code = run_ranks(options["ranks"], *command, timeout=timeout, **streams).returncode
    else:
        code = start(run, *overrides, **options).wait(timeout)
    assert code == 0, (run.parent / "output.txt").read_text()[-4000:]


def wait_for(condition, process: subprocess.Popen, seconds: float = 60) -> bool:
    """Poll until `condition()`; False when the process ended before."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        if process.poll() is not None:
            return False
        time.sleep(0.0005)
    raise AssertionError("nothing happened in time")


def rows(run: Path) -> list[dict]:
    """metrics.jsonl without what depends on the clock."""
    clock = {"steps_per_second", "samples_per_second", "data_wait", "time"}
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [
        {k: v for k, v in line.items() if k not in clock and not k.startswith("time/")}
        for line in lines
        if line["split"] != "event"
    ]


def last_step(run: Path) -> int:
    """The newest checkpoint's step; 0 without one."""
    return max((int(p.name[5:]) for p in run.glob("checkpoints/step-*")), default=0)


def final(run: Path) -> dict:
    """Weights and state tensors of the newest checkpoint."""
    from safetensors.torch import load_file

    folder = run / "checkpoints" / f"step-{last_step(run):08d}"
    return {**load_file(folder / "weights.safetensors"), **load_file(folder / "state.safetensors")}
