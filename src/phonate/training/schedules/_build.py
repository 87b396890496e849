"""Build a schedule from settings."""

from __future__ import annotations

from phonate.config.errors import InputError
from phonate.training.optimization_settings import SchedulerSettings
from phonate.training.registries import SCHEDULES
from phonate.training.schedules._base import ALL, Schedule

_FORMER_DEFAULTS = {"mode": "min"}
"""What recipes of runs of earlier versions have for every schedule."""


def build_schedule(settings: SchedulerSettings, peak_lr: float, total_steps: int, steps_per_epoch: int) -> Schedule:
    """Build the schedule for `settings`.

    Args:
        settings: The recipe's `training.scheduler`.
        peak_lr: The optimizer's learning rate, reached after warm-up.
        total_steps: Optimizer steps of the whole run.
        steps_per_epoch: Optimizer steps of one epoch, for intervals given in epochs.

    Raises:
        InputError: an unknown schedule, an option that the chosen schedule does not support, or contradictory options.
    """
    schedule: type[Schedule] = SCHEDULES.get(settings.type)
    _check_read(settings, schedule)
    peak = settings.max_lr or peak_lr
    if settings.min_lr > peak:
        raise InputError(f"training.scheduler.min_lr: {settings.min_lr:g} is above the peak {peak:g}")
    return schedule(settings, peak, total_steps, steps_per_epoch)


def _check_read(settings: SchedulerSettings, schedule: type[Schedule]) -> None:
    """Reject options that would have no effect."""
    if schedule.reads is None:
        return
    has = ALL | schedule.reads
    for name, info in type(settings).model_fields.items():
        if name not in has and getattr(settings, name) not in (info.default, _FORMER_DEFAULTS.get(name, info.default)):
            listed = ", ".join(option for option in type(settings).model_fields if option in has - {"type"})
            raise InputError(f"training.scheduler.{name}: {settings.type} has no {name}; it has {listed}")
