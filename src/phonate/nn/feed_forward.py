"""Feed-forward networks with GELUs, trained on a processor in pieces that stay in its caches.

Shapes: N frames, D width, H hidden units.

torch computes the tanh form of GELU and its derivative with a tanh that takes as long as the matrix products around
them. 0.5 (1 + tanh(z)) is sigmoid(2 z), for which torch has a fast kernel; and with it the forward pass gets the
derivative nearly for free, so that the backward pass is a product. In bf16, where there is a C compiler, `kernels` do
that in one pass.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from phonate.nn import kernels
from phonate.nn.products import linear_gelu
from phonate.nn.sequences import NUMBERS, Dropout, mask_of, on_processor, random_numbers

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

    def added(self, residual: Tensor | None, x: Tensor, scale_D: Tensor | None = None) -> Tensor:
        """The residual, plus `forward` times a factor for each feature of the output, (..., D)."""
        first, activation, dropout, last = self
        if not (
            on_processor(x)
            and torch.is_grad_enabled()
            and isinstance(dropout, Dropout)
            and type(first) is type(last) is nn.Linear  # without adapters
        ):
            own = type(activation) is nn.GELU  # not what an export puts there
            out: Tensor = last(dropout(linear_gelu(first, x) if own else activation(first(x))))
            out = out if scale_D is None else scale_D * out
            return out if residual is None else residual + out
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
            given = (residual, x, first.weight, first.bias, weight, bias, dtype, zeros)
            total: Tensor = _Function.apply(*given)  # type: ignore[no-untyped-call]
        return total

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        return self.added(None, x)


class _Function(torch.autograd.Function):
    """`FeedForward.added` in the number format `dtype`, with units left out with a probability of `zeros` / 65,536."""

    @staticmethod
    def forward(
        ctx: Any,
        residual: Tensor | None,
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
        before_ND = None if residual is None else residual.reshape(x_ND.shape)
        # what is kept is scaled with the weights, and that its mask is -1, not 1, in fp32
        ctx.scale = NUMBERS / (NUMBERS - zeros) * (-1.0 if zeros and x_ND.element_size() != 2 else 1.0)
        scaled_DH = last_DH * ctx.scale if zeros else last_DH
        first, bias, last, last_bias = (one.to(dtype) for one in (first_HD, bias_H, scaled_DH, bias_D))
        out_ND = torch.empty_like(x_ND if before_ND is None else before_ND)
        hidden_RH, kept, fast = _room(x_ND, first_HD), [], kernels.of(dtype)
        pieces = _Pieces() if fast is None else fast
        sums_fast = before_ND is not None and before_ND.dtype is torch.float32 and before_ND.is_contiguous()
        for rows in _slices(len(x_ND)):
            part_RH = hidden_RH[: rows.stop - rows.start]
            torch.addmm(bias, x_ND[rows], first.t(), out=part_RH)
            numbers = random_numbers(part_RH.numel()) if zeros else None
            # in many blocks, as the C library gives large ones back to the system, which clears them each time
            activated_RH, slopes_RH = torch.empty_like(part_RH), torch.empty_like(part_RH)
            pieces.gelu(part_RH, numbers, zeros, activated_RH, slopes_RH)
            kept += [activated_RH, slopes_RH]
            if sums_fast and fast is not None and before_ND is not None:
                fast.added(before_ND[rows], torch.addmm(last_bias, activated_RH, last.t()), out_ND[rows])
                continue
            if out_ND.dtype is dtype:
                torch.addmm(last_bias, activated_RH, last.t(), out=out_ND[rows])
            else:
                out_ND[rows] = torch.addmm(last_bias, activated_RH, last.t())
            if before_ND is not None:
                out_ND[rows] += before_ND[rows]
        ctx.save_for_backward(x_ND, first, last, *kept)
        return out_ND.view(x.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x_ND, first, last, *kept = ctx.saved_tensors
        needs_residual, needs_x, *needs = ctx.needs_input_grad[:6]
        grad_ND = grad.reshape(x_ND.shape)
        of_x_ND = torch.empty_like(x_ND) if needs_x else None
        sums: list[Tensor | None] = [None] * 4
        hidden_RH, fast = _room(x_ND, first), kernels.of(x_ND.dtype)
        for rows, activated_RH, slopes_RH in zip(_slices(len(x_ND)), kept[::2], kept[1::2], strict=True):
            grad_RD, of_bias_D = _narrow(grad_ND[rows], x_ND.dtype, fast)
            of_hidden_RH = torch.mm(grad_RD, last, out=hidden_RH[: rows.stop - rows.start])
            if fast is None:
                of_bias_H = of_hidden_RH.mul_(slopes_RH).sum(0)
            else:
                of_bias_H = fast.slopes_product(of_hidden_RH, slopes_RH)
            if of_x_ND is not None:
                torch.mm(of_hidden_RH, first, out=of_x_ND[rows])
            if needs[0]:
                sums[0] = _plus(sums[0], of_hidden_RH.t() @ x_ND[rows])
            if needs[1]:
                sums[1] = _plus(sums[1], of_bias_H)
            if needs[2]:
                sums[2] = _plus(sums[2], grad_RD.t() @ activated_RH)
            if needs[3]:
                sums[3] = _plus(sums[3], of_bias_D)
        if sums[2] is not None and ctx.scale != 1.0:
            sums[2] *= ctx.scale
        of_x = None if of_x_ND is None else of_x_ND.view(grad.shape).to(ctx.like)
        return grad if needs_residual else None, of_x, *sums, None, None


def _narrow(grad_RD: Tensor, dtype: torch.dtype, fast: kernels.Kernels | None) -> tuple[Tensor, Tensor]:
    """A gradient in a number format, and its sums over frames."""
    if fast is not None and grad_RD.dtype is torch.float32 and grad_RD.is_contiguous():
        return fast.narrowed(grad_RD)
    grad_RD = grad_RD.to(dtype)
    return grad_RD, grad_RD.sum(0)


def _plus(total: Tensor | None, part: Tensor) -> Tensor:
    """A sum in fp32."""
    return part.float() if total is None else total.add_(part)


def _room(x_ND: Tensor, first_HD: Tensor) -> Tensor:
    return x_ND.new_empty(max(rows.stop - rows.start for rows in _slices(len(x_ND))), len(first_HD))


class _Pieces:
    """Room for the intermediate results of pieces, in fp32."""

    def __init__(self) -> None:
        self.room = [torch.empty(_CELLS) for _ in range(4)]
        self.linear = torch.full((_CELLS,), _LINEAR)

    def gelu(self, x: Tensor, numbers: Tensor | None, zeros: int, activated: Tensor, slopes: Tensor) -> None:
        """GELUs of x, and their derivatives; 0 where `mask_of` random numbers is 0, times -1 in fp32 where it is not.

        In fp32 all is computed where it comes from and belongs, and the mask is converted once."""
        linear, room, wide = self.linear, self.room, x.dtype is torch.float32
        mask = None if numbers is None else mask_of(numbers, zeros)
        whole = (x, activated, slopes) if mask is None else (x, activated, slopes, mask)
        for given, *outputs in zip(*(torch.split(one.view(-1), _CELLS) for one in whole), strict=True):
            if (size := len(given)) < _CELLS:
                linear, *room = (one[:size] for one in (linear, *room))
            sigmoids, slope, *narrow = room
            values, *results = (given, *outputs[:2]) if wide else (narrow[0].copy_(given), narrow[1], slope)
            torch.addcmul(linear, values, values, value=_CUBIC, out=slope).mul_(values)
            torch.sigmoid(slope, out=sigmoids)
            # the derivative of x s(v) with v = a x + b x^3 is s + s (1 - s) (a x + 3 b x^3), where 3 v = that + 2 a x
            slope.add_(values, alpha=-2.0 / 3.0 * _LINEAR)
            torch.ops.aten.sigmoid_backward.grad_input(slope, sigmoids, grad_input=slope)
            torch.add(sigmoids, slope, alpha=3.0, out=results[1])
            torch.mul(values, sigmoids, out=results[0])
            signs = None if mask is None else narrow[0].copy_(outputs[2]) if wide else outputs[2]
            for out, result in zip(outputs, results, strict=False):
                if not wide:
                    out.copy_(result)
                if signs is not None:
                    _mask(out, signs)


def _mask(values: Tensor, mask: Tensor) -> None:
    """Zeros where the `mask` has them: in 16 bits one of as many, in wider formats a number, whose -1 is a factor."""
    if values.element_size() == 2:
        values.view(torch.int16).bitwise_and_(mask)
    else:
        values.mul_(mask)


def _slices(count: int) -> list[slice]:
    """Of `_ROWS`, since each new number of rows costs oneDNN a compilation; the last one of about as many."""
    edges = [*range(0, max(1, count - _ROWS // 2), _ROWS), count]
    return [slice(*both) for both in pairwise(edges)]
