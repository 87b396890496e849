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


class SpectrogramDiscriminator(nn.Module):
    """Convolutions over a complex spectrogram (Défossez et al. 2022, "High fidelity neural audio compression",
    section 3.4), with magnitudes compressed to the power 0.3 so that quiet bins matter."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        sizes = [(2, channels, 3), (channels, 2 * channels, 3), (2 * channels, 2 * channels, 2)]
        self.layers = nn.ModuleList(
            nn.utils.parametrizations.weight_norm(nn.Conv2d(into, out, (3, 9), stride=(1, stride), padding=(1, 4)))
            for into, out, stride in sizes
        )
        self.last = nn.utils.parametrizations.weight_norm(nn.Conv2d(2 * channels, 1, (3, 3), padding=1))

    def forward(self, spectrum_BTC: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Spectrum (B, T, 2K) -> scores (B, T, K'), high for natural speech, and each layer's output (B, C, T, K')."""
        real_BTK, imaginary_BTK = spectrum_BTC.chunk(2, dim=-1)
        size_BTK = (real_BTK.square() + imaginary_BTK.square() + _SMALL).pow(0.5 * (_COMPRESSION - 1.0))
        hidden = torch.stack([real_BTK * size_BTK, imaginary_BTK * size_BTK], dim=1)
        outputs = []
        for layer in self.layers:
            hidden = F.leaky_relu(layer(hidden), 0.1)
            outputs.append(hidden)
        return self.last(hidden)[:, 0], outputs


class Discriminators(nn.Module):
    """One spectrogram discriminator per resolution (n_fft, hop)."""

    def __init__(self, resolutions: Sequence[tuple[int, int]], channels: int) -> None:
        super().__init__()
        self.members = nn.ModuleList(SpectrogramDiscriminator(channels) for _ in resolutions)

    def forward(self, spectra: Sequence[Tensor]) -> list[tuple[Tensor, list[Tensor]]]:
        """Scores and layer outputs of each discriminator; `spectra`: a (B, T, 2K) per resolution."""
        return [member(spectrum) for member, spectrum in zip(self.members, spectra, strict=True)]


class MelDiscriminator(nn.Module):
    """Convolutions over a mel spectrogram and its condition (Yang et al. 2021, "GANSpeech", section 2.2)."""

    def __init__(self, n_mels: int, condition: int, channels: int) -> None:
        super().__init__()
        self.condition = nn.Linear(condition, n_mels)
        sizes = [(2, channels, (1, 2)), (channels, 2 * channels, (2, 2)), (2 * channels, 2 * channels, (2, 2))]
        self.layers = nn.ModuleList(
            nn.utils.parametrizations.weight_norm(nn.Conv2d(into, out, (5, 5), stride=stride, padding=2))
            for into, out, stride in sizes
        )
        self.last = nn.utils.parametrizations.weight_norm(nn.Conv2d(2 * channels, 1, (3, 3), padding=1))

    def forward(self, mel_BTM: Tensor, condition_BTD: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Mel (B, T, M), from 0 to 1, and condition (B, T, D) -> scores (B, T', M'), high for natural
        speech, and each layer's output (B, C, T', M')."""
        standard_BTM = (mel_BTM - _MEAN_LEVEL) / _DEVIATION
        hidden = torch.stack([standard_BTM, self.condition(condition_BTD)], dim=1)
        outputs = []
        for layer in self.layers:
            hidden = F.leaky_relu(layer(hidden), 0.1)
            outputs.append(hidden)
        return self.last(hidden)[:, 0], outputs


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
