"""From settings to a schedule."""

from __future__ import annotations

from phonate.config.errors import InputError
from phonate.config.registry import Registry
from phonate.training.schedules._base import Schedule
from phonate.training.settings import SchedulerSettings

SCHEDULES: Registry[type[Schedule]] = Registry(
    "schedule", "phonate.training.schedules", suffix="schedule", group="phonate.schedules"
)
"""Name -> a subclass of `Schedule`."""


def build_schedule(settings: SchedulerSettings, peak_lr: float, total_steps: int, steps_per_epoch: int) -> Schedule:
    """The schedule that `settings` ask for.

    Args:
        settings: The recipe's `training.scheduler`.
        peak_lr: The optimizer's learning rate, reached after warm-up.
        total_steps: Optimizer steps of the whole run.
        steps_per_epoch: Optimizer steps of one epoch, for intervals given in epochs.

    Raises:
        InputError: an unknown schedule, or numbers that contradict each other.
    """
    schedule = SCHEDULES.get(settings.type)
    if settings.max_lr is not None and settings.type != "onecycle":
        raise InputError(
            f"training.scheduler.max_lr: only onecycle has it; {settings.type} rises to training.optimizer.lr"
        )
    peak = settings.max_lr or peak_lr
    if settings.min_lr > peak:
        raise InputError(f"training.scheduler.min_lr: {settings.min_lr:g} is above the peak {peak:g}")
    return schedule(settings, peak, total_steps, steps_per_epoch)
