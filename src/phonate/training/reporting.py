"""What the trainer says of itself: the log line of the last steps, and what is written down at the start of a run."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from phonate.config.errors import TrainingError
from phonate.training.meter import Meter
from phonate.training.settings import TrainingSettings
from phonate.training.setup import hyperparameters, model_summary
from phonate.training.step import PhaseState

if TYPE_CHECKING:
    from phonate.training.trainer import Trainer

logger = logging.getLogger("phonate")


def log(trainer: Trainer) -> None:
    """Send the training metrics since the last log line to the stream; TrainingError when one is not finite."""
    train_step, (step, since) = trainer.train_step, trainer.logged_at
    means = finite_means(trainer, train_step.meter)
    trainer.epoch_meter.absorb(train_step.meter)
    now = time.perf_counter()
    seconds = max(now - since, 1e-9)
    scale = train_step.precision.scale
    trainer.emit(
        {
            **means,
            **_learning_rates(trainer.phases),
            **{name: float(value) for name, value in train_step.grad_norms.items()},
            **({} if scale is None else {"grad_scale": scale}),
            "steps_per_second": (trainer.step - step) / seconds,
            "data_wait": min(trainer.waited / seconds, 1.0),
        }
    )
    trainer.waited = 0.0
    trainer.logged_at = (trainer.step, now)


def finite_means(trainer: Trainer, meter: Meter) -> dict[str, float]:
    """The means over all ranks of what `meter` has counted; TrainingError when one is not finite."""
    means = meter.means(trainer.train_step.weights, trainer.ranks)
    if not all(math.isfinite(value) for value in means.values()):
        raise TrainingError(
            f"the loss was not finite at step {trainer.step} or since the log line of step {trainer.logged_at[0]}: "
            f"{means}; lower training.optimizer.lr or set training.mixed_precision: fp32; the last checkpoint is intact"
        )
    return means


def describe(trainer: Trainer) -> None:
    """Write down what this run is, and say the sizes that decide how it goes."""
    settings = trainer.settings
    trainable = sum(p.numel() for p in trainer.model.parameters() if p.requires_grad)
    logger.info(
        "%s: %.2f M trainable parameters on %s in %s; %s",
        type(trainer.task).__name__,
        trainable / 1e6,
        trainer.device,
        trainer.train_step.precision.name,
        effective_batch(settings, trainer.ranks.world_size),
    )
    if trainer.ranks.is_main:
        whole = hyperparameters(settings, trainer.recipe_yaml)
        trainer.run.describe(whole, trainer.recipe_yaml, model_summary(trainer.model))


def effective_batch(settings: TrainingSettings, world_size: int) -> str:
    """What one optimizer step learns from, all ranks together."""
    times = settings.gradient_accumulation_steps
    if settings.max_duration is not None:
        seconds = settings.max_duration
        total = f"at most {seconds * times:g} s = {seconds:g} s"
    else:
        total = f"{settings.batch_size * times} = {settings.batch_size}"
    return f"effective batch {total} x {times} accumulation, over {world_size} rank(s)"


def _learning_rates(phases: Sequence[PhaseState]) -> dict[str, float]:
    if len(phases) == 1:
        return {"learning_rate": phases[0].lr}
    return {f"learning_rate/{one.phase.name}": one.lr for one in phases}
