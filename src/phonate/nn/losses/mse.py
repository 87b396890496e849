"""Mean squared error."""

from __future__ import annotations

from torch import Tensor

from phonate.nn.losses._base import ElementwiseLoss


class MSELoss(ElementwiseLoss):
    """(outputs - targets)^2 of each element."""

    def cells(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """See `ElementwiseLoss.cells`."""
        return (outputs - targets).square()
