"""Huber loss (Huber 1964)."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from phonate.nn.losses._base import ElementwiseLoss


class HuberLoss(ElementwiseLoss):
    """Half the squared error up to `delta`, linear beyond: delta * (|error| - delta / 2)."""

    def __init__(self, delta: float = 1.0) -> None:
        super().__init__()
        self.delta = delta

    def cells(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """See `ElementwiseLoss.cells`."""
        return functional.huber_loss(outputs, targets, reduction="none", delta=self.delta)
