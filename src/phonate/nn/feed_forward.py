"""Feed-forward networks with GELUs, trained on a processor in pieces that stay in its caches.

Shapes: N frames, D width, H hidden units.

torch computes the tanh form of GELU and its derivative with a tanh that takes as long as the matrix products around
them. 0.5 (1 + tanh(z)) is sigmoid(2 z), for which torch has a fast kernel; and with it the forward pass gets the
derivative nearly for free, so that the backward pass is a product.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from phonate.nn.products import linear_gelu
from phonate.nn.sequences import NUMBERS, Dropout, dropped, on_processor

_LINEAR = 2.0 * math.sqrt(2.0 / math.pi)
_CUBIC = 0.044715 * _LINEAR
"""gelu(x) = x sigmoid(_LINEAR x + _CUBIC x^3) (Hendrycks and Gimpel 2016, arXiv:1606.08415)."""
_ROWS = 1024
"""Frames of a matrix product: enough for its speed."""
_CELLS = 2**16
"""Values whose intermediate results stay in the cache of a core."""


class FeedForward(nn.Sequential):
    """A linear layer, GELU in its tanh form, dropout and a linear layer: (..., D) -> (..., D)."""

    def __init__(self, d_model: int, hidden: int, dropout: float) -> None:
        super().__init__(
            nn.Linear(d_model, hidden), nn.GELU(approximate="tanh"), Dropout(dropout), nn.Linear(hidden, d_model)
        )

    def scaled(self, x: Tensor, scale_D: Tensor | None = None) -> Tensor:
        """`forward` times a factor for each feature of the output, (..., D)."""
        first, activation, dropout, last = self
        if not (
            on_processor(x)
            and torch.is_grad_enabled()
            and isinstance(dropout, Dropout)
            and type(first) is type(last) is nn.Linear  # without adapters
        ):
            own = type(activation) is nn.GELU  # not what an export puts there
            out: Tensor = last(dropout(linear_gelu(first, x) if own else activation(first(x))))
            return out if scale_D is None else scale_D * out
        assert isinstance(first, nn.Linear)
        assert isinstance(last, nn.Linear)
        kind = x.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else first.weight.dtype
        weight: Tensor = last.weight
        bias: Tensor = last.bias
        if scale_D is not None:  # of fewer values than there are in the output
            weight, bias = scale_D[:, None] * weight, scale_D * bias
        zeros = round(dropout.p * NUMBERS) if dropout.training else 0
        with torch.autocast(kind, enabled=False):
            made: Tensor = _Function.apply(x, first.weight, first.bias, weight, bias, dtype, zeros)  # type: ignore[no-untyped-call]
        return made

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        return self.scaled(x)


class _Function(torch.autograd.Function):
    """`FeedForward` in the number format `dtype`, with units left out with a probability of `zeros` / 65,536."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        first_HD: Tensor,
        bias_H: Tensor,
        last_DH: Tensor,
        bias_D: Tensor,
        dtype: torch.dtype,
        zeros: int,
    ) -> Tensor:
        ctx.like = x.dtype
        x_ND = x.to(dtype).reshape(-1, x.shape[-1])
        weights = [one.to(dtype) for one in (first_HD, last_DH)]
        biases = [one.to(dtype) for one in (bias_H, bias_D)]
        activated_NH = x_ND.new_empty(len(x_ND), len(first_HD))
        slopes_NH = torch.empty_like(activated_NH)
        out_ND = torch.empty_like(x_ND)
        hidden_RH = x_ND.new_empty(min(_ROWS, len(x_ND)), len(first_HD))
        pieces = _Pieces(len(first_HD))
        for rows in _slices(len(x_ND), _ROWS):
            part_RH = hidden_RH[: rows.stop - rows.start]
            torch.addmm(biases[0], x_ND[rows], weights[0].t(), out=part_RH)
            mask_RH = dropped(part_RH.numel(), zeros).view(part_RH.shape) if zeros else None
            pieces.gelu(part_RH, activated_NH[rows], slopes_NH[rows], mask_RH, NUMBERS / (NUMBERS - zeros))
            torch.addmm(biases[1], activated_NH[rows], weights[1].t(), out=out_ND[rows])
        ctx.save_for_backward(x_ND, activated_NH, slopes_NH, first_HD, last_DH)
        return out_ND.view(x.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x_ND, activated_NH, slopes_NH, first_HD, last_DH = ctx.saved_tensors
        needs_x, *needs = ctx.needs_input_grad[:5]
        grad_ND = grad.reshape(x_ND.shape)
        first, last = first_HD.to(x_ND.dtype), last_DH.to(x_ND.dtype)
        of_x_ND = torch.empty_like(x_ND) if needs_x else None
        sums = [torch.zeros_like(one) for one in (first_HD, first_HD[:, 0], last_DH, last_DH[:, 0])]
        hidden_RH = x_ND.new_empty(min(_ROWS, len(x_ND)), len(first_HD))
        for rows in _slices(len(x_ND), _ROWS):
            grad_RD, of_hidden_RH = grad_ND[rows].to(x_ND.dtype), hidden_RH[: rows.stop - rows.start]
            torch.mm(grad_RD, last, out=of_hidden_RH).mul_(slopes_NH[rows])
            if of_x_ND is not None:
                torch.mm(of_hidden_RH, first, out=of_x_ND[rows])
            if needs[0]:
                sums[0] += of_hidden_RH.t() @ x_ND[rows]
            if needs[1]:
                sums[1] += of_hidden_RH.sum(0)
            if needs[2]:
                sums[2] += grad_RD.t() @ activated_NH[rows]
            if needs[3]:
                sums[3] += grad_RD.sum(0)
        of_x = None if of_x_ND is None else of_x_ND.view(grad.shape).to(ctx.like)
        return of_x, *(one if need else None for one, need in zip(sums, needs, strict=True)), None, None


class _Pieces:
    """Room for the intermediate results of pieces of (N, H), in fp32."""

    def __init__(self, hidden: int) -> None:
        self.rows = max(1, _CELLS // hidden)
        self.room = [torch.empty(self.rows * hidden) for _ in range(3)]
        self.linear = torch.full((self.rows * hidden,), _LINEAR)

    def gelu(self, x: Tensor, activated: Tensor, slopes: Tensor, mask: Tensor | None, scale: float) -> None:
        """GELUs of x (N, H), and their derivatives; times `scale`, and 0 where the 16-bit `mask` is 0."""
        signed = scale if mask is None or x.element_size() == 2 else -scale  # all ones are -1
        for rows in _slices(len(x), self.rows):
            size = x[rows].numel()
            values, sigmoids, slope = (one[:size] for one in self.room)
            values.copy_(x[rows].view(-1))
            torch.addcmul(self.linear[:size], values, values, value=_CUBIC, out=slope).mul_(values)
            torch.sigmoid(slope, out=sigmoids)
            # the derivative of x s(v) with v = a x + b x^3 is s + s (1 - s) (a x + 3 b x^3), where 3 v = that + 2 a x
            slope.add_(values, alpha=-2.0 / 3.0 * _LINEAR)
            torch.ops.aten.sigmoid_backward.grad_input(slope, sigmoids, grad_input=slope)
            torch.add(sigmoids, slope, alpha=3.0, out=slope)
            values.mul_(sigmoids)
            for out, made in ((activated, values), (slopes, slope)):
                if signed != 1.0:
                    made.mul_(signed)
                out[rows].view(-1).copy_(made)
                if mask is None:
                    continue
                if x.element_size() == 2:
                    out[rows].view(torch.int16).bitwise_and_(mask[rows])
                else:
                    out[rows].mul_(mask[rows])


def _slices(count: int, most: int) -> list[slice]:
    return [slice(start, min(start + most, count)) for start in range(0, count, most)]
