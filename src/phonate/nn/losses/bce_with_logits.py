"""Binary cross entropy from logits."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from phonate.nn.losses._base import ElementwiseLoss, Reads, SumCount, expanded
from phonate.nn.losses._classes import IGNORED, smoothed_binary


class BCEWithLogitsLoss(ElementwiseLoss):
    """Binary cross entropy of sigmoid(outputs), element by element; targets are from 0 to 1.

    Elements with the target -100 do not count. `label_smoothing` moves targets towards 0.5.
    """

    reads: Reads = "logits"

    def __init__(self, label_smoothing: float = 0.0) -> None:
        super().__init__()
        self.label_smoothing = label_smoothing

    def measure(self, outputs: Tensor, targets: Tensor, mask: Tensor | None) -> SumCount:
        """See `Loss.measure`."""
        labelled = targets != IGNORED
        return super().measure(outputs, targets, labelled if mask is None else labelled & expanded(mask, targets))

    def cells(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """See `ElementwiseLoss.cells`."""
        targets = smoothed_binary(targets, self.label_smoothing)
        return functional.binary_cross_entropy_with_logits(outputs, targets, reduction="none")
