"""Linear decay."""

from __future__ import annotations

from phonate.training.schedules._base import Schedule


class LinearSchedule(Schedule):
    """From the peak to `min_lr` over `decay_steps`, along a straight line, then constant."""

    reads = frozenset({"decay_steps"})

    def curve(self, step: int) -> float:
        """See `Schedule.curve`."""
        return self.peak + (self.floor - self.peak) * min(1.0, step / self.decay_steps)
