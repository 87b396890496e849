"""Mean absolute error; `mae` is the same."""

from __future__ import annotations

from torch import Tensor

from phonate.nn.losses._base import ElementwiseLoss


class L1Loss(ElementwiseLoss):
    """|outputs - targets| of each cell."""

    def cells(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """See `ElementwiseLoss.cells`."""
        return (outputs - targets).abs()
