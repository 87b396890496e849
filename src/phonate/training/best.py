"""Whether a metric improved, and the best value so far."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

logger = logging.getLogger(__name__)

NEWEST = "step"
"""As the metric of a run: its newest checkpoint is its best."""


def improves(value: float, best: float | None, *, higher: bool, min_delta: float = 0.0) -> bool:
    """Whether `value` is better than `best` by more than `min_delta`. The first value is; NaN never is."""
    if math.isnan(value):
        return False
    if best is None:
        return True
    return (value - best if higher else best - value) > min_delta


@dataclass
class Best:
    """The best validation so far."""

    metric: str
    greater_is_better: bool
    value: float | None = None
    step: int = 0

    def observe(self, metrics: Mapping[str, float], step: int) -> bool:
        """Note the metrics of a validation after `step` steps; whether it is the best so far."""
        value = float(step) if self.metric == NEWEST else metrics[self.metric]
        if not improves(value, self.value, higher=self.greater_is_better):
            return False
        self.value, self.step = value, step
        return True

    def state(self) -> dict[str, Any]:
        """All fields."""
        return asdict(self)

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Restore the value, unless it is of another metric: then the best is chosen anew."""
        if (saved["metric"], saved["greater_is_better"]) == (self.metric, self.greater_is_better):
            self.value, self.step = saved["value"], saved["step"]
        elif saved["value"] is not None:
            logger.info("the best checkpoint was chosen by %s; it is now chosen by %s", saved["metric"], self.metric)
