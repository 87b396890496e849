"""`phonate train --dry-run`: estimate the cost of a run from real steps and a real save, which are discarded."""

from __future__ import annotations

import itertools
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import psutil
import torch

from phonate.config.resolve import Resolved
from phonate.training.run import Run
from phonate.training.steps.accumulation import accumulation_groups
from phonate.training.task import Task
from phonate.training.trainer import Trainer

MIN_STEPS, MAX_STEPS = 3, 30
MIN_SECONDS = 5.0
"""Seconds to measure. At least 3 steps are measured."""
GIB = 2**30


def dry_run(resolved: Resolved, task: Task, device: torch.device, output: Path) -> dict[str, float]:
    """Seconds per step, hours, memory and disk usage of the run described by `resolved`, on the disk of `output`.

    The first step, which includes allocation and warm-up, is not timed.
    """
    settings = resolved.recipe.training
    beside = output.resolve()
    while not beside.exists():
        beside = beside.parent
    with tempfile.TemporaryDirectory(prefix=".phonate-dry-run-", dir=beside) as folder:
        run = Run(Path(folder) / "run")
        run.create(resuming=False)
        quiet = settings.logging.model_copy(update={"tensorboard": False, "wandb": False, "verbosity": "quiet"})
        schedule = settings.scheduler.model_copy(
            update={"warmup_steps": min(settings.scheduler.warmup_steps, MAX_STEPS)}  # no warning about so short a run
        )
        short = settings.model_copy(update={"max_steps": 1 + MAX_STEPS, "logging": quiet, "scheduler": schedule})
        trainer = Trainer(task, short, run, device=device, recipe=resolved)
        total_steps = settings.max_steps or settings.epochs * trainer.steps_per_epoch
        step_seconds = _time_steps(trainer)
        trainer.save()
        trainer.checkpoints.flush()
        checkpoint = sum(file.stat().st_size for file in trainer.checkpoints.latest().rglob("*") if file.is_file())
        trainer.checkpoints.close()
    kept = settings.checkpoint.save_total_limit + 2  # plus the best one and the one being written
    return {
        "steps": total_steps,
        "seconds_per_step": step_seconds,
        "hours": step_seconds * total_steps / 3600,
        "memory_gib": _peak_memory(device) / GIB,
        "memory_free_gib": _free_memory(device) / GIB,
        "checkpoint_gib": checkpoint / GIB,
        "disk_gib": checkpoint * kept / GIB,
        "disk_free_gib": shutil.disk_usage(beside).free / GIB,
    }


def _time_steps(trainer: Trainer) -> float:
    """Median seconds per step after the first, including waiting for data."""
    trainer.model.train()
    times = trainer.settings.gradient_accumulation_steps
    ends: list[float] = []
    for epoch in itertools.count():
        for window in accumulation_groups(trainer.train_source.epoch(epoch), times):
            trainer.train_step(window, trainer.step, trainer.ema)
            trainer.progress.step += 1
            if trainer.device.type == "cuda":
                torch.cuda.synchronize(trainer.device)
            ends.append(time.perf_counter())
            steps, seconds = len(ends) - 1, ends[-1] - ends[0]
            if steps >= MAX_STEPS or (steps >= MIN_STEPS and seconds > MIN_SECONDS):
                return statistics.median(end - start for start, end in itertools.pairwise(ends))
    raise AssertionError


def _peak_memory(device: torch.device) -> float:
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    import resource
    import sys

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(peak if sys.platform == "darwin" else peak * 1024)


def _free_memory(device: torch.device) -> float:
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    return float(psutil.virtual_memory().available)
