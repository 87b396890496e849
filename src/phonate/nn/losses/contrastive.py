"""InfoNCE over a batch (van den Oord et al. 2018; Khosla et al. 2020, equation 2, for labels)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from phonate.config.errors import InputError
from phonate.nn.losses._base import Loss, SumCount, expanded, same_shape


class ContrastiveLoss(Loss):
    """Pulls embeddings of one label together and pushes others apart.

    Outputs are embeddings (B, D), compared by cosine similarity / `temperature`. Targets are either labels (B,), such
    as speakers, or a second view (B, D) of each item, whose positive is the first. An embedding is never compared with
    itself. The count is the number of embeddings that have a positive.
    """

    couples_items = True
    takes = "embeddings"

    def __init__(self, temperature: float = 0.1) -> None:
        super().__init__()
        self.temperature = temperature

    def measure(self, outputs: Tensor, targets: Tensor, mask: Tensor | None) -> SumCount:
        """See `Loss.measure`."""
        if outputs.dim() != 2:
            raise InputError(f"contrastive: embeddings (items, features), not {tuple(outputs.shape)}")
        kept = torch.ones(len(outputs), dtype=torch.bool, device=outputs.device)
        if mask is not None:
            kept = expanded(mask, kept)
        if targets.dim() == 2:
            same_shape(outputs, targets)
            labels = torch.arange(len(outputs), device=outputs.device).repeat(2)
            outputs, kept = torch.cat([outputs, targets.to(outputs.dtype)]), kept.repeat(2)
        else:
            labels = targets
        return self._supervised(outputs.masked_fill(~kept[:, None], 0), labels, kept)

    def _supervised(self, embeddings: Tensor, labels: Tensor, kept: Tensor) -> SumCount:
        """The mean of -log softmax over each embedding's positives, summed over embeddings (N, D) with labels (N,)."""
        unit = torch.nn.functional.normalize(embeddings, dim=-1)
        itself = torch.eye(len(unit), dtype=torch.bool, device=unit.device)
        compared = kept[:, None] & kept[None, :] & ~itself
        positive = compared & (labels[:, None] == labels[None, :])
        # finite, so that rows without comparisons are not NaN
        similarity = (unit @ unit.T / self.temperature).masked_fill(~compared, -1 / math.ulp(1.0))
        log_share = similarity.log_softmax(-1).masked_fill(~positive, 0)
        positives = positive.sum(-1)
        values = -log_share.sum(-1) / positives.clamp_min(1)
        return values.sum(), (positives > 0).sum()
