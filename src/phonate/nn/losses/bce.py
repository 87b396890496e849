"""Binary cross entropy from probabilities."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from phonate.nn.losses._classes import smoothed_binary
from phonate.nn.losses.bce_with_logits import BCEWithLogitsLoss


class BCELoss(BCEWithLogitsLoss):
    """Binary cross entropy of outputs in [0, 1]. `bce_with_logits` is more exact if there are logits."""

    reads = "probabilities"

    def cells(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """See `ElementwiseLoss.cells`."""
        return functional.binary_cross_entropy(
            outputs, smoothed_binary(targets, self.label_smoothing), reduction="none"
        )
