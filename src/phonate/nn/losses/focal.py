"""Focal loss (Lin et al. 2017, equation 5)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from phonate.nn.losses._base import Loss, SumCount, expanded
from phonate.nn.losses._classes import IGNORED, flat

SMALLEST = 1e-8
"""Keeps the gradient of (1 - p)^gamma finite for gamma below 1."""


class FocalLoss(Loss):
    """-alpha_t (1 - p_t)^gamma log(p_t): cross entropy that down-weights easy examples.

    Targets (...) in the shape of the outputs are binary labels (sigmoid); class indices (...) for outputs (..., C) are
    classes (softmax). Positives are weighted by `alpha`, negatives by 1 - alpha; of classes, class 0 is the negative
    (background). None: no weighting. Targets of -100 do not count.
    """

    reads = "logits"
    over_classes = None

    def __init__(self, alpha: float | None = 0.25, gamma: float = 2.0) -> None:
        super().__init__()
        self.alpha = alpha
        self.gamma = gamma

    def measure(self, outputs: Tensor, targets: Tensor, mask: Tensor | None) -> SumCount:
        """See `Loss.measure`."""
        if outputs.shape == targets.shape:
            kept = targets != IGNORED
            if mask is not None:
                kept = kept & expanded(mask, targets)
            positive = targets.to(outputs.dtype).masked_fill(~kept, 0)
            scores = outputs.masked_fill(~kept, 0)
            log_p = -functional.binary_cross_entropy_with_logits(scores, positive, reduction="none")
        else:
            scores, classes, kept = flat("focal", outputs, targets, mask)
            log_p = scores.log_softmax(-1).gather(-1, classes[:, None])[:, 0]
            positive = (classes != 0).to(scores.dtype)
        values = -(1 - log_p.exp()).clamp_min(SMALLEST).pow(self.gamma) * log_p
        if self.alpha is not None:
            values = values * torch.lerp(
                torch.full_like(positive, 1 - self.alpha), torch.full_like(positive, self.alpha), positive
            )
        return values.masked_fill(~kept, 0).sum(), kept.sum()
