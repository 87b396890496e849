"""Adam (Kingma & Ba 2015, Algorithm 1). Weight decay is added to the gradient."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from phonate.training.optimizers._eager import eager


def adam(
    parameters: Iterable[tuple[str, nn.Parameter]],
    *,
    lr: float,
    weight_decay: float,
    betas: tuple[float, float] = (0.9, 0.999),
    epsilon: float = 1e-8,
    amsgrad: bool = False,
    fused: bool = False,
) -> torch.optim.Adam:
    """Adam over named parameters."""
    return eager(torch.optim.Adam)(
        parameters, lr=lr, betas=betas, eps=epsilon, weight_decay=weight_decay, amsgrad=amsgrad, fused=fused
    )
