"""Step decay."""

from __future__ import annotations

from phonate.training.schedules._base import Schedule


class StepSchedule(Schedule):
    """The rate is multiplied by `gamma` (0.1) at every `step_size`, down to `min_lr`."""

    reads = frozenset({"step_size", "gamma"})

    def curve(self, step: int) -> float:
        """See `Schedule.curve`."""
        gamma = 0.1 if self.settings.gamma is None else self.settings.gamma
        return self.peak * float(gamma ** (step // self.steps(self.settings.step_size)))
