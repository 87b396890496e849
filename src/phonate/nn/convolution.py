"""Convolutions over padded batches of frames, and ConvNeXt blocks of them.

Shapes: B batch, T frames, F features of a frame, D width, K taps of a kernel.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from phonate.nn import kernels
from phonate.nn.feed_forward import FeedForward
from phonate.nn.norms import LayerNorm
from phonate.nn.sequences import Dropout, on_processor

# ---------------------------------------------------------- Convolutions over padded batches of frames


def zero_padding(x_BTF: Tensor, mask_BT: Tensor | None) -> Tensor:
    """`x_BTF` (B, T, F) with zeros in its padding, so that a convolution does not carry padding into real frames."""
    if mask_BT is None or (on_processor(x_BTF) and bool(mask_BT.all())):
        return x_BTF
    return x_BTF * mask_BT[:, :, None].to(x_BTF.dtype)


def zero_padding_(x_BTF: Tensor, mask_BT: Tensor) -> Tensor:
    """The same in place, where no gradient is needed: a processor writes to the padding alone."""
    if not on_processor(x_BTF):
        return x_BTF.mul_(mask_BT[:, :, None])
    x_BTF.view(-1, x_BTF.shape[2]).index_fill_(0, mask_BT.logical_not().flatten().nonzero()[:, 0], 0.0)
    return x_BTF


@dataclass
class PastFrames:
    """What a LimitedConv1d carries from block to block."""

    frames_BFT: Tensor
    """Frames that later outputs depend on."""
    weight: Tensor
    """The weights in use, laid out for a product with windows of frames: (out, F x taps), or (F, taps) where each
    feature has its own kernel."""


class LimitedConv1d(nn.Conv1d):
    """A centred convolution over time (B, F, T) -> (B, out, ceil(T / stride)) without its weights for frames later than
    `lookahead` (a masked convolution: van den Oord et al. 2016, "Pixel recurrent neural networks", section 3.4).

    The weights have the shape of the whole kernel, so that those of a centred convolution fit.
    """

    def __init__(
        self, features: int, out_features: int, width: int, lookahead: int, stride: int = 1, groups: int = 1
    ) -> None:
        super().__init__(features, out_features, width, stride=stride, groups=groups)
        if groups > 1 and not groups == features == out_features:
            raise ValueError("either all features are convolved together, or each alone")
        self.past = width // 2
        if not 0 <= lookahead <= self.past:
            raise ValueError(f"a kernel of {width} frames covers {self.past} later ones at most, not {lookahead}")
        self.taps = self.past + 1 + lookahead

    def forward(self, x_BFT: Tensor) -> Tensor:
        """(B, F, T) -> (B, out, ceil(T / stride)), with zeros beyond both ends."""
        padded_BFT = F.pad(x_BFT, (self.past, self.taps - 1 - self.past))
        return F.conv1d(padded_BFT, self.weight[..., : self.taps], self.bias, self.stride, groups=self.groups)

    def initial_state(self, batch: int) -> PastFrames:
        """The state before the first `step`: zeros before the first frame."""
        zeros_BFT = self.weight.new_zeros(batch, self.in_channels, self.past)
        return PastFrames(zeros_BFT, self.weight[..., : self.taps].flatten(1).contiguous())

    def step(self, x_BFT: Tensor, past: PastFrames) -> Tensor:
        """The outputs (B, out, n), n may be 0, that the next frames (B, F, T) complete; updates `past` in place.

        For a few frames a product with their windows is faster than a convolution, which lays out its weights anew.
        """
        held_BFT = torch.cat((past.frames_BFT, x_BFT), dim=2)
        count = max(0, (held_BFT.shape[2] - self.taps) // self.stride[0] + 1)
        past.frames_BFT = held_BFT[:, :, count * self.stride[0] :]
        if count == 0:
            return x_BFT.new_zeros(len(x_BFT), self.out_channels, 0)
        windows_BFTW = held_BFT.unfold(2, self.taps, self.stride[0])
        if self.groups > 1:
            out_BFT = (windows_BFTW * past.weight[:, None]).sum(3)
            return out_BFT if self.bias is None else out_BFT + self.bias[:, None]
        return F.linear(windows_BFTW.transpose(1, 2).flatten(2), past.weight, self.bias).transpose(1, 2)


def convolution(
    features: int, out_features: int, width: int, lookahead: int | None = None, stride: int = 1, groups: int = 1
) -> nn.Conv1d:
    """A centred convolution over time of an odd `width`; with `lookahead`, see `LimitedConv1d`."""
    if lookahead is not None:
        return LimitedConv1d(features, out_features, width, lookahead, stride, groups)
    return nn.Conv1d(features, out_features, width, stride=stride, padding=width // 2, groups=groups)


def convolved(layer: nn.Conv1d, x_BTF: Tensor) -> Tensor:
    """What a convolution over time makes of frames: (B, T, F) -> (B, ceil(T / stride), out).

    Trained on a processor in the layout of the frames, in which it takes three quarters of the time: oneDNN rearranges
    neither input nor output.
    """
    if not on_processor(x_BTF) or not torch.is_grad_enabled():
        made_BTF: Tensor = layer(x_BTF.transpose(1, 2)).transpose(1, 2)
        return made_BTF
    weight_OFK, x_BTF, stride, sides = layer.weight, in_format(x_BTF), layer.stride[0], int(layer.padding[0])
    if isinstance(layer, LimitedConv1d):
        weight_OFK, sides = weight_OFK[..., : layer.taps], 0
        x_BTF = F.pad(x_BTF, (0, 0, layer.past, layer.taps - 1 - layer.past))
    if stride > 1 and layer.groups == 1 and x_BTF.dtype is torch.bfloat16 and not x_BTF.requires_grad:
        return F.linear(_windows(x_BTF, weight_OFK.shape[2], stride, sides), weight_OFK.mT.flatten(1), layer.bias)
    weight_OF1K = in_format(weight_OFK)[:, :, None].contiguous(memory_format=torch.channels_last)
    x_BF1T = x_BTF.transpose(1, 2).unsqueeze(2)  # channels last, in torch's words
    out_BF1T = F.conv2d(x_BF1T, weight_OF1K, layer.bias, (1, stride), (0, sides), groups=layer.groups)
    return out_BF1T.squeeze(2).transpose(1, 2)


def _windows(x_BTF: Tensor, taps: int, stride: int, sides: int) -> Tensor:
    """(B, T', taps x F): few enough that a product with all of them is faster than a convolution."""
    padded_BTF = F.pad(x_BTF, (0, 0, sides, sides)).contiguous()
    batch, frames, features = padded_BTF.shape
    sizes, steps = (batch, (frames - taps) // stride + 1, taps * features), (frames * features, stride * features, 1)
    return padded_BTF.as_strided(sizes, steps)


def in_format(x: Tensor) -> Tensor:
    """`x` in the number format in which autocast computes now, if it does."""
    kind = x.device.type
    return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x


class _DepthwiseFunction(torch.autograd.Function):
    """Each feature of (B, T, D) convolved with its own kernel, with `past` and `later` zeros at the ends.

    In the layout of the frames, in which oneDNN convolves 5 to 20 times as fast as over (B, D, T). Of the gradients, it
    takes 11 ms to that of the kernels where a product and a sum for each tap take 3 (8 x 833 frames of 192 features).
    """

    @staticmethod
    def forward(ctx: Any, x_BTD: Tensor, weight_D1K: Tensor, bias_D: Tensor | None, past: int, later: int) -> Tensor:
        ctx.save_for_backward(x_BTD, weight_D1K)
        ctx.ends, ctx.bias = (past, later), bias_D is not None
        return _depthwise(x_BTD, weight_D1K, bias_D, past, later)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BTD: Tensor) -> tuple[Tensor | None, ...]:
        x_BTD, weight_D1K = ctx.saved_tensors
        past, later = ctx.ends
        grad_BTD = grad_BTD.contiguous()
        frames = x_BTD.shape[1]
        of_x_BTD = _depthwise(grad_BTD, weight_D1K.flip(2), None, later, past) if ctx.needs_input_grad[0] else None
        fast = kernels.of(grad_BTD.dtype)
        if fast is not None and ctx.needs_input_grad[1]:
            taps_KD, biases_D = fast.depthwise_backward(grad_BTD, x_BTD.contiguous(), past, later)
            return (
                of_x_BTD,
                taps_KD.t()[:, None],
                biases_D if ctx.bias and ctx.needs_input_grad[2] else None,
                None,
                None,
            )
        of_weight_D1K = None
        if ctx.needs_input_grad[1]:
            of_weight_KD = grad_BTD.new_zeros(past + 1 + later, grad_BTD.shape[2])
            for tap, shift in enumerate(range(-past, later + 1)):
                if abs(shift) < frames:
                    x_shifted = x_BTD[:, max(0, shift) : frames + min(0, shift)]
                    of_weight_KD[tap] = (x_shifted * grad_BTD[:, max(0, -shift) : frames + min(0, -shift)]).sum((0, 1))
            of_weight_D1K = of_weight_KD.t()[:, None]
        of_bias_D = grad_BTD.sum((0, 1)) if ctx.bias and ctx.needs_input_grad[2] else None
        return of_x_BTD, of_weight_D1K, of_bias_D, None, None


def _depthwise(x_BTD: Tensor, weight_D1K: Tensor, bias_D: Tensor | None, past: int, later: int) -> Tensor:
    sides = min(past, later)
    if past != later:
        x_BTD = F.pad(x_BTD, (0, 0, past - sides, later - sides))
    x_BD1T = x_BTD.contiguous().transpose(1, 2).unsqueeze(2)  # channels last, in torch's words
    out_BD1T = F.conv2d(x_BD1T, weight_D1K[:, :, None], bias_D, padding=(0, sides), groups=len(weight_D1K))
    return out_BD1T.squeeze(2).transpose(1, 2)


def depthwise(x_BTD: Tensor, weight_D1K: Tensor, bias_D: Tensor | None, past: int, later: int) -> Tensor:
    """Each feature of (B, T, D) convolved with its own kernel of past + 1 + later frames, with zeros at the ends."""
    if not on_processor(x_BTD) or not torch._C._has_mkldnn:
        x_BDT, features = x_BTD.transpose(1, 2), x_BTD.shape[2]
        if past == later:
            return F.conv1d(x_BDT, weight_D1K, bias_D, padding=past, groups=features).transpose(1, 2)
        return F.conv1d(F.pad(x_BDT, (past, later)), weight_D1K, bias_D, groups=features).transpose(1, 2)
    x_BTD, weight_D1K, bias_D = in_format(x_BTD), in_format(weight_D1K), None if bias_D is None else in_format(bias_D)
    with torch.autocast("cpu", enabled=False):
        out: Tensor = _DepthwiseFunction.apply(x_BTD, weight_D1K, bias_D, past, later)  # type: ignore[no-untyped-call]
        return out


def limited(convolution: nn.Module) -> LimitedConv1d:
    """`convolution`, which can run incrementally. Raises ValueError if it is centred."""
    if not isinstance(convolution, LimitedConv1d):
        raise ValueError("this convolution covers later frames, so it can't run incrementally; build it causal")
    return convolution


class Downsampling(nn.Module):
    """A strided convolution over time: (B, T, F) -> (B, ceil(T / stride), out).

    `causal`: no output frame depends on frames after the `stride` ones that it stands for.
    """

    def __init__(self, features: int, out_features: int, stride: int, width: int = 5, causal: bool = False) -> None:
        super().__init__()
        self.stride = stride
        lookahead = min(stride - 1, width // 2) if causal else None
        self.convolution = convolution(features, out_features, width, lookahead, stride)

    def forward(self, x_BTF: Tensor, mask_BT: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Frames (B, T', out), and their mask (B, T')."""
        out_BTF = convolved(self.convolution, zero_padding(x_BTF, mask_BT))
        return out_BTF, None if mask_BT is None else mask_BT[:, :: self.stride]

    def initial_state(self, batch: int) -> PastFrames:
        """The state before the first `step` of a causal one."""
        return limited(self.convolution).initial_state(batch)

    def step(self, x_BTF: Tensor, past: PastFrames) -> Tensor:
        """The outputs (B, n, out), n may be 0, that the next frames (B, T, F) complete; updates `past` in place."""
        return limited(self.convolution).step(x_BTF.transpose(1, 2), past).transpose(1, 2)


class Tanh(nn.Tanh):
    """`nn.Tanh`, trained in bf16 on a processor in a fifth of the time."""

    def forward(self, input: Tensor) -> Tensor:
        """Any shape."""
        if not on_processor(input) or not torch.is_grad_enabled() or kernels.of(input.dtype) is None:
            return super().forward(input)
        out: Tensor = _Tanh.apply(input)  # type: ignore[no-untyped-call]
        return out


class _Tanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        fast = kernels.of(x.dtype)
        assert fast is not None
        out = fast.tanh(x.contiguous())
        ctx.save_for_backward(out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        of_x: Tensor = torch.ops.aten.tanh_backward(grad, *ctx.saved_tensors)
        return of_x


class PostNet(nn.Module):
    """Residual convolutions that refine a predicted spectrogram (Shen et al. 2018, Tacotron 2, section 2.2).

    `causal`: no frame depends on later ones.
    """

    def __init__(
        self, features: int, hidden: int, layers: int, width: int = 5, dropout: float = 0.1, causal: bool = False
    ) -> None:
        super().__init__()
        sizes = [features, *[hidden] * (layers - 1), features]
        self.convolutions = nn.ModuleList(
            convolution(into, out, width, 0 if causal else None) for into, out in itertools.pairwise(sizes)
        )
        self.activation = Tanh()
        self.dropout = Dropout(dropout)

    def forward(self, x_BTF: Tensor, mask_BT: Tensor | None = None) -> Tensor:
        """(B, T, F) -> (B, T, F): the input plus the output of the convolutions."""
        change_BTF = x_BTF
        for number, convolution in enumerate(self.convolutions, start=1):
            assert isinstance(convolution, nn.Conv1d)
            change_BTF = convolved(convolution, zero_padding(change_BTF, mask_BT))
            if number < len(self.convolutions):
                change_BTF = self.dropout(self.activation(change_BTF))
        return x_BTF + change_BTF

    def initial_state(self, batch: int) -> list[PastFrames]:
        """The state before the first `step` of a causal one."""
        return [limited(one).initial_state(batch) for one in self.convolutions]

    def step(self, x_BTF: Tensor, state: list[PastFrames]) -> Tensor:
        """The next frames (B, T, F), refined; updates `state` in place."""
        change_BFT = x_BTF.transpose(1, 2)
        for number, (one, past) in enumerate(zip(self.convolutions, state, strict=True), start=1):
            change_BFT = limited(one).step(change_BFT, past)
            if number < len(state):
                change_BFT = self.activation(change_BFT)
        return x_BTF + change_BFT.transpose(1, 2)


# ------------------------------------------------------------------------- ConvNeXt blocks over frames


def _branched(x_BTD: Tensor, mask_BT: Tensor | None) -> tuple[Tensor, Tensor]:
    """Frames in the number format of a branch, with zeros in their padding; and those to which its output is added."""
    dtype = in_format(x_BTD.new_empty(0)).dtype
    if not (on_processor(x_BTD) and x_BTD.requires_grad and x_BTD.dtype is torch.float32) or kernels.of(dtype) is None:
        return zero_padding(in_format(x_BTD), mask_BT), x_BTD
    if mask_BT is not None and bool(mask_BT.all()):
        mask_BT = None
    both: tuple[Tensor, Tensor] = _Branched.apply(x_BTD, mask_BT)  # type: ignore[no-untyped-call]
    return both


class _Branched(torch.autograd.Function):
    """Frames in bf16, with zeros in their padding, and in fp32. Their gradients are added up in one pass."""

    @staticmethod
    def forward(ctx: Any, x_BTD: Tensor, mask_BT: Tensor | None) -> tuple[Tensor, Tensor]:
        ctx.mask_BT = None if mask_BT is None else mask_BT.contiguous()
        narrow_BTD = x_BTD.to(torch.bfloat16)
        if mask_BT is not None:
            narrow_BTD.mul_(mask_BT[:, :, None])
        return narrow_BTD, x_BTD.view_as(x_BTD)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_narrow_BTD: Tensor, of_wide_BTD: Tensor) -> tuple[Tensor, None]:
        fast = kernels.of(torch.bfloat16)
        assert fast is not None
        out_BTD, width = torch.empty_like(of_wide_BTD), of_wide_BTD.shape[2]
        both = of_wide_BTD.contiguous().view(-1, width), of_narrow_BTD.contiguous().view(-1, width)
        fast.added(*both, out_BTD.view(-1, width), ctx.mask_BT)
        return out_BTD, None


class ConvNeXtBlock(nn.Module):
    """Depthwise convolution, layer norm, a feed-forward network and a residual connection: (B, T, D) -> (B, T, D)."""

    def __init__(
        self,
        width: int,
        kernel: int = 7,
        expansion: int = 3,
        scale: float = 1.0,
        dropout: float = 0.0,
        causal: bool = False,
    ) -> None:
        """`scale`: initial factor of the branch, which is trained; deep networks need a small one. `causal`: no frame
        depends on later ones."""
        super().__init__()
        self.depthwise = convolution(width, width, kernel, 0 if causal else None, groups=width)
        self.norm = LayerNorm(width)
        self.feed_forward = FeedForward(width, expansion * width, dropout)
        self.scale = nn.Parameter(torch.full((width,), scale))

    def forward(self, x_BTD: Tensor, mask_BT: Tensor | None = None) -> Tensor:
        """(B, T, D) -> (B, T, D). `mask_BT` (B, T) is True for real frames; padding does not affect them."""
        weight, bias, past = self.depthwise.weight, self.depthwise.bias, self.depthwise.kernel_size[0] // 2
        later = 0 if isinstance(self.depthwise, LimitedConv1d) else past
        real_BTD, x_BTD = _branched(x_BTD, mask_BT)
        return self._add(x_BTD, depthwise(real_BTD, weight[..., : past + 1 + later], bias, past, later))

    def step(self, x_BTD: Tensor, past: PastFrames) -> Tensor:
        """`forward` of a causal block for the next frames (B, T, D); updates `past` in place."""
        return self._add(x_BTD, limited(self.depthwise).step(x_BTD.transpose(1, 2), past).transpose(1, 2))

    def _add(self, x_BTD: Tensor, mixed_BTD: Tensor) -> Tensor:
        if not on_processor(x_BTD) or not torch.is_grad_enabled():
            added_BTD: Tensor = x_BTD + self.scale * self.feed_forward(self.norm(mixed_BTD))
            return added_BTD
        return self.feed_forward.added(x_BTD.to(self.scale.dtype), self.norm(mixed_BTD), self.scale)


class ConvNeXt(nn.Module):
    """`layers` blocks and a final layer norm: (B, T, D) -> (B, T, D). A `causal` one can run incrementally."""

    def __init__(
        self,
        width: int,
        layers: int,
        kernel: int = 7,
        expansion: int = 3,
        dropout: float = 0.0,
        causal: bool = False,
    ) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            ConvNeXtBlock(width, kernel, expansion, 1.0 / max(1, layers), dropout, causal) for _ in range(layers)
        )
        self.last_norm = LayerNorm(width)

    def forward(self, x_BTD: Tensor, mask_BT: Tensor | None = None) -> Tensor:
        """(B, T, D) -> (B, T, D). `mask_BT` (B, T) is True for real frames."""
        for block in self.blocks:
            x_BTD = block(x_BTD, mask_BT)
        out: Tensor = self.last_norm(x_BTD)
        return out

    def initial_state(self, batch: int) -> list[PastFrames]:
        """The state before the first `step` of a causal one."""
        return [limited(block.depthwise).initial_state(batch) for block in self._typed()]

    def step(self, x_BTD: Tensor, state: list[PastFrames]) -> Tensor:
        """`forward` for the next frames (B, T, D); updates `state` in place."""
        for block, past in zip(self._typed(), state, strict=True):
            x_BTD = block.step(x_BTD, past)
        out: Tensor = self.last_norm(x_BTD)
        return out

    def _typed(self) -> list[ConvNeXtBlock]:
        return [block for block in self.blocks if isinstance(block, ConvNeXtBlock)]
