"""Decay when a validation metric stops improving."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phonate.config.errors import CheckpointError
from phonate.training.metrics import improves
from phonate.training.optimization_settings import SchedulerSettings
from phonate.training.schedules._base import Schedule


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
        """See `Schedule.curve`."""
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
