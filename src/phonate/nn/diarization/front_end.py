"""Normalisation and subsampling of feature frames for a transformer.

Shapes: B items, T feature frames, F features, U = ceil(T / stride) output frames, C width of an output frame. Masks are
True for real frames, which precede padding.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phonate.nn.convolution import Downsampling, zero_padding

Normalisation = Literal["none", "global", "mean", "mean_variance", "causal_mean"]
_FLATTEST = 1e-5


@dataclass
class RunningMean:
    """Sum (B, F) and number of the frames so far. The sum is float64, as a stream may last for hours."""

    total_BF: Tensor
    frames: int = 0


class FeatureNormalisation(nn.Module):
    """Mean and variance normalisation of each feature. All kinds but `global` and `none` remove the recording's level.

    Args:
        kind: `global` subtracts the mean of the training set and divides by its standard deviation (see `fit`). `mean`
            subtracts the mean of the item, `mean_variance` also divides by its standard deviation. `causal_mean`
            subtracts the running mean up to each frame, for streams. `none` does nothing.
        features: F.
    """

    def __init__(self, kind: Normalisation, features: int) -> None:
        super().__init__()
        self.kind = kind
        self.causal = kind in {"none", "global", "causal_mean"}
        if kind == "global":
            self.mean_F: Tensor
            self.register_buffer("mean_F", torch.zeros(features))
            self.deviation_F: Tensor
            self.register_buffer("deviation_F", torch.ones(features))

    def fit(self, frames_NF: Tensor) -> None:
        """Set the mean and standard deviation of `global` to those of frames (N, F).

        Features that are constant in them, such as bands above the recordings' bandwidth, are not scaled.
        """
        if self.kind == "global":
            deviation_F, mean_F = torch.std_mean(frames_NF.double(), dim=0, correction=0)
            self.mean_F.copy_(mean_F)
            self.deviation_F.copy_(deviation_F.masked_fill(deviation_F <= _FLATTEST * mean_F.abs(), 1.0))

    def forward(self, x_BTF: Tensor, mask_BT: Tensor | None = None) -> Tensor:
        """(B, T, F) -> (B, T, F), with zeros in padding. `mask_BT` None: there is no padding."""
        if self.kind == "causal_mean":
            return zero_padding(x_BTF - self._means(zero_padding(x_BTF, mask_BT), None), mask_BT)
        if self.kind in {"none", "global"}:
            return zero_padding(self._fixed(x_BTF), mask_BT)
        real_BTF = zero_padding(x_BTF, mask_BT)
        frames_B11 = x_BTF.shape[1] if mask_BT is None else mask_BT.sum(1).clamp_min(1)[:, None, None]
        centred_BTF = zero_padding(x_BTF - real_BTF.sum(1, keepdim=True) / frames_B11, mask_BT)
        if self.kind == "mean":
            return centred_BTF
        variance_B1F = centred_BTF.square().sum(1, keepdim=True) / frames_B11
        return centred_BTF / (variance_B1F + _FLATTEST).sqrt()

    def initial_state(self, x_BTF: Tensor) -> RunningMean:
        """The initial state of a stream, for features with the shape, dtype and device of `x_BTF`."""
        return RunningMean(x_BTF.new_zeros(len(x_BTF), x_BTF.shape[2], dtype=torch.float64))

    def step(self, x_BTF: Tensor, state: RunningMean) -> Tensor:
        """`forward` for the next frames (B, T, F); updates `state` in place."""
        return x_BTF - self._means(x_BTF, state) if self.kind == "causal_mean" else self._fixed(x_BTF)

    def _fixed(self, x_BTF: Tensor) -> Tensor:
        return (x_BTF - self.mean_F) / self.deviation_F if self.kind == "global" else x_BTF

    def _means(self, x_BTF: Tensor, state: RunningMean | None) -> Tensor:
        """(B, T, F): the mean up to each frame."""
        sums_BTF = x_BTF.double().cumsum(1)
        before = 0
        if state is not None:
            sums_BTF, before = sums_BTF + state.total_BF[:, None, :], state.frames
            if x_BTF.shape[1]:
                state.total_BF, state.frames = sums_BTF[:, -1], before + x_BTF.shape[1]
        counts_T1 = torch.arange(before + 1, before + 1 + x_BTF.shape[1], device=x_BTF.device)[:, None]
        return (sums_BTF / counts_T1).to(x_BTF.dtype)


class FrontEnd(nn.Module, ABC):
    """Subsampling with a known receptive field: output frame u depends on the feature frames from `u * stride - left`
    to `u * stride + right`, which are zero outside of the recording."""

    stride: int
    left: int
    right: int
    width: int
    """C."""

    @abstractmethod
    def forward(self, x_BTF: Tensor, mask_BT: Tensor | None = None) -> Tensor:
        """(B, T, F) -> (B, U, C)."""


class SplicedFrames(FrontEnd):
    """Every `stride`-th frame, concatenated with `context` frames on each side (7 and stride 10 in Fujita et al. 2019).

    Each output frame is centred on the `stride` frames that it represents.
    """

    def __init__(self, features: int, context: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.frames = 2 * context + 1
        self.start = stride // 2 - context
        self.left, self.right = max(0, -self.start), max(0, self.start + self.frames - 1)
        self.width = features * self.frames

    def forward(self, x_BTF: Tensor, mask_BT: Tensor | None = None) -> Tensor:
        """(B, T, F) -> (B, U, C)."""
        x_BTF = zero_padding(x_BTF, mask_BT)
        outputs = -(-x_BTF.shape[1] // self.stride)
        end = (outputs - 1) * self.stride + self.start + self.frames
        padded_BTF = F.pad(x_BTF, (0, 0, self.left, max(0, end - x_BTF.shape[1])))
        windows_BUFW = padded_BTF[:, self.left + self.start :].unfold(1, self.frames, self.stride)[:, :outputs]
        return windows_BUFW.transpose(2, 3).flatten(2)


class StridedConvolutions(FrontEnd):
    """A convolution for each prime factor of the stride, with GELU in between and a final layer norm."""

    def __init__(self, features: int, width: int, stride: int) -> None:
        super().__init__()
        self.stride, self.width = stride, width
        self.layers = nn.ModuleList()
        reach, so_far = 0, 1
        for factor in _primes(stride) or [1]:
            self.layers.append(Downsampling(features, width, factor, 2 * factor + 1))
            features, reach, so_far = width, reach + so_far * factor, so_far * factor
        self.left = self.right = reach
        self.norm = nn.LayerNorm(width)

    def forward(self, x_BTF: Tensor, mask_BT: Tensor | None = None) -> Tensor:
        """(B, T, F) -> (B, U, C)."""
        for number, layer in enumerate(self.layers):
            x_BTF, mask_BT = layer(F.gelu(x_BTF, approximate="tanh") if number else x_BTF, mask_BT)
        out: Tensor = self.norm(x_BTF)
        return out


def _primes(number: int) -> list[int]:
    """The prime factors of a number, in ascending order."""
    for factor in range(2, number + 1):
        if number % factor == 0:
            return [factor, *_primes(number // factor)]
    return []


@dataclass
class StreamState:
    """The feature frames of a stream that later output frames depend on."""

    mean: RunningMean
    kept_BTF: Tensor
    """Normalised frames from index `first` on."""
    first: int = 0
    done: int = 0
    """Number of output frames returned so far."""

    @property
    def end(self) -> int:
        """Number of feature frames so far."""
        return self.first + self.kept_BTF.shape[1]


class FeatureStream:
    """Normalisation and subsampling in blocks, with the same result as for the whole."""

    def __init__(self, normalisation: FeatureNormalisation, front_end: FrontEnd) -> None:
        self.normalisation = normalisation
        self.front_end = front_end

    def initial_state(self, x_BTF: Tensor) -> StreamState:
        """The initial state, for features with the shape, dtype and device of `x_BTF`."""
        return StreamState(self.normalisation.initial_state(x_BTF), x_BTF[:, :0])

    def step(self, x_BTF: Tensor, state: StreamState, last: bool = False) -> Tensor:
        """The output frames (B, U', C) completed by feature frames (B, T, F); updates `state` in place.

        `last`: no frames follow, so incomplete output frames are returned too.
        """
        front_end = self.front_end
        normalised_BTF = self.normalisation.step(x_BTF, state.mean)
        state.kept_BTF = torch.cat([state.kept_BTF, normalised_BTF], dim=1)
        end = state.end
        until = -(-end // front_end.stride) if last else max(0, (end - 1 - front_end.right) // front_end.stride + 1)
        if until <= state.done:
            return x_BTF.new_zeros(len(x_BTF), 0, front_end.width)
        out_BUC: Tensor = front_end(state.kept_BTF)
        offset = state.first // front_end.stride
        out_BUC = out_BUC[:, state.done - offset : until - offset]
        state.done = until
        first = max(state.first, min(end, until * front_end.stride) - front_end.left)
        first -= first % front_end.stride  # a multiple of the stride, so that output frames stay aligned
        state.kept_BTF = state.kept_BTF[:, first - state.first :]
        state.first = first
        return out_BUC
