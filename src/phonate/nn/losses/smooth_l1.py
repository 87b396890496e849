"""Smooth L1 loss (Girshick 2015, equation 3)."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from phonate.nn.losses._base import ElementwiseLoss


class SmoothL1Loss(ElementwiseLoss):
    """|error| - beta / 2, and error^2 / (2 beta) where the error is below `beta`."""

    def __init__(self, beta: float = 1.0) -> None:
        super().__init__()
        self.beta = beta

    def cells(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """See `ElementwiseLoss.cells`."""
        return functional.smooth_l1_loss(outputs, targets, reduction="none", beta=self.beta)
