"""Dropout that is fast on a processor."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

_NUMBERS = 2**16
_LANES = 4
"""Numbers of 16 bits in one of 64."""


def on_processor(x: Tensor) -> bool:
    """Whether `x` is on a CPU, and computed now rather than traced by a compiler or an exporter."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling() and not torch._C._is_tracing()


def _mask(numel: int, zeros: int) -> Tensor:
    """Random numbers of 16 bits (numel,): none of them set with a probability of `zeros` / 65,536, else all.

    Each draw of torch's generator gives four: 4 times as fast as `bernoulli_`.
    """
    drawn = torch.empty((numel + _LANES - 1) // _LANES, dtype=torch.int64).random_(-(2**63), None)
    numbers = drawn.view(torch.int16)[:numel]
    return torch.ge(numbers, zeros - 2**15, out=torch.empty_like(numbers)).neg_()


class _DropoutFunction(torch.autograd.Function):
    """x -> x / (1 - p), or 0 with probability p = `zeros` / 65,536."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, zeros: int) -> Tensor:
        mask = _mask(x.numel(), zeros).view(x.shape)
        ctx.save_for_backward(mask)
        ctx.scale = _NUMBERS / (_NUMBERS - zeros)
        return _masked(x, mask, ctx.scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (mask,) = ctx.saved_tensors
        return _masked(grad, mask, ctx.scale), None


def _masked(x: Tensor, mask: Tensor, scale: float) -> Tensor:
    """`x` times `scale`, with zeros where the 16-bit `mask` has them."""
    if x.element_size() == 2:
        scaled = x * scale
        scaled.view(torch.int16).bitwise_and_(mask)
        return scaled
    return (x * -scale).mul_(mask)  # all ones are -1


class Dropout(nn.Dropout):
    """`nn.Dropout`, on a processor with masks that take a quarter of the time; the probability is then rounded to
    1 / 65,536."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape."""
        zeros = round(self.p * _NUMBERS)
        if not self.training or not 0 < zeros < _NUMBERS or not on_processor(x):
            return super().forward(x)
        out: Tensor = _DropoutFunction.apply(x, zeros)  # type: ignore[no-untyped-call]
        return out
