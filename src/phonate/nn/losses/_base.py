"""What the losses share: the (sum, count) contract, masks and precision.

Shapes: B items, T frames, F features, C classes, S samples. A mask is a boolean prefix of the shape it
belongs to, such as (B, T) for values of (B, T, F), True where there is something real.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from phonate.config.errors import InputError

SumCount = tuple[Tensor, Tensor | float]
"""A sum over a batch and how many things were summed; both add up over parts of a batch."""


class Loss(nn.Module):
    """A loss that returns its sum over the batch and the count, never their ratio.

    Sums and counts of the parts of a batch add up to those of the whole, so splitting a batch changes neither
    value nor gradient of (total sum / total count). What is masked has no influence and no gradient, even
    where it is not a number. Half precision is computed in float32.
    """

    couples_items: bool = False
    """True when an item's loss depends on the other items: such a batch must not be split."""
    takes: Literal["outputs", "embeddings", "model"] = "outputs"
    """What it is called with: outputs and targets, embeddings and their labels, or the model."""

    def forward(self, outputs: Tensor, targets: Tensor, mask: Tensor | None = None) -> SumCount:
        """Sum and count over what `mask` keeps. Raises InputError when the shapes do not fit."""
        with torch.autocast(outputs.device.type, enabled=False):
            return self.measure(full_precision(outputs), full_precision(targets), mask)

    def mean(self, outputs: Tensor, targets: Tensor, mask: Tensor | None = None) -> Tensor:
        """The loss as a scalar, for a training loop of one's own: the sum over the count."""
        total, count = self.forward(outputs, targets, mask)
        return total / torch.as_tensor(count, device=total.device).clamp_min(1)

    def measure(self, outputs: Tensor, targets: Tensor, mask: Tensor | None) -> SumCount:
        """The loss itself, in float32 or float64."""
        raise NotImplementedError


class ElementwiseLoss(Loss):
    """A loss with a value for each cell of two tensors of one shape; the count is the number of cells."""

    def measure(self, outputs: Tensor, targets: Tensor, mask: Tensor | None) -> SumCount:
        """See `Loss.measure`."""
        same_shape(outputs, targets)
        targets = targets.to(outputs.dtype)
        if mask is None:
            return self.cells(outputs, targets).sum(), float(outputs.numel())
        kept = expanded(mask, outputs)
        # Masked cells are emptied before the loss sees them: 0 * nan would be nan in the backward pass.
        values = self.cells(outputs.masked_fill(~kept, 0), targets.masked_fill(~kept, 0))
        return values.masked_fill(~kept, 0).sum(), kept.sum()

    def cells(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of each cell."""
        raise NotImplementedError


def full_precision(values: Tensor) -> Tensor:
    """float16 and bfloat16 as float32; anything else as it is."""
    return values.float() if values.dtype in {torch.float16, torch.bfloat16} else values


def same_shape(outputs: Tensor, targets: Tensor) -> None:
    """Refuse what torch would silently broadcast."""
    if outputs.shape != targets.shape:
        raise InputError(f"outputs {tuple(outputs.shape)} and targets {tuple(targets.shape)} differ in shape")


def expanded(mask: Tensor, values: Tensor) -> Tensor:
    """`mask` in the shape of `values`. Raises InputError unless its own shape is a prefix of theirs."""
    if mask.shape != values.shape[: mask.dim()]:
        raise InputError(f"a mask of {tuple(mask.shape)} does not fit values of {tuple(values.shape)}")
    trailing = (1,) * (values.dim() - mask.dim())
    return mask.bool().reshape(*mask.shape, *trailing).expand_as(values)
