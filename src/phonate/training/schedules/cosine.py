"""Cosine decay without restarts (Loshchilov & Hutter 2017, equation 5 with one cycle)."""

from __future__ import annotations

from phonate.training.schedules._base import Schedule


class CosineSchedule(Schedule):
    """From the peak to `min_lr` over `decay_steps`, along half a cosine, then constant."""

    reads = frozenset({"decay_steps"})

    def curve(self, step: int) -> float:
        """See `Schedule.curve`."""
        return self.cosine(step / self.decay_steps, self.peak, self.floor)
