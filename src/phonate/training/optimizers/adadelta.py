"""Adadelta (Zeiler 2012, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from phonate.training.optimizers._eager import eager


def adadelta(
    parameters: Iterable[tuple[str, nn.Parameter]],
    *,
    lr: float,
    weight_decay: float,
    rho: float = 0.9,
    epsilon: float = 1e-6,
) -> torch.optim.Adadelta:
    """Adadelta over named parameters."""
    return eager(torch.optim.Adadelta)(parameters, lr=lr, rho=rho, eps=epsilon, weight_decay=weight_decay)
