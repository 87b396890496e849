"""Speaker segmentation from the waveform: SincNet filters, convolutions, and a bidirectional LSTM.

The architecture of Bredin and Laurent 2021, "End-to-end speaker segmentation for overlap-aware resegmentation"; SincNet
is of Ravanelli and Bengio 2018, "Speaker Recognition from Raw Waveform with SincNet".

Shapes: B items, T frames of HOP samples, N samples, C channels, L positions, D width.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SAMPLE_RATE = 16_000
"""Hz."""
HOP = 270
"""Samples per frame: the strides of all layers together."""
BEFORE, AFTER = 360, 361
"""Samples before the first frame and after the last one that the layers need, so that every frame is centred."""
_FILTERS, _TAPS, _STRIDE = 80, 251, 10
_CHANNELS, _KERNEL, _POOL = 60, 5, 3
_EPSILON = 1e-5
_LOWEST = 30.0


def normalised(x_BCL: Tensor, lengths_B: Tensor) -> Tensor:
    """(B, C, L) with `lengths_B` positions -> the same with mean 0 and variance 1 of each channel of each item over its
    own positions, and zeros beyond them."""
    mask_B1L = (torch.arange(x_BCL.shape[2], device=x_BCL.device) < lengths_B[:, None])[:, None]
    count_B11 = lengths_B.clamp_min(1)[:, None, None]
    centred_BCL = (x_BCL - x_BCL.where(mask_B1L, 0).sum(2, keepdim=True) / count_B11).where(mask_B1L, 0)
    variance_BC1 = centred_BCL.square().sum(2, keepdim=True) / count_B11
    return centred_BCL / (variance_BC1 + _EPSILON).sqrt()


class ItemNorm(nn.Module):
    """Instance norm over each item's own positions, then scale and shift."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x_BCL: Tensor, lengths_B: Tensor) -> Tensor:
        """(B, C, L) with `lengths_B` positions -> (B, C, L); any values beyond them."""
        return normalised(x_BCL, lengths_B) * self.weight[:, None] + self.bias[:, None]


def band_pass_filters(count: int = _FILTERS, taps: int = _TAPS) -> Tensor:
    """(count, 1, taps): pairs of windowed band-pass filters in phase and in quadrature, of bands equally wide in mel.

    A band-pass is the difference of two low-passes, that is of two sinc functions."""
    highest = 2595.0 * math.log10(1.0 + SAMPLE_RATE / 2 / 700.0)
    mel_E = torch.linspace(2595.0 * math.log10(1.0 + _LOWEST / 700.0), highest, count // 2 + 1, dtype=torch.float64)
    hertz_E = 700.0 * (10.0 ** (mel_E / 2595.0) - 1.0)
    low_F1, high_F1 = hertz_E[:-1, None], hertz_E[1:, None]
    seconds_N = (torch.arange(taps, dtype=torch.float64) - taps // 2) / SAMPLE_RATE
    centre_F1, width_F1 = (low_F1 + high_F1) / 2, high_F1 - low_F1
    envelope_FN = torch.sinc(width_F1 * seconds_N) * torch.hamming_window(taps, periodic=False, dtype=torch.float64)
    phase_FN = 2.0 * math.pi * centre_F1 * seconds_N
    return torch.cat([envelope_FN * phase_FN.cos(), envelope_FN * phase_FN.sin()])[:, None].float()


class SincNet(nn.Module):
    """Waveform -> frames of 60 values, one for every HOP samples.

    The filters and what is added to their outputs are fixed: those that a checkpoint brings, or else bands that are
    equally wide in mel, and nothing.
    """

    width = _CHANNELS

    def __init__(self) -> None:
        super().__init__()
        self.filters: Tensor
        self.register_buffer("filters", band_pass_filters())
        self.shifts: Tensor
        self.register_buffer("shifts", torch.zeros(_FILTERS))
        self.norms = nn.ModuleList([ItemNorm(_FILTERS), ItemNorm(_CHANNELS), ItemNorm(_CHANNELS)])
        self.convolutions = nn.ModuleList(
            [nn.Conv1d(_FILTERS, _CHANNELS, _KERNEL), nn.Conv1d(_CHANNELS, _CHANNELS, _KERNEL)]
        )

    def forward(self, samples_BN: Tensor, lengths_B: Tensor) -> Tensor:
        """Samples (B, T x HOP) of items with `lengths_B` frames -> (B, T, 60)."""
        samples_B = lengths_B * HOP
        padded_B1N = F.pad(normalised(samples_BN[:, None], samples_B), (BEFORE, AFTER))
        return self.filtered(padded_B1N, samples_B + BEFORE + AFTER)

    def filtered(self, waveform_B1N: Tensor, lengths_B: Tensor) -> Tensor:
        """A normalised waveform (B, 1, N) of `lengths_B` samples -> (B, T, 60)."""
        x_BCL = F.conv1d(waveform_B1N, self.filters, self.shifts, stride=_STRIDE).abs()
        lengths_B = (lengths_B - _TAPS) // _STRIDE + 1
        for norm, convolution in zip(self.norms, [*self.convolutions, None], strict=True):
            lengths_B = lengths_B // _POOL
            x_BCL = F.leaky_relu(norm(F.max_pool1d(x_BCL, _POOL), lengths_B))
            if convolution is not None:
                x_BCL = convolution(x_BCL)
                lengths_B = lengths_B - _KERNEL + 1
        return x_BCL.transpose(1, 2)


class BidirectionalLSTM(nn.Module):
    """Layers of an LSTM in both directions and two linear layers: (B, T, features) -> (B, T, width).

    Args:
        features: Values of a frame.
        width: D, that of each direction and of the result.
        layers: Number of LSTM layers.
        dropout: Between them.
    """

    def __init__(self, features: int, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        between = dropout if layers > 1 else 0.0
        self.lstm = nn.LSTM(features, width, layers, batch_first=True, dropout=between, bidirectional=True)
        self.linear = nn.ModuleList([nn.Linear(2 * width, width), nn.Linear(width, width)])
        self.width = width

    def forward(self, x_BTC: Tensor, lengths_B: Tensor) -> Tensor:
        """Frames (B, T, features) of items with `lengths_B` frames -> (B, T, width); any values in padding."""
        packed = nn.utils.rnn.pack_padded_sequence(x_BTC, lengths_B.cpu(), batch_first=True, enforce_sorted=False)
        x_BTD, _ = nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=x_BTC.shape[1])
        for linear in self.linear:
            x_BTD = F.leaky_relu(linear(x_BTD))
        return x_BTD
