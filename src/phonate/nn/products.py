"""Products of matrices on a processor, by the faster of torch's two libraries.

Shapes: I inputs, O outputs; B batch, H heads, T queries, S keys, E of a head; N positions of sequences one behind the
other, G heads of keys and values, each for H / G of queries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from phonate.nn import kernels

_LEAST_ROWS = 64
"""Fewer rows gain nothing."""
_MOST_THREADS = 4
"""More do better to share the heads of attention, which are computed in turn here."""

_WIDE: ContextVar[bool] = ContextVar("wide products", default=False)


@contextmanager
def wide_products() -> Iterator[None]:
    """Within, linear layers and attention in fp32 are computed by oneDNN where a processor has AVX-512.

    torch leaves them to MKL, which uses AVX-512 on Intel's processors alone: on AMD's with 512 bits, oneDNN takes half
    the time. The results agree up to rounding. Few rows, and products whose gradients torch computes, stay with MKL.
    """
    before = _WIDE.set(True)
    try:
        with _Wide():
            yield
    finally:
        _WIDE.reset(before)


class _Wide(TorchFunctionMode):
    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is F.linear and not kwargs and _is_wide(args[0]):
            return _product(*args)
        if func is F.scaled_dot_product_attention and len(args) == 3 and _is_plain(args[0], **kwargs or {}):
            return _attention(*args)
        return func(*args, **(kwargs or {}))


def linear_gelu(linear: nn.Module, x: Tensor) -> Tensor:
    """GELU (approximated by tanh) of what `linear` gives, within `wide_products` without a pass of its own."""
    if not torch.compiler.is_compiling() and _WIDE.get() and type(linear) is nn.Linear and _is_wide(x):
        return _product(x, linear.weight, linear.bias, "gelu", "tanh")
    return F.gelu(linear(x), approximate="tanh")


def linear(x_NI: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """(N, O), by the faster library: in a `torch.autograd.Function`, which computes the gradients by itself."""
    return _product(x_NI, weight_OI, bias_O) if _is_wide(x_NI) else F.linear(x_NI, weight_OI, bias_O)


def add_linear(total_NO: Tensor, x_NI: Tensor, weight_OI: Tensor) -> Tensor:
    """(N, O): a total, which may be overwritten, plus a product, in the same way."""
    if _is_wide(x_NI):
        return total_NO.add_(_product(x_NI, weight_OI))
    return total_NO.addmm_(x_NI, weight_OI.t())


def over_rows(one_NI: Tensor, other_NO: Tensor) -> Tensor:
    """(I, O): sums over N of products, as gradients of weights are, in the same way."""
    if not _is_wide(other_NO):
        return one_NI.t() @ other_NO
    if one_NI.shape[1] > other_NO.shape[1]:  # what comes first is copied
        return over_rows(other_NO, one_NI).t()
    return _product(one_NI.t(), other_NO.contiguous().t())  # with part of a matrix oneDNN takes 100 times as long


def _is_wide(x: Tensor) -> bool:
    """Whether oneDNN computes the product of `x` (..., I)."""
    return x.numel() >= _LEAST_ROWS * x.shape[-1] and not torch.is_grad_enabled() and _is_faster(x)


def _is_faster(x: Tensor) -> bool:
    """Whether oneDNN takes less time for products of values like these."""
    return (
        not torch.compiler.is_compiling()
        and x.device.type == "cpu"
        and x.dtype is torch.float32
        and not torch.is_autocast_enabled("cpu")
        and torch._C._has_mkldnn
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
    )


def _product(
    x: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None, then: str = "none", kind: str | None = ""
) -> Tensor:
    """(..., I) -> (..., O), by the operator that torch's own compiler takes; its public one copies input and output."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight_OI, bias_O, then, [], kind)
    return product


def _is_plain(
    query_BHTE: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0, is_causal: bool = False, **others: Any
) -> bool:
    """Whether many attend to all, and few threads compute it."""
    if query_BHTE.ndim != 4 or query_BHTE.shape[2] < _LEAST_ROWS or not _is_wide(query_BHTE):
        return False
    if torch.get_num_threads() > _MOST_THREADS or dropout_p or is_causal or others:
        return False
    return attn_mask is None or (attn_mask.dtype is torch.bool and bool(attn_mask.all()))


def _attention(query_BHTE: Tensor, key_BHSE: Tensor, value_BHSE: Tensor) -> Tensor:
    """(B, H, T, E). One head at a time, whose weights stay in the cache."""
    batch, heads, frames, width = query_BHTE.shape
    query_BHTE, key_BHSE = query_BHTE * width**-0.5, key_BHSE.contiguous()
    value_BHES = value_BHSE.transpose(2, 3).contiguous()
    out_BTHE = query_BHTE.new_empty(batch, frames, heads, value_BHSE.shape[3])
    for row in range(batch):
        for head in range(heads):
            weights_TS = _product(query_BHTE[row, head], key_BHSE[row, head])
            torch.softmax(weights_TS, -1, out=weights_TS)
            out_BTHE[row, :, head] = _product(weights_TS, value_BHES[row, head])
    return out_BTHE.transpose(1, 2)


# --------------------------------------------------------------- Causal attention that can be trained


def causal_attention(
    query_NHE: Tensor,
    key_NGE: Tensor,
    value_NGE: Tensor,
    rotation: tuple[Tensor, Tensor],
    starts: Tensor,
    scale: float,
) -> Tensor | None:
    """Attention (N, H, E) of sequences one behind the other to a position and those before it; None where there is no
    kernel for it. With AVX-512, the kernel takes a quarter of the time of torch's.

    Args:
        query_NHE: Queries, before rotary positions.
        key_NGE: Keys, the same.
        value_NGE: Values.
        rotation: Cosines and sines (N, E) of each position's angles, whose second half repeats the first.
        starts: (S + 1,) integers: where each sequence begins, and the last one ends, at N.
        scale: Of scores.
    """
    fast = kernels.attending(query_NHE)
    if fast is None:
        return None
    given = (one.contiguous() for one in (starts.long(), query_NHE, key_NGE, value_NGE, *rotation))
    attended: Tensor = _Causal.apply(fast, scale, *given)  # type: ignore[no-untyped-call]
    return attended


class _Causal(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, fast: kernels.Kernels, scale: float, starts: Tensor, query_NHE: Tensor, *given: Tensor
    ) -> Tensor:
        out_NHE = torch.empty_like(query_NHE)
        logs_NH = fast.attend(kernels.Attention.of(scale, starts, query_NHE, *given), out_NHE)
        ctx.save_for_backward(starts, query_NHE, *given, out_NHE, logs_NH)
        ctx.fast, ctx.scale = fast, scale
        return out_NHE

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NHE: Tensor) -> tuple[Tensor | None, ...]:
        *given, out_NHE, logs_NH = ctx.saved_tensors
        attention = kernels.Attention.of(ctx.scale, *given)
        gradients = ctx.fast.attend_backward(attention, out_NHE, logs_NH, grad_NHE.contiguous())
        return None, None, None, *gradients, None, None
