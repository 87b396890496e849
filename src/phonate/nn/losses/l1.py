"""Mean absolute error, also called `mae`."""

from __future__ import annotations

from torch import Tensor

from phonate.nn.losses._base import ElementwiseLoss


class L1Loss(ElementwiseLoss):
    """|outputs - targets| of each element."""

    def cells(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """See `ElementwiseLoss.cells`."""
        return (outputs - targets).abs()
