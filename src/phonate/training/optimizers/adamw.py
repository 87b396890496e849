"""AdamW: Adam with decoupled weight decay (Loshchilov & Hutter 2019, Algorithm 2)."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from phonate.training.optimizers._eager import eager


def adamw(
    parameters: Iterable[tuple[str, nn.Parameter]],
    *,
    lr: float,
    weight_decay: float,
    betas: tuple[float, float] = (0.9, 0.999),
    epsilon: float = 1e-8,
    amsgrad: bool = False,
    fused: bool = False,
) -> torch.optim.AdamW:
    """AdamW over named parameters."""
    return eager(torch.optim.AdamW)(
        parameters, lr=lr, betas=betas, eps=epsilon, weight_decay=weight_decay, amsgrad=amsgrad, fused=fused
    )
