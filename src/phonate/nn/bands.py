"""Convolutions over frames and bands of spectra, as fast as a processor can.

Shapes: B batch, T frames, K bands, C channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from phonate.nn.convolution import in_format
from phonate.nn.sequences import on_processor

SLOPE = 0.1
"""Of leaky ReLUs below 0."""


def convolved(layers: Sequence[nn.Conv2d], x_BTCK: Tensor) -> list[Tensor]:
    """What each of the layers, centred convolutions with leaky ReLUs, makes of (B, T, C, K): (B, C, T', K') each.

    Steps along bands become channels, in the layout of channels last: oneDNN is slow where there are few channels and
    such steps. In bf16 forward and backward passes of a discriminator of spectra take a third of the time.
    """
    kind = x_BTCK.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x_BTCK.dtype
    padded_BTKC: Tensor = _Padded.apply(x_BTCK, *_ends(layers[0], x_BTCK.shape[3]), dtype)  # type: ignore[no-untyped-call]
    outputs = []
    for layer, following in zip(layers, [*layers[1:], None], strict=True):
        out_BTKC = _folded(layer, padded_BTKC)
        ends = _ends(following, out_BTKC.shape[2])
        padded_BTKC, output_BTKC = _LeakyReLU.apply(out_BTKC, *ends)  # type: ignore[no-untyped-call]
        outputs.append(output_BTKC.permute(0, 3, 1, 2))
    return outputs


def _ends(layer: nn.Conv2d | None, bands: int) -> tuple[int, int]:
    """How many zeros `layer` needs before and after so many bands, for a whole number of its steps."""
    if layer is None:
        return 0, 0
    size, step = layer.kernel_size[1], layer.stride[1]
    before = size // 2
    outputs = (bands + 2 * before - size) // step + 1
    after = step * (outputs - 1 - (-size // step)) - before - bands
    assert after >= 0, f"kernels of {size} bands do not overlap in steps of {step}"
    return before, after


def _folded(layer: nn.Conv2d, padded_BTKC: Tensor) -> Tensor:
    """The convolution of padded bands, (B, T', K', O)."""
    step, size = layer.stride[1], layer.kernel_size[1]
    folded_BTKC = padded_BTKC.view(*padded_BTKC.shape[:2], -1, step * padded_BTKC.shape[3])
    padded_OCIJ = F.pad(in_format(layer.weight), (0, -size % step))
    weight_OSCIJ = padded_OCIJ.view(*padded_OCIJ.shape[:3], -1, step).permute(0, 4, 1, 2, 3)
    weight_OCIJ = weight_OSCIJ.flatten(1, 2).contiguous(memory_format=torch.channels_last)
    steps, sides = (layer.stride[0], 1), (layer.kernel_size[0] // 2, 0)
    return F.conv2d(folded_BTKC.permute(0, 3, 1, 2), weight_OCIJ, layer.bias, steps, sides).permute(0, 2, 3, 1)


class _Padded(torch.autograd.Function):
    """(B, T, C, K) -> (B, T, K', C) in a number format, with zeros before and after the bands."""

    @staticmethod
    def forward(ctx: Any, x_BTCK: Tensor, before: int, after: int, dtype: torch.dtype) -> Tensor:
        batch, frames, channels, bands = x_BTCK.shape
        ctx.ours, ctx.dtype = slice(before, before + bands), x_BTCK.dtype
        padded = x_BTCK.new_empty(batch, frames, before + bands + after, channels, dtype=dtype)
        _zero_ends(padded, ctx.ours)
        padded[:, :, ctx.ours] = x_BTCK.transpose(2, 3)
        return padded

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BTKC: Tensor) -> tuple[Tensor, None, None, None]:
        of_x_BTCK = grad_BTKC[:, :, ctx.ours].transpose(2, 3)
        return of_x_BTCK.to(ctx.dtype, memory_format=torch.contiguous_format), None, None, None


class _LeakyReLU(torch.autograd.Function):
    """(B, T, K, C) -> (B, T, K', C), with zeros before and after the bands; and the bands of it."""

    @staticmethod
    def forward(ctx: Any, x_BTKC: Tensor, before: int, after: int) -> tuple[Tensor, Tensor]:
        batch, frames, bands, channels = x_BTKC.shape
        padded = x_BTKC.new_empty(batch, frames, before + bands + after, channels)
        ours = padded[:, :, before : before + bands]
        _zero_ends(padded, slice(before, before + bands))
        torch._C._nn.leaky_relu(x_BTKC, SLOPE, out=ours)
        ctx.before = before
        ctx.save_for_backward(ours)
        ctx.set_materialize_grads(False)
        return padded, ours

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_padded: Tensor | None, of_ours: Tensor | None) -> tuple[Tensor | None, None, None]:
        (ours,) = ctx.saved_tensors
        if of_padded is not None:
            within = of_padded[:, :, ctx.before : ctx.before + ours.shape[2]]
            of_ours = within if of_ours is None else within + of_ours
        if of_ours is None:
            return None, None, None
        return torch.ops.aten.leaky_relu_backward(of_ours, ours, SLOPE, True), None, None


def _zero_ends(padded_BTKC: Tensor, ours: slice) -> None:
    padded_BTKC[:, :, : ours.start] = 0
    padded_BTKC[:, :, ours.stop :] = 0


class _Compressed(torch.autograd.Function):
    """Complex values x (B, T, 2, K) times (|x|^2 + floor)^power."""

    @staticmethod
    def forward(ctx: Any, x_BTCK: Tensor, floor: float, power: float) -> Tensor:
        real_BTK, imaginary_BTK = x_BTCK.unbind(2)
        squares_BTK = torch.addcmul(real_BTK.square(), imaginary_BTK, imaginary_BTK).add_(floor)
        size_BTK = squares_BTK.pow(power)
        slope_BTK = torch.div(size_BTK, squares_BTK, out=squares_BTK).mul_(2.0 * power)
        ctx.save_for_backward(x_BTCK, size_BTK, slope_BTK)
        return x_BTCK * size_BTK[:, :, None]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BTCK: Tensor) -> tuple[Tensor, None, None]:
        x_BTCK, size_BTK, slope_BTK = ctx.saved_tensors
        along_BTK = (grad_BTCK[:, :, 0] * x_BTCK[:, :, 0]).addcmul_(grad_BTCK[:, :, 1], x_BTCK[:, :, 1])
        return (grad_BTCK * size_BTK[:, :, None]).addcmul_(x_BTCK, along_BTK.mul_(slope_BTK)[:, :, None]), None, None


def compressed(x_BTCK: Tensor, floor: float, power: float) -> Tensor:
    """Complex values x (B, T, 2, K) times (|x|^2 + floor)^power."""
    if on_processor(x_BTCK):
        out: Tensor = _Compressed.apply(x_BTCK, floor, power)  # type: ignore[no-untyped-call]
        return out
    return x_BTCK * (x_BTCK.square().sum(2, keepdim=True) + floor).pow(power)
