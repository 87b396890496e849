"""Lower the learning rate when a metric stalls, whatever the schedule."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Literal

from phonate.training.callbacks._base import Callback, TrainerView
from phonate.training.callbacks._watch import MetricWatch

logger = logging.getLogger(__name__)


class DynamicLRCallback(Callback):
    """Multiplies the schedule's whole curve by `factor` after `patience` validations without improvement.

    Unlike the plateau schedule it works on top of any schedule, and of every phase at once.

    Args:
        factor: What the rate is multiplied by each time.
        patience: Validations without improvement before that.
        metric: What is watched.
        mode: Whether lower ("min") or higher ("max") is better.
        min_scale: The product of all factors never falls under this.
    """

    def __init__(
        self,
        factor: float = 0.5,
        patience: int = 3,
        metric: str = "val_loss",
        mode: Literal["min", "max"] = "min",
        min_scale: float = 1e-3,
    ) -> None:
        if not 0 < factor < 1:
            raise ValueError("factor: between 0 and 1")
        if patience < 1:
            raise ValueError("patience: 1 or more")
        if not 0 < min_scale <= 1:
            raise ValueError("min_scale: above 0, at most 1")
        self.factor = factor
        self.patience = patience
        self.min_scale = min_scale
        self.watch = MetricWatch(metric, mode)
        self.scale = 1.0

    def on_train_begin(self, trainer: TrainerView) -> None:
        """Go on with the scale of a resumed run."""
        self._apply(trainer)

    def on_validation_end(self, trainer: TrainerView, metrics: Mapping[str, float]) -> None:
        """Count the validation and lower the rate when the patience is over."""
        if not self.watch.observe(metrics) and self.watch.stale >= self.patience:
            self.watch.stale = 0
            self.scale = max(self.min_scale, self.scale * self.factor)
            logger.info("%s stalls: the learning rate is scaled by %g", self.watch.metric, self.scale)
            self._apply(trainer)

    def _apply(self, trainer: TrainerView) -> None:
        for schedule in trainer.schedules.values():
            schedule.scale = self.scale

    def state_dict(self) -> dict[str, Any]:
        """What was seen of the metric, and the scale."""
        return {**self.watch.state(), "scale": self.scale}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put `state` back."""
        self.watch.restore(state)
        self.scale = float(state["scale"])
