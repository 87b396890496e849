"""Learning rate schedules, as functions of the optimizer step. No torch in this file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from phonate.config.errors import CheckpointError, InputError
from phonate.training.metrics import improves
from phonate.training.registries import SCHEDULES
from phonate.training.settings import SchedulerSettings

# ------------------------------------ Base class of the schedules: warm-up, minimum rate and interface

ALL = frozenset({"type", "warmup_steps", "min_lr", "max_lr"})
"""Settings common to all schedules."""


class Schedule:
    """The learning rate as a function of the optimizer step, counted from 0.

    Subclasses define the rate after warm-up (`curve`). The linear warm-up to the start of that curve and the
    minimum `min_lr` are common to all. A schedule is a pure function of the step, so a resumed run needs
    no state, except for `plateau`, which monitors a metric.
    """

    reads: frozenset[str] | None = None
    """Settings that this schedule supports besides `ALL`; others are rejected. None: no check."""
    metric: str | None = None
    """The validation metric to pass to `observe`. None: `observe` is not used."""
    scale: float = 1.0
    """Multiplier of the whole curve, set by callbacks (`dynamic_lr`)."""

    def __init__(self, settings: SchedulerSettings, peak_lr: float, total_steps: int, steps_per_epoch: int) -> None:
        self.settings = settings
        self.peak = peak_lr
        self.floor = settings.min_lr
        self.warmup = settings.warmup_steps
        self.steps_per_epoch = max(1, steps_per_epoch)
        self.decay_steps = settings.decay_steps or max(1, total_steps - self.warmup)
        """Steps from the end of warm-up to the minimum."""

    def curve(self, step: int) -> float:
        """The learning rate `step` optimizer steps after warm-up."""
        raise NotImplementedError

    def lr(self, step: int) -> float:
        """The learning rate of the optimizer step numbered `step`, from 0.

        During warm-up, step i < warmup_steps has (i + 1) / (warmup_steps + 1) of the rate at step `warmup_steps`.
        No step has a rate of 0, and the curve continues without a jump.
        """
        if step < self.warmup:
            return (step + 1) / (self.warmup + 1) * max(self.floor, self.scale * self.curve(0))
        return max(self.floor, self.scale * self.curve(step - self.warmup))

    def observe(self, metric: float) -> None:
        """Record a validation metric. Only `plateau` uses it."""

    def state(self) -> dict[str, Any]:
        """State to save in a checkpoint, as JSON. Empty for a pure function of the step."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore `state`. Nothing to do for a pure function of the step."""

    def steps(self, interval: int | str) -> int:
        """Convert an interval setting (500 or "5 epochs") to optimizer steps."""
        if isinstance(interval, str):
            return int(interval.split()[0]) * self.steps_per_epoch
        return interval

    def cosine(self, fraction: float, high: float, low: float) -> float:
        """Half a cosine from `high` (fraction 0) to `low` (fraction 1 and beyond)."""
        return low + (high - low) * 0.5 * (1 + math.cos(math.pi * min(1.0, fraction)))


# -------------------------------------------------------------------------------------------- No decay


class ConstantSchedule(Schedule):
    """The peak rate, after warm-up."""

    reads = frozenset()

    def curve(self, step: int) -> float:
        return self.peak


# ---------------------------------------------------------------------------------------- Linear decay


class LinearSchedule(Schedule):
    """From the peak to `min_lr` over `decay_steps`, along a straight line, then constant."""

    reads = frozenset({"decay_steps"})

    def curve(self, step: int) -> float:
        return self.peak + (self.floor - self.peak) * min(1.0, step / self.decay_steps)


# ----------------- Cosine decay without restarts (Loshchilov & Hutter 2017, equation 5 with one cycle)


class CosineSchedule(Schedule):
    """From the peak to `min_lr` over `decay_steps`, along half a cosine, then constant."""

    reads = frozenset({"decay_steps"})

    def curve(self, step: int) -> float:
        return self.cosine(step / self.decay_steps, self.peak, self.floor)


# ------------------------- Cosine decay with warm restarts: SGDR (Loshchilov & Hutter 2017, section 3)


