"""Cosine decay with warm restarts: SGDR (Loshchilov & Hutter 2017, section 3)."""

from __future__ import annotations

import math

from phonate.config.errors import InputError
from phonate.training.optimization_settings import SchedulerSettings
from phonate.training.schedules._base import Schedule


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
        """See `Schedule.curve`."""
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
