"""Kullback-Leibler divergence."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from phonate.nn.losses._base import Loss, SumCount, expanded, same_shape


class KLDivLoss(Loss):
    """KL(targets || outputs) of distributions over the last dimension; the count is the number of distributions.

    Outputs (..., C) are log-probabilities, targets (..., C) probabilities.
    """

    reads = "log_probabilities"
    over_classes = True

    def measure(self, outputs: Tensor, targets: Tensor, mask: Tensor | None) -> SumCount:
        """See `Loss.measure`."""
        same_shape(outputs, targets)
        targets = targets.to(outputs.dtype)
        if mask is None:
            return functional.kl_div(outputs, targets, reduction="sum"), float(outputs[..., 0].numel())
        kept = expanded(mask, outputs)
        values = functional.kl_div(outputs.masked_fill(~kept, 0), targets.masked_fill(~kept, 0), reduction="none")
        return values.masked_fill(~kept, 0).sum(), kept[..., 0].sum()
