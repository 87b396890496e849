"""RMS norms (Zhang and Sennrich 2019, https://arxiv.org/abs/1910.07467, eq. 4) whose weights are frozen."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def rms_norm(layer: Any, inputs: Tensor) -> Tensor:
    """What `layer`, an RMSNorm of transformers with `weight` (H,) and `variance_epsilon`, gives for inputs (..., H).

    With gradients, a frozen layer keeps its inputs and one number for each row instead of four tensors of their size in
    fp32, and its gradient takes a third of the passes over them. In other cases the layer computes by itself.
    """
    needed = torch.is_grad_enabled() and inputs.requires_grad and not layer.weight.requires_grad
    if not needed or torch.compiler.is_compiling():
        found: Tensor = layer(inputs)
        return found
    normed: Tensor = _FrozenRMSNorm.apply(inputs, layer.weight, layer.variance_epsilon)  # type: ignore[no-untyped-call]
    return normed


class _FrozenRMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight_H: Tensor, epsilon: float) -> Tensor:
        exact = inputs.float()
        inverse = torch.linalg.vector_norm(exact, dim=-1, keepdim=True)
        inverse = inverse.square_().div_(inputs.shape[-1]).add_(epsilon).rsqrt_()
        ctx.save_for_backward(inputs, weight_H, inverse)
        normed: Tensor = weight_H * (exact * inverse).to(inputs.dtype)
        return normed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        inputs, weight_H, inverse = ctx.saved_tensors
        exact, weighted = inputs.float(), (gradient * weight_H).float()
        # d(x / r) / dx = 1 / r - x x^T / (H r^3), with r the root mean square
        share = torch.linalg.vecdot(weighted, exact)[..., None] * inverse**3 / inputs.shape[-1]
        return weighted.mul_(inverse).addcmul_(exact, share, value=-1.0).to(inputs.dtype), None, None
