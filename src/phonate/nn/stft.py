"""Short-time Fourier transform and its inverse, exportable to ONNX.

Shapes: B batch, N samples, T = 1 + N / hop frames (centred, zero-padded), K = n_fft / 2 + 1 bins.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class ShortTimeFourier(nn.Module):
    """Hann-windowed transform and its inverse. Spectra are (B, T, 2K): real parts, then imaginary parts."""

    window: Tensor
    cosine_N: Tensor
    sine_N: Tensor

    def __init__(self, n_fft: int, hop_length: int) -> None:
        super().__init__()
        self.n_fft, self.hop_length = n_fft, hop_length
        window = torch.hann_window(n_fft)
        self.register_buffer("window", window, persistent=False)
        self.as_products = False

    def use_products(self) -> None:
        """From now on multiply by the Fourier matrix, which every runtime can, instead of an FFT: for export.

        The matrix is read from one turn of the cosine and the sine, computed here in float64: runtimes have these
        functions in float32 alone.
        """
        angles_N = 2.0 * math.pi / self.n_fft * torch.arange(self.n_fft, dtype=torch.float64)
        self.register_buffer("cosine_N", angles_N.cos().float(), persistent=False)
        self.register_buffer("sine_N", angles_N.sin().float(), persistent=False)
        self.as_products = True

    @property
    def bins(self) -> int:
        """Number of bins, K."""
        return self.n_fft // 2 + 1

    def forward(self, samples_BN: Tensor) -> Tensor:
        """(B, N) -> (B, T, 2K)."""
        half = self.n_fft // 2
        return self._of_padded(F.pad(samples_BN, (half, half)))

    def _of_padded(self, padded_BN: Tensor) -> Tensor:
        """Spectra of the windows that fit into (B, N)."""
        if self.as_products:
            analysis_KN = (self._matrix() * self.window)[:, None]
            spectrum: Tensor = F.conv1d(padded_BN[:, None], analysis_KN, stride=self.hop_length)
            return spectrum.transpose(1, 2)
        frames_BTN = padded_BN.unfold(1, self.n_fft, self.hop_length) * self.window
        spectrum_BTK = torch.fft.rfft(frames_BTN)
        return torch.cat([spectrum_BTK.real, spectrum_BTK.imag], dim=-1)

    def inverse(self, spectrum_BTC: Tensor) -> Tensor:
        """(B, T, 2K) -> (B, (T - 1) * hop), by overlap-add, normalised by the sum of squared windows."""
        if self.as_products:
            share_K1 = torch.full((self.bins, 1), 2.0 / self.n_fft)  # of the sum, both halves of the spectrum
            share_K1[0] = share_K1[-1] = 1.0 / self.n_fft
            synthesis_CN = torch.cat((share_K1, share_K1)) * self._matrix() * self.window
            spectrum_BCT = spectrum_BTC.transpose(1, 2)
            summed_BN = F.conv_transpose1d(spectrum_BCT, synthesis_CN[:, None], stride=self.hop_length)[:, 0]
        else:
            summed_BN = self._summed(spectrum_BTC)
        frames = spectrum_BTC.shape[1]
        half = self.n_fft // 2
        weight_N = self._weight(frames).to(summed_BN)
        length = (frames - 1) * self.hop_length
        return summed_BN[:, half : half + length] / weight_N[half : half + length]

    def _matrix(self) -> Tensor:
        """(2K, n_fft): the real transform. Its transpose is the inverse but for the share of each bin."""
        turns_KN = torch.arange(self.bins)[:, None] * torch.arange(self.n_fft) % self.n_fft
        return torch.cat((self.cosine_N[turns_KN], -self.sine_N[turns_KN]))

    def _summed(self, spectrum_BTC: Tensor) -> Tensor:
        """(B, T, 2K) -> (B, (T - 1) * hop + n_fft): the windowed frames, added where they overlap."""
        real_BTK, imaginary_BTK = spectrum_BTC.float().chunk(2, dim=-1)
        return self._overlap_add(torch.fft.irfft(torch.complex(real_BTK, imaginary_BTK), self.n_fft) * self.window)

    def _overlap_add(self, frames_BTN: Tensor) -> Tensor:
        """(B, T, n_fft) -> (B, (T - 1) * hop + n_fft). Adds blocks of a hop: a fifteenth of the time of `F.fold`."""
        frames, hop = frames_BTN.shape[1], self.hop_length
        blocks = -(-self.n_fft // hop)
        padded_BTN = F.pad(frames_BTN, (0, blocks * hop - self.n_fft))
        parts_BTRH = padded_BTN.reshape(len(padded_BTN), frames, blocks, hop)
        moved = [F.pad(parts_BTRH[:, :, at], (0, 0, at, blocks - 1 - at)) for at in range(blocks)]
        return functools.reduce(torch.add, moved).flatten(1)[:, : self.n_fft + (frames - 1) * hop]

    def _weight(self, frames: int) -> Tensor:
        squares = self.window.square()[None, None].expand(1, frames, -1)
        if self.as_products:
            ones = torch.ones(1, 1, frames, dtype=self.window.dtype, device=self.window.device)
            summed = F.conv_transpose1d(ones, self.window.square()[None, None], stride=self.hop_length)[0, 0]
        else:
            summed = self._overlap_add(squares)[0]
        return summed.clamp_min(1e-8)


class AnalysisStream:
    """`ShortTimeFourier.forward` for samples that come one after the other."""

    def __init__(self, fourier: ShortTimeFourier, batch: int) -> None:
        self._fourier = fourier
        self._held_BN = fourier.window.new_zeros(batch, fourier.n_fft // 2)

    def push(self, samples_BN: Tensor) -> Tensor:
        """The spectra (B, T, 2K), T may be 0, that the next samples (B, N) complete."""
        held_BN, fourier = torch.cat((self._held_BN, samples_BN), dim=1), self._fourier
        count = max(0, (held_BN.shape[1] - fourier.n_fft) // fourier.hop_length + 1)
        self._held_BN = held_BN[:, count * fourier.hop_length :]
        if count == 0:
            return held_BN.new_zeros(len(held_BN), 0, 2 * fourier.bins)
        return fourier._of_padded(held_BN[:, : fourier.n_fft + (count - 1) * fourier.hop_length])

    def finish(self) -> Tensor:
        """The spectra of the last frames, behind which there is silence."""
        return self.push(self._held_BN.new_zeros(len(self._held_BN), self._fourier.n_fft // 2))


class SynthesisStream:
    """`ShortTimeFourier.inverse` for frames that come one after the other. Frames must overlap by half or more."""

    def __init__(self, fourier: ShortTimeFourier, batch: int) -> None:
        if fourier.n_fft < 2 * fourier.hop_length:
            raise ValueError(f"frames of {fourier.n_fft} samples overlap too little at a hop of {fourier.hop_length}")
        self._fourier = fourier
        overlap = fourier.n_fft - fourier.hop_length
        self._summed_BN = fourier.window.new_zeros(batch, overlap)
        self._weight_N = fourier.window.new_zeros(overlap)
        self._dropped = fourier.n_fft // 2
        """Samples before the first frame's centre that are still to be left out."""

    def push(self, spectrum_BTC: Tensor) -> Tensor:
        """The samples (B, N), N may be 0, to which no frame after the next ones (B, T, 2K) adds."""
        frames, fourier = spectrum_BTC.shape[1], self._fourier
        if frames == 0:
            return self._summed_BN[:, :0]
        overlap, ready = self._summed_BN.shape[1], frames * fourier.hop_length
        squares_1TN = fourier.window.square()[None, None].expand(1, frames, -1)
        summed_BN = fourier._summed(spectrum_BTC)
        weight_N = fourier._overlap_add(squares_1TN)[0]
        summed_BN[:, :overlap] += self._summed_BN
        weight_N[:overlap] += self._weight_N
        self._summed_BN, self._weight_N = summed_BN[:, ready:], weight_N[ready:]
        return self._heard(summed_BN[:, :ready], weight_N[:ready])

    def finish(self) -> Tensor:
        """The samples (B, N) up to the last frame's centre."""
        rest = self._fourier.n_fft // 2 - self._fourier.hop_length
        return self._heard(self._summed_BN[:, :rest], self._weight_N[:rest])

    def _heard(self, summed_BN: Tensor, weight_N: Tensor) -> Tensor:
        dropped = min(self._dropped, len(weight_N))
        self._dropped -= dropped
        return summed_BN[:, dropped:] / weight_N[dropped:].clamp_min(1e-8)
