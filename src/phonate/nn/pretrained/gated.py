"""Gated feed-forward networks with SiLU (SwiGLU: Shazeer 2020, https://arxiv.org/abs/2002.05202, eq. 6)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional


def gated_silu(gates: Tensor, values: Tensor) -> Tensor:
    """silu(gates) * values, all of one shape. The backward pass computes silu(gates) again instead of keeping it."""
    found: Tensor = _GatedSilu.apply(gates, values)  # type: ignore[no-untyped-call]
    return found


class _GatedSilu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gates: Tensor, values: Tensor) -> Tensor:
        ctx.save_for_backward(gates, values)
        return functional.silu(gates).mul_(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        gates, values = ctx.saved_tensors
        into_gates = torch.ops.aten.silu_backward(gradient * values, gates)
        return into_gates, functional.silu(gates).mul_(gradient)
