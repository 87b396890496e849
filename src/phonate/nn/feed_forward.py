"""Feed-forward networks with GELUs, trained on a processor in pieces that stay in its caches.

Shapes: N frames, D width, H hidden units.

torch computes the tanh form of GELU and its derivative with a tanh that takes as long as the matrix products around
them. 0.5 (1 + tanh(z)) is sigmoid(2 z), for which torch has a fast kernel; and with it the forward pass gets the
derivative nearly for free, so that the backward pass is a product. In bf16, where there is a C compiler, `kernels`
compute both in one pass, and that again in the backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from phonate.nn import kernels
from phonate.nn.products import linear_gelu
from phonate.nn.sequences import NUMBERS, Dropout, drawn_seed, mask_of, on_processor, random_numbers, zeros_of

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
        zeros = zeros_of(dropout.p) if dropout.training else 0
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
        fast = kernels.of(dtype)
        pieces = _Pieces(zeros) if fast is None else _FastPieces(fast, zeros)
        sums_fast = before_ND is not None and before_ND.dtype is torch.float32 and before_ND.is_contiguous()
        for rows in _slices(len(x_ND)):
            # in many blocks, as the C library gives large ones back to the system, which clears them each time
            activated_RH = pieces.activated(torch.addmm(bias, x_ND[rows], first.t()))
            if sums_fast and fast is not None and before_ND is not None:
                fast.added(before_ND[rows], torch.addmm(last_bias, activated_RH, last.t()), out_ND[rows])
                continue
            if out_ND.dtype is dtype:
                torch.addmm(last_bias, activated_RH, last.t(), out=out_ND[rows])
            else:
                out_ND[rows] = torch.addmm(last_bias, activated_RH, last.t())
            if before_ND is not None:
                out_ND[rows] += before_ND[rows]
        ctx.pieces = pieces
        ctx.save_for_backward(x_ND, first, last, *pieces.leave())
        return out_ND.view(x.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x_ND, first, last, *kept = ctx.saved_tensors
        needs_residual, needs_x, *needs = ctx.needs_input_grad[:6]
        grad_ND = grad.reshape(x_ND.shape)
        of_x_ND = torch.empty_like(x_ND) if needs_x else None
        sums: list[Tensor | None] = [None] * 4
        fast = kernels.of(x_ND.dtype)
        for number, rows in enumerate(_slices(len(x_ND))):
            grad_RD, of_bias_D = _narrow(grad_ND[rows], x_ND.dtype, fast)
            of_hidden_RH = torch.mm(grad_RD, last)
            activated_RH, of_bias_H = ctx.pieces.backward(number, kept, of_hidden_RH)
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


class _FastPieces:
    """GELUs by the kernels, which compute them anew in the backward pass, so that half as much is kept for it."""

    def __init__(self, fast: kernels.Kernels, zeros: int) -> None:
        self.kept: list[Tensor] = []
        self._fast, self._zeros = fast, zeros
        self._seeds: list[int] = []
        self._room: Tensor | None = None

    def activated(self, hidden_RH: Tensor) -> Tensor:
        """GELUs of the next piece, until the one after it."""
        self._seeds.append(drawn_seed() if self._zeros else 0)
        self.kept.append(hidden_RH)
        activated_RH = self._room_for(hidden_RH)
        self._fast.gelu(hidden_RH, self._seeds[-1], self._zeros, activated_RH)
        return activated_RH

    def leave(self) -> list[Tensor]:
        """What the backward pass needs of all pieces."""
        kept, self.kept, self._room = self.kept, [], None
        return kept

    def backward(self, number: int, kept: Sequence[Tensor], grad_RH: Tensor) -> tuple[Tensor, Tensor]:
        """The GELUs of a piece, and the sums over rows of the gradient of their input, which `grad_RH` becomes."""
        activated_RH = self._room_for(kept[number])
        given = (kept[number], self._seeds[number], self._zeros)
        return activated_RH, self._fast.gelu_backward(*given, activated_RH, grad_RH)

    def _room_for(self, hidden_RH: Tensor) -> Tensor:
        if self._room is None or self._room.shape != hidden_RH.shape:
            self._room = torch.empty_like(hidden_RH)
        return self._room


class _Pieces:
    """Room for the intermediate results of pieces, in fp32."""

    def __init__(self, zeros: int) -> None:
        self.kept: list[Tensor] = []
        self._zeros = zeros
        self.room = [torch.empty(_CELLS) for _ in range(4)]
        self.linear = torch.full((_CELLS,), _LINEAR)

    def activated(self, hidden_RH: Tensor) -> Tensor:
        """GELUs of the next piece."""
        activated_RH, slopes_RH = torch.empty_like(hidden_RH), torch.empty_like(hidden_RH)
        self.gelu(hidden_RH, self._zeros, activated_RH, slopes_RH)
        self.kept += [activated_RH, slopes_RH]
        return activated_RH

    def leave(self) -> list[Tensor]:
        """What the backward pass needs of all pieces."""
        kept, self.kept, self.room, self.linear = self.kept, [], [], torch.empty(0)
        return kept

    def backward(self, number: int, kept: Sequence[Tensor], grad_RH: Tensor) -> tuple[Tensor, Tensor]:
        """The GELUs of a piece, and the sums over rows of the gradient of their input, which `grad_RH` becomes."""
        activated_RH, slopes_RH = kept[2 * number : 2 * number + 2]
        return activated_RH, grad_RH.mul_(slopes_RH).sum(0)

    def gelu(self, x: Tensor, zeros: int, activated: Tensor, slopes: Tensor) -> None:
        """GELUs of x, and their derivatives; 0 with a probability of `zeros` / 65,536, in fp32 otherwise times -1.

        In fp32 all is computed where it comes from and belongs, and the mask is converted once."""
        linear, room, wide = self.linear, self.room, x.dtype is torch.float32
        mask = mask_of(random_numbers(x.numel()), zeros) if zeros else None
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
