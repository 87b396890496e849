"""Monitor a metric for improvement (for early stopping and dynamic learning rates)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from phonate.config.errors import InputError
from phonate.config.registry import nearest
from phonate.training.best import improves


class MetricWatch:
    """Counts the validations since `metric` last improved by more than `min_delta`.

    NaN does not count as an improvement. `setting` is the option named in error messages.
    """

    def __init__(
        self, metric: str, mode: Literal["min", "max"], min_delta: float = 0.0, setting: str = "training.callbacks"
    ) -> None:
        if mode not in {"min", "max"}:
            raise ValueError(f"mode: min or max, not {mode!r}")
        if min_delta < 0:
            raise ValueError("min_delta: 0 or more")
        self.metric = metric
        self.setting = setting
        self.mode = mode
        self.min_delta = min_delta
        self.best: float | None = None
        self.stale = 0

    def observe(self, metrics: Mapping[str, float]) -> bool:
        """Record a validation. Returns whether it is the best so far; raises InputError if the metric is missing."""
        if self.metric not in metrics:
            raise InputError(f"the validation has no metric {self.metric!r}; {nearest(self.metric, list(metrics))}")
        value = float(metrics[self.metric])
        if improves(value, self.best, higher=self.mode == "max", min_delta=self.min_delta):
            self.best, self.stale = value, 0
            return True
        self.stale += 1
        return False

    def state(self) -> dict[str, Any]:
        """The best value and the number of validations since, as JSON."""
        return {"best": self.best, "stale": self.stale}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore `state`."""
        best = state["best"]
        self.best = None if best is None else float(best)
        self.stale = int(state["stale"])
