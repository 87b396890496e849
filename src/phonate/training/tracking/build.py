"""From settings to a stream of metrics."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from phonate.training.settings import LoggingSettings
from phonate.training.tracking.console import ConsoleSink
from phonate.training.tracking.jsonl import JsonLines
from phonate.training.tracking.previews import PreviewFolder
from phonate.training.tracking.stream import MetricStream, Sink


def check_trackers(settings: LoggingSettings) -> None:
    """Raise MissingPackageError for a tracker that is not installed: asked before hours go into preparing a corpus."""
    if settings.wandb:
        from phonate.training.tracking import wandb

        wandb.require()
    if settings.tensorboard:
        from phonate.training.tracking import tensorboard

        tensorboard.require()


def build_stream(
    settings: LoggingSettings,
    run_path: Path,
    names: Mapping[str, str],
    total_steps: int,
    resume_step: int | None = None,
    is_main: bool = True,
    verbosity: Literal["quiet", "normal", "debug"] | None = None,
    hyperparameters: Mapping[str, Any] | None = None,
) -> MetricStream:
    """The stream that `settings` ask for.

    Args:
        settings: The recipe's `training.logging`.
        run_path: The run's folder.
        names: The task's table of our metric names to those that TensorBoard and W&B show.
        total_steps: Optimizer steps of the whole run.
        resume_step: The step that a resumed run continues from. None: a new run.
        is_main: False for ranks other than the first; their stream goes nowhere.
        verbosity: Replaces `settings.verbosity`.
        hyperparameters: The recipe, for trackers that show it.

    Raises:
        MissingPackageError: a tracker is not installed.
        InputError: a tracker has no key, or can't be reached.
    """
    from phonate.training.tracking.system import SystemMonitor

    if not is_main:
        return MetricStream()
    sinks: list[Sink] = []
    if settings.wandb:
        from phonate.training.tracking.wandb import WeightsAndBiases

        sinks.append(WeightsAndBiases(settings, run_path, names, hyperparameters, resume_step is not None))
    if settings.tensorboard:
        from phonate.training.tracking.tensorboard import TensorBoard

        sinks.append(TensorBoard(run_path / "events", names, resume_step))
    sinks.append(PreviewFolder(run_path / "previews"))
    sinks.append(JsonLines(run_path / "metrics.jsonl", resume_step))
    sinks.append(ConsoleSink(total_steps, verbosity or settings.verbosity))
    system = SystemMonitor() if settings.system else None
    return MetricStream(sinks, only=settings.log_metrics, system=system)
