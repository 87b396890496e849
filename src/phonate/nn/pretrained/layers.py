"""Layers of pretrained models: projections with adapters, RMS norms, gated feed-forward networks.

peft computes each layer by itself: its own dropout of the input, passes over the output to scale and to add what the
adapter gives, and the gradients of the input as separate sums. Where several layers read one input, as the projections
of queries, keys and values do, one dropout mask is drawn for all of them here, their adapters are one matrix product,
and every sum is a part of a product.

Shapes: N tokens, I inputs, O outputs, R the rank; RR the ranks of all layers together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

# ---------------------------------------------------------------- Linear layers with low-rank adapters

_MASK_LEVELS = 1 << 16
"""Steps of the probability of a CPU's dropout masks: 16 random bits decide a value."""


def project(inputs_NI: Tensor, layers: Sequence[nn.Module]) -> list[Tensor]:
    """What each of the `layers` gives for inputs (N, I): (N, O) each.

    Layers are linear ones, with an adapter of peft or without. Adapters other than plain ones beside frozen weights
    compute by themselves.
    """
    adapters = [_plain_adapter(layer, inputs_NI) for layer in layers]
    plain = [one for one in adapters if one is not None]
    together = iter(_project_adapted(inputs_NI, plain) if plain else ())
    found = []
    for layer, adapter in zip(layers, adapters, strict=True):
        found.append(layer(inputs_NI) if adapter is None else next(together))
    return found


def dropout_mask(like: Tensor, dropout: float) -> tuple[Tensor, float]:
    """Which values of `like` dropout sets to 0, True with the probability `dropout`, and the exact probability.

    torch draws a random number for each value; on a CPU, a quarter of one is enough, and four times as fast.
    """
    if like.device.type != "cpu" or torch.compiler.is_compiling():
        return torch.empty_like(like, dtype=torch.bool).bernoulli_(dropout), dropout
    dropped = round(dropout * _MASK_LEVELS)
    words = torch.empty(-(-like.numel() // 4), dtype=torch.int64).random_(torch.iinfo(torch.int64).min, None)
    levels = words.view(torch.int16)[: like.numel()].view(like.shape)
    return levels < dropped - _MASK_LEVELS // 2, dropped / _MASK_LEVELS


@dataclass(frozen=True)
class _Adapter:
    """A frozen linear layer and its adapter."""

    weight_OI: Tensor
    bias_O: Tensor | None
    down_RI: Tensor
    up_OR: Tensor
    scaling: float
    dropout: float


def _plain_adapter(layer: nn.Module, inputs: Tensor) -> _Adapter | None:
    """The layer's only adapter, if it is a plain one beside frozen weights, all of a type that is computed in."""
    adapted: Any = layer
    if not hasattr(layer, "lora_A") or adapted.disable_adapters or adapted.merged:
        return None
    names = [name for name in adapted.active_adapters if name in adapted.lora_A]
    if len(names) != 1 or names[0] in adapted.lora_variant or adapted.lora_bias[names[0]]:
        return None
    (name,) = names
    base, down, up, dropout = (
        adapted.base_layer,
        adapted.lora_A[name],
        adapted.lora_B[name],
        adapted.lora_dropout[name],
    )
    if type(base) is not nn.Linear or any(one.requires_grad for one in base.parameters()):
        return None
    if not torch.is_autocast_enabled(inputs.device.type) and not (
        inputs.dtype == base.weight.dtype == down.weight.dtype == up.weight.dtype
    ):
        return None
    probability = dropout.p if isinstance(dropout, nn.Dropout) and dropout.training else 0.0
    return _Adapter(base.weight, base.bias, down.weight, up.weight, adapted.scaling[name], probability)


def _project_adapted(inputs_NI: Tensor, adapters: Sequence[_Adapter]) -> tuple[Tensor, ...]:
    """(N, O) of each layer."""
    kind = inputs_NI.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else inputs_NI.dtype
    mask_NI, scalings = None, [one.scaling for one in adapters]
    if adapters[0].dropout:
        mask_NI, probability = dropout_mask(inputs_NI, adapters[0].dropout)
        scalings = [scaling / (1 - probability) for scaling in scalings]
    trained = (weight.to(dtype) for one in adapters for weight in (one.down_RI, one.up_OR))
    frozen = [(one.weight_OI.to(dtype), None if one.bias_O is None else one.bias_O.to(dtype)) for one in adapters]
    found: tuple[Tensor, ...] = _Adapted.apply(inputs_NI.to(dtype), mask_NI, frozen, scalings, *trained)  # type: ignore[no-untyped-call]
    return found


class _Adapted(torch.autograd.Function):
    """y_i = x W_i^T + b_i + s_i d A_i^T B_i^T for the layers i, where d is x with 0 where the dropout mask is True."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs_NI: Tensor,
        mask_NI: Tensor | None,
        frozen: list[tuple[Tensor, Tensor | None]],
        scalings: list[float],
        *trained: Tensor,
    ) -> tuple[Tensor, ...]:
        downs, ups = trained[0::2], trained[1::2]
        dropped_NI = inputs_NI if mask_NI is None else inputs_NI.masked_fill(mask_NI, 0.0)
        down_RRI = torch.cat(downs)
        low_NRR = dropped_NI @ down_RRI.t()
        ranks = [len(down) for down in downs]
        lows = low_NRR.split(ranks, 1)  # type: ignore[no-untyped-call]
        outputs = tuple(
            functional.linear(inputs_NI, weight, bias).addmm_(low_NR, up_OR.t(), alpha=scaling)
            for (weight, bias), low_NR, up_OR, scaling in zip(frozen, lows, ups, scalings, strict=True)
        )
        ctx.save_for_backward(dropped_NI, mask_NI, down_RRI, low_NRR, *(weight for weight, _ in frozen), *ups)
        ctx.ranks, ctx.scalings = ranks, scalings
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        dropped_NI, mask_NI, down_RRI, low_NRR, *rest = ctx.saved_tensors
        weights, ups = rest[: len(gradients)], rest[len(gradients) :]
        lows = zip(gradients, ups, ctx.scalings, strict=True)
        into_low_NRR = torch.cat([(gradient @ up_OR).mul_(scaling) for gradient, up_OR, scaling in lows], 1)
        into_downs = (into_low_NRR.t() @ dropped_NI).split(ctx.ranks)
        lows = zip(gradients, low_NRR.split(ctx.ranks, 1), ctx.scalings, strict=True)
        into_ups = [(gradient.t() @ low_NR).mul_(scaling) for gradient, low_NR, scaling in lows]
        into_inputs = None
        if ctx.needs_input_grad[0]:
            into_inputs = into_low_NRR @ down_RRI
            if mask_NI is not None:
                into_inputs.masked_fill_(mask_NI, 0.0)
            for gradient, weight_OI in zip(gradients, weights, strict=True):
                into_inputs.addmm_(gradient, weight_OI)
        pairs = zip(into_downs, into_ups, strict=True)
        return (into_inputs, None, None, None, *(one for pair in pairs for one in pair))


# ------------------------------------------------------------------------------------------- RMS norms


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


# --------------------------------------------------------------- Gated feed-forward networks with SiLU


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
