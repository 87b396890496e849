"""What every schedule shares: warm-up, the floor, and the interface."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from phonate.training.settings import SchedulerSettings

ALL = frozenset({"type", "warmup_steps", "min_lr", "max_lr"})
"""The settings that every schedule has."""


class Schedule:
    """The learning rate as a function of the optimizer step, counted from 0.

    Subclasses say how the rate moves after warm-up (`curve`); the linear rise to where that curve begins and
    the floor `min_lr` are the same for all. A schedule is a pure function of the step, so a resumed run needs
    no state, except for `plateau`, which watches a metric.
    """

    reads: frozenset[str] | None = None
    """The settings that this schedule has beside `ALL`; others are refused. None: nothing is checked."""
    metric: str | None = None
    """The validation metric that `observe` wants to be told. None: it wants none."""
    scale: float = 1.0
    """Multiplies the whole curve; callbacks set it (`dynamic_lr`)."""

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

        Warm-up takes `warmup_steps` steps: step i < warmup_steps has (i + 1) / (warmup_steps + 1) of the rate
        that step number `warmup_steps` has, so no step is wasted on a rate of 0 and the two parts meet.
        """
        if step < self.warmup:
            return (step + 1) / (self.warmup + 1) * max(self.floor, self.scale * self.curve(0))
        return max(self.floor, self.scale * self.curve(step - self.warmup))

    def observe(self, metric: float) -> None:
        """Take note of a validation. Only `plateau` does."""

    def state(self) -> dict[str, Any]:
        """What to keep in a checkpoint, as JSON. Empty for a pure function of the step."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Put `state` back. Nothing to do for a pure function of the step."""

    def steps(self, interval: int | str) -> int:
        """Optimizer steps in an interval of settings: 500, or "5 epochs"."""
        if isinstance(interval, str):
            return int(interval.split()[0]) * self.steps_per_epoch
        return interval

    def cosine(self, fraction: float, high: float, low: float) -> float:
        """Half a cosine from `high` (fraction 0) to `low` (fraction 1 and beyond)."""
        return low + (high - low) * 0.5 * (1 + math.cos(math.pi * min(1.0, fraction)))
