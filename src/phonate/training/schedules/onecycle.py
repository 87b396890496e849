"""One-cycle schedule (Smith & Topin 2018, "Super-Convergence"), with cosine instead of linear segments."""

from __future__ import annotations

from phonate.training.schedules._base import Schedule

START = 1 / 25
"""Initial rate as a share of the peak."""
RISE = 0.3
"""Share of the cycle during which the rate increases."""


class OneCycleSchedule(Schedule):
    """From 1/25 of the peak (`max_lr`) up to it over 30 % of `decay_steps`, then down to `min_lr`."""

    reads = frozenset({"decay_steps"})

    def curve(self, step: int) -> float:
        """See `Schedule.curve`."""
        rise = RISE * self.decay_steps
        if step < rise:
            return self.cosine(step / rise, START * self.peak, self.peak)
        return self.cosine((step - rise) / (self.decay_steps - rise), self.peak, self.floor)