class CosineRestartsSchedule(Schedule):
    """Cosine cycles from the peak to `min_lr`, each `cycle_mult` times as long as the previous one.

    With `cycle_steps`, the first cycle has that many steps and restarts continue to the end of the run. Without it,
    `num_cycles` cycles fill the decay, after which the rate stays at `min_lr`.
    """

    reads = frozenset({"decay_steps", "num_cycles", "cycle_steps", "cycle_mult"})

    def __init__(self, settings: SchedulerSettings, peak_lr: float, total_steps: int, steps_per_epoch: int) -> None:
        super().__init__(settings, peak_lr, total_steps, steps_per_epoch)
        self.mult = settings.cycle_mult
        self.end = math.inf
        if settings.cycle_steps is not None:
            if settings.num_cycles > 1:
                raise InputError("training.scheduler.num_cycles: set either this or cycle_steps, not both")
            self.first = float(self.steps(settings.cycle_steps))
        else:
            lengths = sum(self.mult**cycle for cycle in range(settings.num_cycles))
            self.first = self.decay_steps / lengths
            self.end = self.decay_steps

    def curve(self, step: int) -> float:
        if step >= self.end:
            return self.floor
        if self.mult == 1:
            return self.cosine(step % self.first / self.first, self.peak, self.floor)
        # Cycle n begins at first * (mult^n - 1) / (mult - 1); n is the current one. Because of the
        # tolerance, a step exactly on a restart is not counted into the previous cycle.
        cycle = math.floor(math.log(step / self.first * (self.mult - 1) + 1, self.mult) + 1e-9)
        begin = self.first * (self.mult**cycle - 1) / (self.mult - 1)
        length = self.first * self.mult**cycle
        return self.cosine(max(0.0, step - begin) / length, self.peak, self.floor)


USUAL_INTERVAL = 1000
"""Steps from one multiplication by `gamma` to the next, where the recipe does not say."""
END = 0.01
"""Share of the peak at which `exponential` ends, where the recipe says nothing about its decay."""


# ----------------------------------------------------------------------------------- Exponential decay


class ExponentialSchedule(Schedule):
    """Smooth decay by the factor `gamma` (0.95) per `step_size` (1000), down to `min_lr`; with neither of them given to
    1 % of the peak by the end of the run."""

    reads = frozenset({"step_size", "gamma"})

    def curve(self, step: int) -> float:
        gamma, interval = self.settings.gamma, self.settings.step_size
        if gamma is None and interval is None:
            return self.peak * float(END ** (step / self.decay_steps))
        return self.peak * float((gamma or 0.95) ** (step / self.steps(interval or USUAL_INTERVAL)))


# ---------------------------------------------------------------------------------- One-cycle schedule

START = 1 / 25
"""Initial rate as a share of the peak."""
RISE = 0.3
"""Share of the cycle during which the rate increases."""


class OneCycleSchedule(Schedule):
    """From 1/25 of the peak (`max_lr`) up to it over 30 % of `decay_steps`, then down to `min_lr`."""

    reads = frozenset({"decay_steps"})

    def curve(self, step: int) -> float:
        rise = RISE * self.decay_steps
        if step < rise:
            return self.cosine(step / rise, START * self.peak, self.peak)
        return self.cosine((step - rise) / (self.decay_steps - rise), self.peak, self.floor)


# ------------------------------------------------------------------------------------------ Step decay


class StepSchedule(Schedule):
    """The rate is multiplied by `gamma` (0.1) at every `step_size` (1000), down to `min_lr`."""

    reads = frozenset({"step_size", "gamma"})

    def curve(self, step: int) -> float:
        gamma = 0.1 if self.settings.gamma is None else self.settings.gamma
        return self.peak * float(gamma ** (step // self.steps(self.settings.step_size or USUAL_INTERVAL)))


# ------------------------------------------------------ Decay when a validation metric stops improving


class PlateauSchedule(Schedule):
    """The rate is multiplied by `gamma` (0.1) after `patience` consecutive validations without improvement.

    As in torch's ReduceLROnPlateau with a threshold of 0, the validation after `patience` bad ones reduces the
    rate and resets the count. NaN does not count as an improvement.
    """

    reads = frozenset({"gamma", "patience", "mode", "metric"})

    def __init__(self, settings: SchedulerSettings, peak_lr: float, total_steps: int, steps_per_epoch: int) -> None:
        super().__init__(settings, peak_lr, total_steps, steps_per_epoch)
        self.metric = settings.metric
        self.gamma = 0.1 if settings.gamma is None else settings.gamma
        self.best: float | None = None
        self.bad = 0
        self.reductions = 0

    def curve(self, step: int) -> float:
        return self.peak * float(self.gamma**self.reductions)

    def observe(self, metric: float) -> None:
        """Count a validation, and reduce the rate once patience is exhausted."""
        if improves(metric, self.best, higher=self.settings.mode == "max"):
            self.best, self.bad = metric, 0
            return
        self.bad += 1
        if self.bad > self.settings.patience:
            self.bad = 0
            self.reductions += 1

    def state(self) -> dict[str, Any]:
        """The best metric, the number of validations since, and the number of reductions."""
        return {"best": self.best, "bad": self.bad, "reductions": self.reductions}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore `state`. Raises CheckpointError if it belongs to another type of schedule."""
        if state.keys() != self.state().keys():
            raise CheckpointError(
                "the checkpoint has no state of a plateau schedule; resume with the "
                "training.scheduler.type of the original run, or start a new run with training.init_from"
            )
        best = state["best"]
        self.best = None if best is None else float(best)
        self.bad, self.reductions = int(state["bad"]), int(state["reductions"])


# ---------------------------------------------------------------------- Build a schedule from settings

_FORMER_DEFAULTS = {"mode": "min", "step_size": 1000}
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
