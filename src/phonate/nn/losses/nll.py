"""Negative log-likelihood of classes."""

from __future__ import annotations

from torch import Tensor

from phonate.nn.losses._base import Loss, SumCount
from phonate.nn.losses._classes import flat, smoothed_nll


class NLLLoss(Loss):
    """-outputs at the target class, for outputs (..., C) that are log-probabilities.

    Targets, -100 and label smoothing are as for `cross_entropy`.
    """

    reads = "log_probabilities"
    over_classes = True

    def __init__(self, label_smoothing: float = 0.0) -> None:
        super().__init__()
        self.label_smoothing = label_smoothing

    def measure(self, outputs: Tensor, targets: Tensor, mask: Tensor | None) -> SumCount:
        """See `Loss.measure`."""
        log_probabilities, classes, kept = flat("nll", outputs, targets, mask)
        values = smoothed_nll(log_probabilities, classes, self.label_smoothing)
        return values.masked_fill(~kept, 0).sum(), kept.sum()
