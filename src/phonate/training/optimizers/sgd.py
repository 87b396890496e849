"""Stochastic gradient descent with momentum (Sutskever et al. 2013)."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from phonate.config.errors import InputError
from phonate.training.optimizers._eager import eager


def sgd(
    parameters: Iterable[tuple[str, nn.Parameter]],
    *,
    lr: float,
    weight_decay: float,
    momentum: float = 0.9,
    nesterov: bool = False,
    fused: bool = False,
) -> torch.optim.SGD:
    """SGD over named parameters."""
    if nesterov and momentum == 0:
        raise InputError("training.optimizer.nesterov: Nesterov momentum needs a momentum above 0")
    return eager(torch.optim.SGD)(
        parameters, lr=lr, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay, fused=fused
    )
