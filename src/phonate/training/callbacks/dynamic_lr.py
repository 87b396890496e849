"""Reduce the learning rate when a metric stops improving, with any schedule."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from phonate.training.callbacks._base import Callback, TrainerView
from phonate.training.metrics import MetricWatch, Mode

logger = logging.getLogger(__name__)


class DynamicLRCallback(Callback):
    """Multiplies the learning rate schedule by `factor` after `patience` validations without improvement.

    Unlike the plateau schedule, it works on top of any schedule and applies to all phases.

    Args:
        factor: Multiplier of the learning rate.
        patience: Validations without improvement before the rate is reduced.
        metric: The monitored metric.
        mode: Whether lower ("min") or higher ("max") is better. None: as the task declares.
        min_scale: Lower bound of the product of all factors.
    """

    def __init__(
        self,
        factor: float = 0.5,
        patience: int = 3,
        metric: str = "val_loss",
        mode: Mode | None = None,
        min_scale: float = 1e-3,
    ) -> None:
        if not 0 < factor < 1:
            raise ValueError("factor: must be between 0 and 1")
        if patience < 1:
            raise ValueError("patience: must be at least 1")
        if not 0 < min_scale <= 1:
            raise ValueError("min_scale: must be above 0 and at most 1")
        self.factor = factor
        self.patience = patience
        self.min_scale = min_scale
        self.watch = MetricWatch(metric, mode)
        self.scale = 1.0

    def on_train_begin(self, trainer: TrainerView) -> None:
        """Apply the scale of a resumed run."""
        self._apply(trainer)

    def on_validation_end(self, trainer: TrainerView, metrics: Mapping[str, float]) -> None:
        """Count the validation, and reduce the rate once patience is exhausted."""
        if not self.watch.observe(metrics) and self.watch.stale >= self.patience:
            self.watch.stale = 0
            self.scale = max(self.min_scale, self.scale * self.factor)
            logger.info("%s stopped improving: the learning rate is now scaled by %g", self.watch.metric, self.scale)
            self._apply(trainer)

    def _apply(self, trainer: TrainerView) -> None:
        for schedule in trainer.schedules.values():
            schedule.scale = self.scale

    def state_dict(self) -> dict[str, Any]:
        """State of the monitored metric, and the scale."""
        return {**self.watch.state(), "scale": self.scale}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state`."""
        self.watch.restore(state)
        self.scale = float(state["scale"])
