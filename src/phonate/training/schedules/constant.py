"""No decay."""

from __future__ import annotations

from phonate.training.schedules._base import Schedule


class ConstantSchedule(Schedule):
    """The peak rate, after warm-up."""

    reads = frozenset()

    def curve(self, step: int) -> float:
        """See `Schedule.curve`."""
        return self.peak
