"""Layer norms, trained in bf16 on a processor in one pass each way.

torch takes one for the norm and one each for number formats, and in the backward pass one to add up the gradients of a
branch and of what goes around it. And where its input is in bf16, it adds up the gradients of weights in bf16, too, a
row at a time: of thousands of rows most is lost.

Shapes: R rows, D width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from phonate.nn import kernels
from phonate.nn.sequences import on_processor


class LayerNorm(nn.LayerNorm):
    """`nn.LayerNorm` whose weights have gradients in fp32."""

    def forward(self, input: Tensor) -> Tensor:
        """(..., D) -> (..., D), in fp32 or the format of its input."""
        if not on_processor(input) or not torch.is_grad_enabled() or input.dtype is self.weight.dtype:
            return super().forward(input)
        if kernels.of(input.dtype) is None:
            return super().forward(input.float())
        made: Tensor = _Normed.apply(input, self.weight, self.bias, self.eps, False)  # type: ignore[no-untyped-call]
        return made


def branched(norm: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """What a norm makes of `x`, the input of a branch that begins with a product; and `x`, to which the branch's output
    is to be added."""
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.float32
    if (
        not isinstance(norm, LayerNorm)
        or not on_processor(x)
        or not torch.is_grad_enabled()
        or kernels.of(dtype) is None
        or x.dtype not in (torch.float32, dtype)
        or norm.weight.dtype is not torch.float32
    ):
        return norm(x), x
    given = (x, norm.weight, norm.bias, norm.eps, True)
    both: tuple[Tensor, Tensor] = _Normed.apply(*given)  # type: ignore[no-untyped-call]
    return both


class _Normed(torch.autograd.Function):
    """Layer norms (..., D), in bf16, of fp32 or bf16; and their input, where that is to go around a branch."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_D: Tensor, bias_D: Tensor, least: float, branches: bool) -> Any:
        fast = kernels.of(torch.bfloat16)
        assert fast is not None
        x_RD = x.reshape(-1, x.shape[-1]).contiguous()
        out_RD, stats_2R = fast.normed(x_RD, weight_D, bias_D, least)
        ctx.save_for_backward(x_RD, weight_D, stats_2R)
        ctx.set_materialize_grads(False)
        out = out_RD.view(x.shape)
        return (out, x.view_as(x)) if branches else out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, other: Tensor | None = None) -> tuple[Tensor | None, ...]:
        fast = kernels.of(torch.bfloat16)
        assert fast is not None
        if grad is None:  # of a branch that nothing uses
            return other, None, None, None, None
        x_RD, weight_D, stats_2R = ctx.saved_tensors
        grad_RD = grad.reshape(x_RD.shape).to(torch.bfloat16).contiguous()
        other_RD = None if other is None else other.reshape(x_RD.shape).to(x_RD.dtype).contiguous()
        of_x_RD, *of_weights = fast.normed_backward(grad_RD, x_RD, weight_D, stats_2R, other_RD)
        return of_x_RD.view(grad.shape), *of_weights, None, None
