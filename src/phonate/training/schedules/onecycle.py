"""One cycle (Smith & Topin 2018, "Super-Convergence", with cosine instead of straight lines)."""

from __future__ import annotations

from phonate.training.schedules._base import Schedule

START = 1 / 25
"""The cycle begins at this share of its peak."""
RISE = 0.3
"""Share of the cycle in which the rate rises."""


class OneCycleSchedule(Schedule):
    """Up from a 25th of the peak (`max_lr`) in 30 % of `decay_steps`, down to `min_lr` in the rest."""

    reads = frozenset({"decay_steps"})

    def curve(self, step: int) -> float:
        """See `Schedule.curve`."""
        rise = RISE * self.decay_steps
        if step < rise:
            return self.cosine(step / rise, START * self.peak, self.peak)
        return self.cosine((step - rise) / (self.decay_steps - rise), self.peak, self.floor)
