"""Build a metric stream from settings."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from phonate.training.settings import LoggingSettings
from phonate.training.tracking import tensorboard
from phonate.training.tracking.console import ConsoleSink
from phonate.training.tracking.stream import JsonLines, MetricStream, Sink
from phonate.training.tracking.tensorboard import PreviewFolder

log = logging.getLogger("phonate")


def check_trackers(settings: LoggingSettings) -> None:
    """Raise MissingPackageError if a tracker is not installed. Called before the corpus is prepared."""
    if settings.wandb:
        from phonate.training.tracking import wandb

        wandb.require()
    for name in ("mlflow", "trackio"):
        if getattr(settings, name):
            importlib.import_module(f"phonate.training.tracking.{name}").require()
    tensorboard.enabled(settings.tensorboard)


def build_stream(
    settings: LoggingSettings,
    run_path: Path,
    names: Mapping[str, str],
    total_steps: int,
    resume_step: int | None = None,
    logged: int = 0,
    is_main: bool = True,
    verbosity: Literal["quiet", "normal", "debug"] | None = None,
    hyperparameters: Mapping[str, Any] | None = None,
) -> MetricStream:
    """Build the stream for `settings`.

    Args:
        settings: The recipe's `training.logging`.
        run_path: The run's folder.
        names: The task's mapping from metric names to those shown by TensorBoard and W&B.
        total_steps: Optimizer steps of the whole run.
        resume_step: The step from which a resumed run continues. None: a new run.
        logged: The last step up to there whose training metrics the run's folder should have.
        is_main: False for ranks other than the first; their stream has no sinks.
        verbosity: Overrides `settings.verbosity`.
        hyperparameters: The recipe, for trackers that record it.

    Raises:
        MissingPackageError: a tracker is not installed.
        InputError: a tracker has no API key or can't be reached.
    """
    from phonate.training.tracking.stream import SystemMonitor

    if not is_main:
        return MetricStream()
    sinks: list[Sink] = []
    if settings.wandb:
        from phonate.training.tracking.wandb import WeightsAndBiases

        sinks.append(WeightsAndBiases(settings, run_path, names, hyperparameters, resume_step is not None))
    if settings.mlflow:
        from phonate.training.tracking.mlflow import MLflow

        sinks.append(MLflow(run_path, names, hyperparameters or {}, settings.log_model))
    if settings.trackio:
        from phonate.training.tracking.trackio import Trackio

        sinks.append(Trackio(run_path, names, hyperparameters or {}))
    if tensorboard.enabled(settings.tensorboard):
        sinks.append(tensorboard.TensorBoard(run_path / "events", names, resume_step))
    elif settings.tensorboard:
        log.info("no events for TensorBoard, which is not installed; pip install 'phonate[tensorboard]' to have them")
    sinks.append(PreviewFolder(run_path / "previews"))
    sinks.append(JsonLines(run_path / "metrics.jsonl", resume_step, logged))
    sinks.append(ConsoleSink(total_steps, verbosity or settings.verbosity, interval=settings.interval))
    system = SystemMonitor() if settings.system else None
    return MetricStream(sinks, only=settings.log_metrics, system=system)
