"""Base class of the schedules: warm-up, minimum rate and interface."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from phonate.training.optimization_settings import SchedulerSettings

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
