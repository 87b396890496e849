"""L2 regularisation as a loss term."""

from __future__ import annotations

import torch
from torch import nn

from phonate.nn.losses._base import SumCount


class NormRegLoss(nn.Module):
    """The mean square of a model's trainable weight matrices, without biases and normalisation layers.

    A mean depends little on the number of weights (a newly initialised layer of width d has about 1 / (3 d)), so a
    weight of this term suits small and large models alike.
    """

    couples_items = False
    takes = "model"

    def forward(self, model: nn.Module) -> SumCount:
        """The sum of squares and the number of weights."""
        weights = [p for p in model.parameters() if p.requires_grad and p.dim() > 1]
        if not weights:
            return torch.zeros(()), 0.0
        total = torch.stack([weight.float().square().sum() for weight in weights]).sum()
        return total, float(sum(weight.numel() for weight in weights))
