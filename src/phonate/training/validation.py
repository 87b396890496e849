"""Validation: the loss over every validation sample, then what the task measures itself."""

from __future__ import annotations

import contextlib
import difflib
import logging
import math
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from phonate.config.errors import InputError
from phonate.training.callbacks._watch import MetricWatch
from phonate.training.meter import Meter
from phonate.training.signals import StopNow
from phonate.training.step import seed_torch
from phonate.training.task import Dataset, move

if TYPE_CHECKING:
    from phonate.training.trainer import Trainer

logger = logging.getLogger("phonate")


@dataclass
class Best:
    """The best validation so far."""

    metric: str
    greater_is_better: bool
    value: float | None = None
    step: int = 0

    def improved(self, value: float) -> bool:
        """Whether `value` is better than every earlier one."""
        if math.isnan(value):
            return False
        return self.value is None or (value > self.value if self.greater_is_better else value < self.value)


def picked(metrics: Mapping[str, float], name: str, key: str) -> float:
    """The metric that setting `key` names."""
    if name not in metrics:
        close = difflib.get_close_matches(name, metrics, n=1, cutoff=0.6)
        hint = f"did you mean {close[0]}? " if close else ""
        raise InputError(f"{key}: validation gives no metric {name!r}; {hint}There is: {', '.join(sorted(metrics))}")
    return metrics[name]


def named(metrics: Mapping[str, float]) -> dict[str, float]:
    """Metrics under the names that settings may call them by: `loss` is `val_loss` too."""
    return {**{f"val_{name}": value for name, value in metrics.items()}, **metrics}


def check_names(trainer: Trainer, metrics: Mapping[str, float]) -> None:
    """Raise InputError for a setting that names no metric, before anything has taken note of this validation.

    The steps so far are saved first: resumed with the name put right, the run repeats the validation and goes on.
    """
    settings, there = trainer.settings, named(metrics)
    best = "checkpoint.monitor_metric" if settings.checkpoint.monitor_metric else "validation.metric_for_best_model"
    wanted = [(f"training.{best}", trainer.best.metric)]
    wanted += [("training.scheduler.metric", one.metric) for one in trainer.schedules.values() if one.metric]
    watches = [getattr(callback, "watch", None) for callback in trainer.callbacks.callbacks]
    wanted += [(watch.setting, watch.metric) for watch in watches if isinstance(watch, MetricWatch)]
    try:
        for key, name in wanted:
            picked(there, name, key)
    except InputError as error:
        trainer.save()
        where = trainer.checkpoints.folder
        raise InputError(f"{error}. Step {trainer.step} is saved to {where}: go on with --resume auto") from None


def validate(trainer: Trainer) -> dict[str, float]:
    """Metrics of the weights that `training.ema.validate_with` says (the raw ones without an average)."""
    ema = trainer.ema
    choice = ema.settings.validate_with if ema is not None else "raw"
    averaged = _measure(trainer, contextlib.nullcontext() if ema is None or choice == "raw" else ema.applied())
    check_names(trainer, averaged)
    if choice != "better":
        return averaged
    raw = _measure(trainer, contextlib.nullcontext(), previews=False)
    name = trainer.best.metric.removeprefix("val_")
    better = averaged[name] >= raw[name] if trainer.best.greater_is_better else averaged[name] <= raw[name]
    trainer.averaged_is_better = better
    logger.info("step %d: %s is %.6g averaged, %.6g raw", trainer.step, name, averaged[name], raw[name])
    return averaged if better else raw


def _measure(trainer: Trainer, weights: AbstractContextManager[Any], previews: bool = True) -> dict[str, float]:
    assert trainer.validation_source is not None
    meter = Meter()
    trainer.model.eval()
    try:
        with weights, torch.no_grad(), trainer.signals.leavable():
            _add_losses(trainer, meter)
            metrics = meter.means(trainer.train_step.weights, trainer.ranks)
            samples = trainer.validation_dataset
            if samples is not None:
                metrics.update(_evaluate(trainer, samples))
            metrics.update(trainer.task.derived(metrics))
            if previews and trainer.settings.validation.previews and trainer.ranks.is_main:
                trainer.show(trainer.task.previews(trainer.model))
    finally:
        trainer.model.train()
    return metrics


def _evaluate(trainer: Trainer, dataset: Dataset) -> dict[str, float]:
    """The task's own metrics over the whole validation set, of which each rank evaluates its share."""
    ranks = trainer.ranks
    share = range(ranks.rank, len(dataset.ids), ranks.world_size)
    sums = trainer.task.evaluate(trainer.model, dataset, share) if share else {}
    totals: dict[str, tuple[float, float]] = {}
    for part in ranks.gather({name: (float(total), float(count)) for name, (total, count) in sums.items()}):
        for name, (total, count) in part.items():
            before = totals.get(name, (0.0, 0.0))
            totals[name] = (before[0] + total, before[1] + count)
    return {name: total / count for name, (total, count) in totals.items() if count}


def _add_losses(trainer: Trainer, meter: Meter) -> None:
    """Every validation batch in every phase. Each validation sees the same crops and draws the same numbers."""
    assert trainer.validation_source is not None
    for i, planned in enumerate(trainer.validation_source.epoch(0)):
        batch = move(planned.batch, trainer.device)
        for state in trainer.phases:
            seed_torch(trainer.device, trainer.settings.random_seed, "validation", i, trainer.ranks.rank)
            with trainer.train_step.precision.autocast():
                terms = trainer.task.loss(trainer.model, batch, state.phase.name)
            # A filler batch of a rank that has fewer counts nothing, but every rank must add the same names.
            meter.add(
                {name: (total * planned.weight, count * planned.weight) for name, (total, count) in terms.items()}
            )
        if trainer.ranks.world_size > 1 and trainer.stop_requested():
            raise StopNow
