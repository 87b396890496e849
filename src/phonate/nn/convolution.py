"""Convolutions over padded batches of frames, and ConvNeXt blocks of them.

Shapes: B batch, T frames, F features of a frame.

Shapes: B batch, T frames, D width.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# ---------------------------------------------------------- Convolutions over padded batches of frames


def zero_padding(x_BTF: Tensor, mask_BT: Tensor | None) -> Tensor:
    """`x_BTF` (B, T, F) with zeros in its padding, so that a convolution does not carry padding into real frames."""
    return x_BTF if mask_BT is None else x_BTF * mask_BT[:, :, None].to(x_BTF.dtype)


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
        out_BTF = self.convolution(zero_padding(x_BTF, mask_BT).transpose(1, 2)).transpose(1, 2)
        return out_BTF, None if mask_BT is None else mask_BT[:, :: self.stride]

    def initial_state(self, batch: int) -> PastFrames:
        """The state before the first `step` of a causal one."""
        return limited(self.convolution).initial_state(batch)

    def step(self, x_BTF: Tensor, past: PastFrames) -> Tensor:
        """The outputs (B, n, out), n may be 0, that the next frames (B, T, F) complete; updates `past` in place."""
        return limited(self.convolution).step(x_BTF.transpose(1, 2), past).transpose(1, 2)


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
        self.activation = nn.Tanh()
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_BTF: Tensor, mask_BT: Tensor | None = None) -> Tensor:
        """(B, T, F) -> (B, T, F): the input plus the output of the convolutions."""
        change_BTF = x_BTF
        for number, convolution in enumerate(self.convolutions, start=1):
            change_BTF = convolution(zero_padding(change_BTF, mask_BT).transpose(1, 2)).transpose(1, 2)
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
        self.norm = nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, expansion * width),
            nn.GELU(approximate="tanh"),
            nn.Dropout(dropout),
            nn.Linear(expansion * width, width),
        )
        self.scale = nn.Parameter(torch.full((width,), scale))

    def forward(self, x_BTD: Tensor, mask_BT: Tensor | None = None) -> Tensor:
        """(B, T, D) -> (B, T, D). `mask_BT` (B, T) is True for real frames; padding does not affect them."""
        return self._add(x_BTD, self.depthwise(zero_padding(x_BTD, mask_BT).transpose(1, 2)))

    def step(self, x_BTD: Tensor, past: PastFrames) -> Tensor:
        """`forward` of a causal block for the next frames (B, T, D); updates `past` in place."""
        return self._add(x_BTD, limited(self.depthwise).step(x_BTD.transpose(1, 2), past))

    def _add(self, x_BTD: Tensor, mixed_BDT: Tensor) -> Tensor:
        out_BTD: Tensor = x_BTD + self.scale * self.feed_forward(self.norm(mixed_BDT.transpose(1, 2)))
        return out_BTD


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
        self.last_norm = nn.LayerNorm(width)

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
