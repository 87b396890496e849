"""The base of losses: sums and counts, masks and precision.

Shapes: B items, T frames, F features, C classes, S samples. A mask is boolean, True for real values, and its shape is a
prefix of theirs, such as (B, T) for values of (B, T, F).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from phonate.config.errors import InputError

SumCount = tuple[Tensor, Tensor | float]
"""A sum over a batch, and the number of its terms; both add up over parts of a batch."""

Reads = Literal["logits", "probabilities", "log_probabilities", "values", "audio"]


class Loss(nn.Module):
    """A loss that returns its sum over the batch and the count, never their ratio.

    Sums and counts of the parts of a batch add up to those of the whole, so splitting a batch changes neither value nor
    gradient of (total sum / total count). Masked values have no influence and no gradient, even if they are NaN. Half
    precision is computed in float32.
    """

    couples_items: bool = False
    """True when an item's loss depends on the other items: such a batch must not be split."""
    takes: Literal["outputs", "embeddings", "model"] = "outputs"
    """Its arguments: outputs and targets, embeddings and their labels, or the model."""
    reads: Reads = "values"
    """What its outputs are; `audio` stands for waveforms and mel frames."""
    over_classes: bool | None = False
    """Whether targets are classes, one for each (..., C) of outputs, or of the outputs' shape. None: either."""

    def forward(self, outputs: Tensor, targets: Tensor, mask: Tensor | None = None) -> SumCount:
        """Sum and count over the values that `mask` keeps (None: all). Raises InputError for shapes that do not fit.

        Shapes are those of the class: outputs and targets of one shape, such as (B, T, F), if it does not say
        otherwise; `mask` is boolean, of a prefix of that shape, such as (B, T). The sum is a scalar.
        """
        with torch.autocast(outputs.device.type, enabled=False):
            return self.measure(full_precision(outputs), full_precision(targets), mask)

    def mean(self, outputs: Tensor, targets: Tensor, mask: Tensor | None = None) -> Tensor:
        """The loss as a scalar, sum / count, for custom training loops."""
        total, count = self.forward(outputs, targets, mask)
        return total / torch.as_tensor(count, device=total.device).clamp_min(1)

    def measure(self, outputs: Tensor, targets: Tensor, mask: Tensor | None) -> SumCount:
        """The computation of `forward`, in float32 or float64: (...), (...), (...) -> scalar and count."""
        raise NotImplementedError


class ElementwiseLoss(Loss):
    """A loss of each element of two tensors of one shape (...); the count is the number of elements."""

    def measure(self, outputs: Tensor, targets: Tensor, mask: Tensor | None) -> SumCount:
        """See `Loss.measure`."""
        same_shape(outputs, targets)
        targets = targets.to(outputs.dtype)
        if mask is None:
            return self.cells(outputs, targets).sum(), float(outputs.numel())
        kept = expanded(mask, outputs)
        # masked elements are zeroed first: 0 * nan would be nan in the backward pass
        values = self.cells(outputs.masked_fill(~kept, 0), targets.masked_fill(~kept, 0))
        return values.masked_fill(~kept, 0).sum(), kept.sum()

    def cells(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of each element: two tensors (...) -> (...)."""
        raise NotImplementedError


def full_precision(values: Tensor) -> Tensor:
    """A tensor (...): float16 and bfloat16 as float32, other types unchanged."""
    return values.float() if values.dtype in {torch.float16, torch.bfloat16} else values


def same_shape(outputs: Tensor, targets: Tensor) -> None:
    """Raise InputError for shapes that differ, which torch would broadcast silently."""
    if outputs.shape != targets.shape:
        raise InputError(f"outputs {tuple(outputs.shape)} and targets {tuple(targets.shape)} differ in shape")


def expanded(mask: Tensor, values: Tensor) -> Tensor:
    """`mask`, (B, T) say, in the shape of `values`, (B, T, F) say. Raises InputError unless it is a prefix."""
    if mask.shape != values.shape[: mask.dim()]:
        raise InputError(f"a mask of {tuple(mask.shape)} does not fit values of {tuple(values.shape)}")
    trailing = (1,) * (values.dim() - mask.dim())
    return mask.bool().reshape(*mask.shape, *trailing).expand_as(values)
