"""Short-time Fourier transform and its inverse, exportable to ONNX.

Shapes: B batch, N samples, T = 1 + N / hop frames (centred, zero-padded), K = n_fft / 2 + 1 bins.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class ShortTimeFourier(nn.Module):
    """Hann-windowed transform and its inverse. Spectra are (B, T, 2K): real parts, then imaginary parts."""

    window: Tensor
    envelope: Tensor

    def __init__(self, n_fft: int, hop_length: int) -> None:
        super().__init__()
        self.n_fft, self.hop_length = n_fft, hop_length
        window = torch.hann_window(n_fft)
        self.register_buffer("window", window, persistent=False)
        self.as_products = False
        """For export: multiply by the Fourier matrix, which every runtime can, instead of an FFT."""

    @property
    def bins(self) -> int:
        """Number of bins, K."""
        return self.n_fft // 2 + 1

    def forward(self, samples_BN: Tensor) -> Tensor:
        """(B, N) -> (B, T, 2K)."""
        half = self.n_fft // 2
        padded_BN = F.pad(samples_BN, (half, half))
        if self.as_products:
            analysis_KN = (_fourier(self.n_fft).to(samples_BN) * self.window)[:, None]
            spectrum: Tensor = F.conv1d(padded_BN[:, None], analysis_KN, stride=self.hop_length)
            return spectrum.transpose(1, 2)
        frames_BTN = padded_BN.unfold(1, self.n_fft, self.hop_length) * self.window
        spectrum_BTK = torch.fft.rfft(frames_BTN)
        return torch.cat([spectrum_BTK.real, spectrum_BTK.imag], dim=-1)

    def inverse(self, spectrum_BTC: Tensor) -> Tensor:
        """(B, T, 2K) -> (B, (T - 1) * hop), by overlap-add, normalised by the sum of squared windows."""
        if self.as_products:
            synthesis = (_inverse_fourier(self.n_fft).to(spectrum_BTC) * self.window)[:, None]
            summed_BN = F.conv_transpose1d(spectrum_BTC.transpose(1, 2), synthesis, stride=self.hop_length)[:, 0]
        else:
            real_BTK, imaginary_BTK = spectrum_BTC.float().chunk(2, dim=-1)
            frames_BTN = torch.fft.irfft(torch.complex(real_BTK, imaginary_BTK), self.n_fft) * self.window
            summed_BN = self._overlap_add(frames_BTN)
        frames = spectrum_BTC.shape[1]
        half = self.n_fft // 2
        weight_N = self._weight(frames).to(summed_BN)
        length = (frames - 1) * self.hop_length
        return summed_BN[:, half : half + length] / weight_N[half : half + length]

    def _overlap_add(self, frames_BTN: Tensor) -> Tensor:
        length = self.n_fft + (frames_BTN.shape[1] - 1) * self.hop_length
        folded = F.fold(frames_BTN.transpose(1, 2), (1, length), (1, self.n_fft), stride=(1, self.hop_length))
        return folded[:, 0, 0]

    def _weight(self, frames: int) -> Tensor:
        squares = self.window.square()[None, None].expand(1, frames, -1)
        if self.as_products:
            ones = torch.ones(1, 1, frames, dtype=self.window.dtype, device=self.window.device)
            summed = F.conv_transpose1d(ones, self.window.square()[None, None], stride=self.hop_length)[0, 0]
        else:
            summed = self._overlap_add(squares)[0]
        return summed.clamp_min(1e-8)


def _angles(n_fft: int) -> Tensor:
    """(K, n_fft) angles, from integers below n_fft so that they are exact."""
    bins = torch.arange(n_fft // 2 + 1)[:, None]
    return (2.0 * math.pi / n_fft) * ((bins * torch.arange(n_fft)) % n_fft).double()


def _fourier(n_fft: int) -> Tensor:
    """(2K, n_fft): the matrix of the real transform."""
    angles = _angles(n_fft)
    return torch.cat([angles.cos(), -angles.sin()])


def _inverse_fourier(n_fft: int) -> Tensor:
    """(2K, n_fft): the transposed matrix of its inverse."""
    angles = _angles(n_fft)
    twice = torch.full((n_fft // 2 + 1, 1), 2.0 / n_fft, dtype=torch.float64)
    twice[0] = twice[-1] = 1.0 / n_fft
    return torch.cat([twice * angles.cos(), -twice * angles.sin()])
