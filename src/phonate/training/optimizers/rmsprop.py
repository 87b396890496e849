"""RMSprop (Tieleman & Hinton 2012, lecture 6.5). `rho` is the decay that torch calls alpha."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from phonate.training.optimizers._eager import eager


def rmsprop(
    parameters: Iterable[tuple[str, nn.Parameter]],
    *,
    lr: float,
    weight_decay: float,
    rho: float = 0.99,
    epsilon: float = 1e-8,
    momentum: float = 0.0,
) -> torch.optim.RMSprop:
    """RMSprop over named parameters."""
    return eager(torch.optim.RMSprop)(
        parameters, lr=lr, alpha=rho, eps=epsilon, momentum=momentum, weight_decay=weight_decay
    )
