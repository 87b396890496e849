"""Adagrad (Duchi et al. 2011)."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from phonate.training.optimizers._eager import eager


def adagrad(
    parameters: Iterable[tuple[str, nn.Parameter]],
    *,
    lr: float,
    weight_decay: float,
    epsilon: float = 1e-10,
    fused: bool = False,
) -> torch.optim.Adagrad:
    """Adagrad over named parameters."""
    parameters = list(parameters)
    # torch's fused kernel supports only CPU and CUDA.
    fused = fused and all(parameter.device.type in {"cpu", "cuda"} for _, parameter in parameters)
    return eager(torch.optim.Adagrad)(parameters, lr=lr, eps=epsilon, weight_decay=weight_decay, fused=fused)
