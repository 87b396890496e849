"""Stop training when a metric no longer improves."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from phonate.config.errors import InputError
from phonate.training.callbacks._base import Callback, TrainerView
from phonate.training.metrics import MetricWatch, Mode

logger = logging.getLogger(__name__)


class EarlyStoppingCallback(Callback):
    """Stops training after `patience` validations in a row without improvement.

    Args:
        patience: Validations without improvement before training stops.
        metric: The monitored metric: val_loss, val_<term> or a metric of the task's evaluation.
        min_delta: Smaller improvements are ignored.
        mode: Whether lower ("min") or higher ("max") is better. None: as the task declares.
        restore_best_weights: End with the weights of the best checkpoint instead of the last, whether
            training was stopped early or ran to its end.
    """

    def __init__(
        self,
        patience: int = 10,
        metric: str = "val_loss",
        min_delta: float = 1e-6,
        mode: Mode | None = None,
        restore_best_weights: bool = True,
    ) -> None:
        if patience < 1:
            raise ValueError("patience: must be at least 1")
        self.patience = patience
        self.restore_best_weights = restore_best_weights
        self.watch = MetricWatch(metric, mode, min_delta, setting="training.early_stopping.metric")

    def on_train_begin(self, trainer: TrainerView) -> None:
        """Check that this metric selects the best checkpoint, and whether a resumed run has already stopped."""
        conflict = trainer.settings.restore_conflict(self.watch.metric)
        if self.restore_best_weights and conflict is not None:
            raise InputError(conflict)
        if self.watch.stale >= self.patience:
            logger.info(
                "stopped early before step %d: %s has not improved on %s for %d validations; raise patience above that "
                "to continue",
                trainer.step + 1,
                self.watch.metric,
                self.watch.best,
                self.watch.stale,
            )
            trainer.should_stop = True

    def on_validation_end(self, trainer: TrainerView, metrics: Mapping[str, float]) -> None:
        """Count the validation, and stop once patience is exhausted."""
        if not self.watch.observe(metrics) and self.watch.stale >= self.patience:
            logger.info(
                "stopped early at step %d: %s has not improved on %s for %d validations",
                trainer.step,
                self.watch.metric,
                self.watch.best,
                self.watch.stale,
            )
            trainer.should_stop = True

    def on_train_end(self, trainer: TrainerView) -> None:
        """Restore the best weights."""
        if self.restore_best_weights and self.watch.best is not None and self.watch.stale > 0:
            trainer.restore_best()

    def state_dict(self) -> dict[str, Any]:
        """The best value and the number of validations since."""
        return self.watch.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state`."""
        self.watch.restore(state)
