"""Cross entropy over classes."""

from __future__ import annotations

from torch import Tensor

from phonate.nn.losses._base import Loss, SumCount
from phonate.nn.losses._classes import flat, smoothed_nll


class CrossEntropyLoss(Loss):
    """-log softmax(outputs) at the target class; the count is the number of targets.

    Outputs are logits (..., C), targets class indices (...) or probabilities (..., C). Targets of -100 do not count.
    `label_smoothing` spreads that share of the probability evenly over the classes.
    """

    reads = "logits"
    over_classes = True

    def __init__(self, label_smoothing: float = 0.0) -> None:
        super().__init__()
        self.label_smoothing = label_smoothing

    def measure(self, outputs: Tensor, targets: Tensor, mask: Tensor | None) -> SumCount:
        """See `Loss.measure`."""
        scores, classes, kept = flat("cross_entropy", outputs, targets, mask)
        values = smoothed_nll(scores.log_softmax(-1), classes, self.label_smoothing)
        return values.masked_fill(~kept, 0).sum(), kept.sum()
