"""What the trainer says of itself: the log line of the last steps, and what is written down at the start of a run."""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from phonate.config.errors import TrainingError
from phonate.training.meter import Meter
from phonate.training.profiling.stages import DATA_LIMIT
from phonate.training.settings import TrainingSettings
from phonate.training.setup import hyperparameters, model_summary
from phonate.training.step import PhaseState

if TYPE_CHECKING:
    from phonate.training.trainer import Trainer

logger = logging.getLogger("phonate")

LEAST_SCALE = 2.0**-14
"""A run whose gradients only overflow now and then never has so small a loss scale."""
WORTH_A_WORD = 0.005
"""Seconds a step that are spent waiting for data: shorter waits are not worth a loader process."""


def log(trainer: Trainer) -> None:
    """Send the training metrics since the last log line to the stream; TrainingError when one is not finite."""
    train_step, (step, since) = trainer.train_step, trainer.logged_at
    train_step.check_losses()
    means = finite_means(trainer, train_step.meter)
    trainer.epoch_meter.absorb(train_step.meter)
    now = time.perf_counter()
    seconds = max(now - since, 1e-9)
    scale = train_step.precision.scale
    if scale is not None and scale < LEAST_SCALE and trainer.settings.amp_loss_scale is None:
        raise TrainingError(
            f"the loss scale of fp16 has fallen to {scale:g} by step {trainer.step}: gradients overflow in step after "
            "step, and nothing is learnt. Lower training.optimizer.lr or training.gradient_clipping, set "
            "training.mixed_precision: bf16 or fp32, or check the recordings with `phonate data check`; the last "
            "checkpoint is intact"
        )
    trainer.emit(
        {
            **means,
            **_learning_rates(trainer.phases),
            **{name: float(value) for name, value in train_step.grad_norms.items()},
            **({} if scale is None else {"grad_scale": scale}),
            "steps_per_second": (trainer.step - step) / seconds,
            "data_wait": (wait := min(trainer.waited / seconds, 1.0)),
            **(trainer.memory.metrics() if trainer.memory is not None and trainer.settings.logging.system else {}),
        }
    )
    long = trainer.waited > WORTH_A_WORD * (trainer.step - step)
    if step and long and wait > DATA_LIMIT and not trainer.told_slow_data:  # the first line has the loader's start
        trainer.told_slow_data = True
        logger.warning("%s", slow_data(wait, trainer.settings))
    trainer.waited = 0.0
    trainer.logged_at = (trainer.step, now)


def slow_data(wait: float, settings: TrainingSettings) -> str:
    """What to do where training waits for its data for the share `wait` of the time."""
    performance = settings.performance
    remedies = [
        f"set training.performance.num_workers (now {performance.num_workers}) to 2 to 4, or lower where the "
        "processors are all busy",
        "prepare the corpus with `phonate data prepare`",
        "raise training.batch_size if there is memory",
    ]
    if performance.profile_batches is None:
        remedies.append("see where the time goes with training.performance.profile_batches=100")
    return f"slow data: {wait:.0%} of the time went into waiting for batches; {', '.join(remedies)}"


def tell_profile(trainer: Trainer) -> None:
    """Log what the profiler found, with advice, and write it to RUN/profile/interbatch-rankN.json."""
    assert trainer.profiler is not None
    profile = trainer.profiler.profile
    if profile is None:
        return
    share = 1.0 if trainer.memory is None else trainer.memory.usage.share
    advice = profile.advice(trainer.train_step.precision.name, trainer.device.type, share)
    folder = trainer.run.path / "profile"
    folder.mkdir(exist_ok=True)
    found = {**dataclasses.asdict(profile), "advice": advice}
    trainer.run.write_json(f"profile/interbatch-rank{trainer.ranks.rank}.json", found)
    if trainer.ranks.is_main:
        logger.info("profile of %d steps\n%s\n%s", profile.steps, profile.table(), "\n".join(advice))


def finite_means(trainer: Trainer, meter: Meter) -> dict[str, float]:
    """The means over all ranks of what `meter` has counted; TrainingError when one is not finite."""
    means = meter.means(trainer.train_step.weights, trainer.ranks)
    if not all(math.isfinite(value) for value in means.values()):
        raise TrainingError(
            f"the loss was not finite at step {trainer.step} or since the log line of step {trainer.logged_at[0]}: "
            f"{means}; lower training.optimizer.lr or training.gradient_clipping, set training.mixed_precision: "
            "fp32, or check the recordings with `phonate data check`; the last checkpoint is intact"
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
    elif settings.max_length is not None:
        total = f"at most {settings.max_length * times} tokens = {settings.max_length}"
    else:
        total = f"{settings.batch_size * times} = {settings.batch_size}"
    return f"effective batch {total} x {times} accumulation, over {world_size} rank(s)"


def _learning_rates(phases: Sequence[PhaseState]) -> dict[str, float]:
    if len(phases) == 1:
        return {"learning_rate": phases[0].lr}
    return {f"learning_rate/{one.phase.name}": one.lr for one in phases}
