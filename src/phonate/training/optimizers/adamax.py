"""AdaMax: Adam with the infinity norm (Kingma & Ba 2015, Algorithm 2)."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from phonate.training.optimizers._eager import eager


def adamax(
    parameters: Iterable[tuple[str, nn.Parameter]],
    *,
    lr: float,
    weight_decay: float,
    betas: tuple[float, float] = (0.9, 0.999),
    epsilon: float = 1e-8,
) -> torch.optim.Adamax:
    """AdaMax over named parameters."""
    return eager(torch.optim.Adamax)(parameters, lr=lr, betas=betas, eps=epsilon, weight_decay=weight_decay)
