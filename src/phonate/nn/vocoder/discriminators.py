"""Discriminators of natural and generated speech, at several resolutions of time and frequency.

Shapes: B batch, N samples, T frames, K bins, C channels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phonate.nn.stft import ShortTimeFourier

_COMPRESSION = 0.3
_SMALL = 1e-5
_MEAN_LEVEL, _DEVIATION = 0.35, 0.2
"""Of mel features from 0 to 1. Without standardisation, a discriminator stays at chance for a thousand steps."""


Judgement = tuple[Tensor, list[Tensor]]
"""Scores (B, T', K'), high for natural speech, and each layer's output (B, C, T', K')."""


class _Convolutions(nn.Module):
    """Convolutions with leaky ReLUs, and one that gives scores."""

    layers: nn.ModuleList
    last: nn.Module

    def _build(self, channels: int, kernel: tuple[int, int], strides: Sequence[tuple[int, int]]) -> None:
        """Three layers of these strides, from 2 channels to twice `channels`."""
        normed, padding = nn.utils.parametrizations.weight_norm, (kernel[0] // 2, kernel[1] // 2)
        sizes = zip((2, channels, 2 * channels), (channels, 2 * channels, 2 * channels), strides, strict=True)
        self.layers = nn.ModuleList(
            normed(nn.Conv2d(into, out, kernel, stride=stride, padding=padding)) for into, out, stride in sizes
        )
        self.last = normed(nn.Conv2d(2 * channels, 1, (3, 3), padding=1))

    def judged(self, hidden: Tensor) -> Judgement:
        """Of two channels (B, 2, T, K)."""
        outputs = []
        for layer in self.layers:
            hidden = F.leaky_relu(layer(hidden), 0.1)
            outputs.append(hidden)
        return self.last(hidden)[:, 0], outputs


class SpectrogramDiscriminator(_Convolutions):
    """Convolutions over a complex spectrogram (Défossez et al. 2022, "High fidelity neural audio compression",
    section 3.4), with magnitudes compressed to the power 0.3 so that quiet bins matter."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self._build(channels, (3, 9), ((1, 3), (1, 3), (1, 2)))

    def forward(self, spectrum_BTC: Tensor) -> Judgement:
        """Of a spectrum (B, T, 2K)."""
        real_BTK, imaginary_BTK = spectrum_BTC.chunk(2, dim=-1)
        size_BTK = (real_BTK.square() + imaginary_BTK.square() + _SMALL).pow(0.5 * (_COMPRESSION - 1.0))
        return self.judged(torch.stack([real_BTK * size_BTK, imaginary_BTK * size_BTK], dim=1))


class Discriminators(nn.Module):
    """One spectrogram discriminator per resolution (n_fft, hop)."""

    def __init__(self, resolutions: Sequence[tuple[int, int]], channels: int) -> None:
        super().__init__()
        self.members = nn.ModuleList(SpectrogramDiscriminator(channels) for _ in resolutions)

    def forward(self, spectra: Sequence[Tensor]) -> list[Judgement]:
        """Each discriminator's; `spectra`: a (B, T, 2K) per resolution."""
        return [member(spectrum) for member, spectrum in zip(self.members, spectra, strict=True)]


class MelDiscriminator(_Convolutions):
    """Convolutions over a mel spectrogram and its condition (Yang et al. 2021, "GANSpeech", section 2.2)."""

    def __init__(self, n_mels: int, condition: int, channels: int) -> None:
        super().__init__()
        self.condition = nn.Linear(condition, n_mels)
        self._build(channels, (5, 5), ((1, 2), (2, 2), (2, 2)))

    def forward(self, mel_BTM: Tensor, cond_BTD: Tensor) -> list[Judgement]:
        """Of a mel (B, T, M), from 0 to 1, and its condition (B, T, D); the only one."""
        standard_BTM = (mel_BTM - _MEAN_LEVEL) / _DEVIATION
        return [self.judged(torch.stack([standard_BTM, self.condition(cond_BTD)], dim=1))]


class MultiResolutionFourier(nn.Module):
    """Spectra of a waveform at several resolutions (n_fft, hop)."""

    def __init__(self, resolutions: Sequence[tuple[int, int]]) -> None:
        super().__init__()
        self.transforms = nn.ModuleList(ShortTimeFourier(n_fft, hop) for n_fft, hop in resolutions)

    def forward(self, samples_BN: Tensor) -> list[Tensor]:
        """(B, N) -> one (B, T, 2K) per resolution."""
        return [transform(samples_BN) for transform in self.transforms]


def magnitudes(spectrum_BTC: Tensor) -> Tensor:
    """Magnitudes of spectra: (B, T, 2K) -> (B, T, K)."""
    real_BTK, imaginary_BTK = spectrum_BTC.chunk(2, dim=-1)
    return (real_BTK.square() + imaginary_BTK.square() + 1e-12).sqrt()
