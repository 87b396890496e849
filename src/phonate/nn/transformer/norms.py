"""Normalisation of the branches of a layer: norms before or after them, and ReZero factors. D: model."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

Norm = Literal["pre", "post", "scale", "none"]
"""Layer norm before each branch (Xiong et al. 2020), or after the residual sum (Vaswani et al. 2017); ScaleNorm before
each branch; none."""

_SMALLEST_NORM = 1e-5


class ScaleNorm(nn.Module):
    """Scales (..., D) to a learnt length, initially sqrt(D) (Nguyen and Salazar 2019)."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.length = nn.Parameter(torch.tensor(d_model**0.5))

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        scaled: Tensor = x * (self.length / x.norm(dim=-1, keepdim=True).clamp_min(_SMALLEST_NORM)).to(x.dtype)
        return scaled


class ReZero(nn.Module):
    """A learnt factor of a branch, initially 0, so that a new layer is the identity (Bachlechner et al. 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        return x * self.gain.to(x.dtype)


def build_norm(norm: Norm, d_model: int) -> nn.Module:
    """The norm of one branch."""
    if norm == "none":
        return nn.Identity()
    return ScaleNorm(d_model) if norm == "scale" else nn.LayerNorm(d_model)
