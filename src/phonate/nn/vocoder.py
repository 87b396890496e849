"""The vocoder: mel spectrograms to waveforms in one pass, from a pulse train and noise; for frames that come one after
the other, too; and the discriminators of natural and generated speech.

A source of pulses and noise (as in Wang et al. 2019, "Neural source-filter waveform models") is filtered in the Fourier
domain by gains and phases that a ConvNeXt network predicts from the mel, and transformed back (as in Siuzdak 2023,
"Vocos"). The pulses provide phases that are coherent from frame to frame, which are hardest to learn from a mel. What
remains is spectral detail, the share of noise in each bin and its envelope within a frame, and phase offsets. When it
renders, the levels of the waveform's mel bands are corrected to those of the mel.

Shapes: B batch, T = 1 + N / hop frames (centred, zero-padded), M mel bands, D width, K = n_fft / 2 + 1 bins,
C channels, N = (T - 1) * hop samples.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from phonate.audio.processor import AudioProcessor
from phonate.nn import arrays, bands
from phonate.nn.arrays import SHAPE_BANDS, SHAPE_WAVES, FloatArray
from phonate.nn.convolution import ConvNeXt, convolution, convolved, limited
from phonate.nn.sequences import on_processor

# ------------------ The short-time Fourier transform and its inverse, in operations that ONNX exports


class _Transform(torch.autograd.Function):
    """`ShortTimeFourier.transformed`. Its backward pass is an FFT of reals; torch's own is one of complex values."""

    @staticmethod
    def forward(ctx: Any, padded_BN: Tensor, fourier: ShortTimeFourier) -> Tensor:
        ctx.fourier, ctx.samples = fourier, padded_BN.shape[1]
        return fourier.transformed(padded_BN)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BTC: Tensor) -> tuple[Tensor, None]:
        summed_BN = ctx.fourier.transposed(grad_BTC)
        return F.pad(summed_BN, (0, ctx.samples - summed_BN.shape[1])), None


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
        """From now on multiply by Fourier matrices, which every runtime can, instead of an FFT: for export.

        The matrices are read from one turn of the cosine and the sine, computed here in float64: runtimes have these
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
            return self._product(padded_BN)
        if on_processor(padded_BN) and torch.is_grad_enabled() and padded_BN.requires_grad:
            spectra: Tensor = _Transform.apply(padded_BN, self)  # type: ignore[no-untyped-call]
            return spectra
        return self.transformed(padded_BN)

    def transformed(self, padded_BN: Tensor) -> Tensor:
        """`_of_padded` by an FFT."""
        spectrum_BTK = torch.fft.rfft(padded_BN.unfold(1, self.n_fft, self.hop_length) * self.window)
        return torch.cat([spectrum_BTK.real, spectrum_BTK.imag], dim=-1)

    def transposed(self, spectrum_BTC: Tensor) -> Tensor:
        """The transpose of `transformed`, and so its backward pass: (B, T, 2K) -> (B, (T - 1) * hop + n_fft)."""
        parts_BTKC = spectrum_BTC.reshape(*spectrum_BTC.shape[:2], 2, -1).transpose(2, 3).contiguous()
        parts_BTKC[:, :, :: self.bins - 1] *= 2.0  # an inverse counts bins but the first and the last twice
        frames_BTN = torch.fft.irfft(torch.view_as_complex(parts_BTKC), self.n_fft, norm="forward")
        return self._overlap_add(frames_BTN * (0.5 * self.window), self.hop_length)

    def inverse(self, spectrum_BTC: Tensor) -> Tensor:
        """(B, T, 2K) -> (B, (T - 1) * hop), by overlap-add, normalised by the sum of squared windows."""
        summed_BN = self._summed(spectrum_BTC)
        frames = spectrum_BTC.shape[1]
        half = self.n_fft // 2
        weight_N = self._weight(frames).to(summed_BN)
        length = (frames - 1) * self.hop_length
        return summed_BN[:, half : half + length] / weight_N[half : half + length]

    @property
    def _by_quarters(self) -> bool:
        return self.n_fft % 4 == 0 and self.hop_length % 2 == 0

    def _tables(self, samples: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the first samples of a frame (rows), times the window, for each bin (columns)."""
        turns_SK = torch.arange(samples)[:, None] * torch.arange(self.bins) % self.n_fft
        window_S1 = self.window[:samples, None]
        return window_S1 * self.cosine_N[turns_SK], window_S1 * self.sine_N[turns_SK]

    def _matrices(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Cosines of even and odd samples, and sines of both, for the first halves of a frame and of its bins.

        The second half of a frame has the same backwards, the sines negative. So has the second half of the bins, there
        with cosines of odd and sines of even samples negative. Where halves are added and subtracted beside the
        products, a quarter of these remains."""
        cosine_KK, sine_KK = self._tables(self.bins)
        quarter = self.n_fft // 4
        cosines = cosine_KK[::2, : quarter + 1], cosine_KK[1::2, :quarter]
        return (*cosines, sine_KK[2:-1:2, 1:quarter], sine_KK[1::2, 1 : quarter + 1])

    def _frames(self, padded_BN: Tensor, size: int, hop: int) -> Tensor:
        """(B, N) -> (B, T, size), of blocks of a hop. `unfold` becomes a gather of single samples where it is
        exported."""
        blocks = -(-size // hop)
        frames = (padded_BN.shape[1] - size) // hop + 1
        whole = (frames - 1 + blocks) * hop
        parts_BRH = F.pad(padded_BN, (0, blocks * hop - size))[:, :whole].reshape(len(padded_BN), -1, hop)
        moved = [parts_BRH[:, at : at + frames] for at in range(blocks)]
        return torch.cat(moved, dim=-1)[..., :size]

    def _product(self, padded_BN: Tensor) -> Tensor:
        """`_of_padded` by products."""
        if not self._by_quarters:
            frames_BTN = self._frames(padded_BN, self.n_fft, self.hop_length)
            cosine_NK, sine_NK = self._tables(self.n_fft)
            return torch.cat((frames_BTN @ cosine_NK, -frames_BTN @ sine_NK), dim=-1)
        quarter = self.n_fft // 4
        cosine_even, cosine_odd, sine_even, sine_odd = self._matrices()
        pairs = padded_BN.shape[1] // 2  # a last sample without another one is in no frame
        even_BTH, odd_BTH = (
            self._frames(padded_BN[:, start : 2 * pairs : 2], 2 * quarter, self.hop_length // 2) for start in range(2)
        )
        later_even_BTS, later_odd_BTQ = even_BTH[..., quarter + 1 :].flip(-1), odd_BTH[..., quarter:].flip(-1)
        first_even_BTS, first_odd_BTQ = even_BTH[..., 1:quarter], odd_BTH[..., :quarter]
        ends = even_BTH[..., :1], even_BTH[..., quarter : quarter + 1]
        real_BTK = torch.cat((ends[0], first_even_BTS + later_even_BTS, ends[1]), dim=-1) @ cosine_even
        of_odd_BTQ = (first_odd_BTQ + later_odd_BTQ) @ cosine_odd
        imaginary_BTQ = (later_odd_BTQ - first_odd_BTQ) @ sine_odd
        of_even_BTS = (later_even_BTS - first_even_BTS) @ sine_even
        of_even_BTQ, of_odd_BTS = real_BTK[..., :-1], imaginary_BTQ[..., :-1]
        zero_BT1 = torch.zeros_like(ends[0])
        return torch.cat(
            (
                *(of_even_BTQ + of_odd_BTQ, real_BTK[..., -1:], (of_even_BTQ - of_odd_BTQ).flip(-1)),
                *(zero_BT1, of_odd_BTS + of_even_BTS, imaginary_BTQ[..., -1:], (of_odd_BTS - of_even_BTS).flip(-1)),
                zero_BT1,
            ),
            dim=-1,
        )

    def _inverse_product(self, spectrum_BTC: Tensor) -> Tensor:
        """`_summed` by products."""
        real_BTK, imaginary_BTK = spectrum_BTC.chunk(2, dim=-1)
        if not self._by_quarters:
            share_K1 = torch.full((self.bins, 1), 2.0 / self.n_fft)  # of the sum, both halves of the spectrum
            share_K1[0] = share_K1[-1] = 1.0 / self.n_fft
            cosine_KN, sine_KN = (share_K1 * one_NK.T for one_NK in self._tables(self.n_fft))
            frames_BTN = real_BTK @ cosine_KN - imaginary_BTK @ sine_KN
            return self._overlap_add(frames_BTN, self.hop_length)
        quarter = self.n_fft // 4
        share_K1 = torch.full((quarter + 1, 1), 2.0 / self.n_fft)
        share_K1[0] = 1.0 / self.n_fft
        cosine_even, cosine_odd, sine_even, sine_odd = self._matrices()
        low_BTQ, high_BTQ = real_BTK[..., :quarter], real_BTK[..., quarter + 1 :].flip(-1)
        low_BTS, high_BTS = imaginary_BTK[..., 1:quarter], imaginary_BTK[..., quarter + 1 : -1].flip(-1)
        both_BTK = torch.cat((low_BTQ + high_BTQ, real_BTK[..., quarter : quarter + 1]), dim=-1)
        both_BTQ = torch.cat((low_BTS + high_BTS, imaginary_BTK[..., quarter : quarter + 1]), dim=-1)
        cosines_BTK = both_BTK @ (share_K1 * cosine_even.T)
        cosines_BTQ = (low_BTQ - high_BTQ) @ (share_K1[:-1] * cosine_odd.T)
        sines_BTS = (low_BTS - high_BTS) @ (share_K1[1:-1] * sine_even.T)
        sines_BTQ = both_BTQ @ (share_K1[1:] * sine_odd.T)
        middle_BTS = cosines_BTK[..., 1:-1]
        ends = cosines_BTK[..., :1], cosines_BTK[..., -1:]
        even_BTH = torch.cat((ends[0], middle_BTS - sines_BTS, ends[1], (middle_BTS + sines_BTS).flip(-1)), dim=-1)
        odd_BTH = torch.cat((cosines_BTQ - sines_BTQ, (cosines_BTQ + sines_BTQ).flip(-1)), dim=-1)
        summed = [self._overlap_add(one_BTH, self.hop_length // 2) for one_BTH in (even_BTH, odd_BTH)]
        return torch.stack(summed, dim=-1).flatten(-2)

    def _summed(self, spectrum_BTC: Tensor) -> Tensor:
        """(B, T, 2K) -> (B, (T - 1) * hop + n_fft): the windowed frames, added where they overlap."""
        if self.as_products:
            return self._inverse_product(spectrum_BTC)
        real_BTK, imaginary_BTK = spectrum_BTC.float().chunk(2, dim=-1)
        frames_BTN = torch.fft.irfft(torch.complex(real_BTK, imaginary_BTK), self.n_fft) * self.window
        return self._overlap_add(frames_BTN, self.hop_length)

    def _overlap_add(self, frames_BTN: Tensor, hop: int) -> Tensor:
        """(B, T, N) -> (B, (T - 1) * hop + N). Adds blocks of a hop: a fifteenth of the time of `F.fold`."""
        frames, size = frames_BTN.shape[1:]
        blocks = -(-size // hop)
        padded_BTN = F.pad(frames_BTN, (0, blocks * hop - size)) if size % hop else frames_BTN
        parts_BTRH = padded_BTN.reshape(len(padded_BTN), frames, blocks, hop)
        moved = [F.pad(parts_BTRH[:, :, at], (0, 0, at, blocks - 1 - at)) for at in range(blocks)]
        return functools.reduce(torch.add, moved).flatten(1)[:, : size + (frames - 1) * hop]

    def _weight(self, frames: int) -> Tensor:
        """Sums of squared windows ((T - 1) * hop + n_fft,): of each block of a hop, those of the frames over it."""
        hop, blocks = self.hop_length, -(-self.n_fft // self.hop_length)
        squares_AH = F.pad(self.window.square(), (0, blocks * hop - self.n_fft)).reshape(blocks, hop)
        over_T1 = self.window.new_ones(frames, 1)
        over_R1 = [F.pad(over_T1, (0, 0, at, blocks - 1 - at)) for at in range(blocks)]
        # no product of matrices, which autocast and TF32 would round
        summed_RH = functools.reduce(torch.add, map(torch.mul, over_R1, squares_AH))
        return summed_RH.flatten()[: self.n_fft + (frames - 1) * hop].clamp_min(1e-8)


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
        weight_N = fourier._overlap_add(squares_1TN, fourier.hop_length)[0]
        summed_BN[:, :overlap] += self._summed_BN
        weight_N[:overlap] += self._weight_N
        self._summed_BN, self._weight_N = summed_BN[:, ready:], weight_N[ready:]
        return self._without_start(summed_BN[:, :ready], weight_N[:ready])

    def finish(self) -> Tensor:
        """The samples (B, N) up to the last frame's centre."""
        rest = self._fourier.n_fft // 2 - self._fourier.hop_length
        return self._without_start(self._summed_BN[:, :rest], self._weight_N[:rest])

    def _without_start(self, summed_BN: Tensor, weight_N: Tensor) -> Tensor:
        dropped = min(self._dropped, len(weight_N))
        self._dropped -= dropped
        return summed_BN[:, dropped:] / weight_N[dropped:].clamp_min(1e-8)


# --------------- The excitation signal of a source-filter model: a pulse train at the pitch, and noise

_WINDOW_HOPS = 4


def pulses(f0_BT: Tensor, hop_length: int, sample_rate: int, phase_BT: Tensor | None = None) -> Tensor:
    """A pulse train (B, N) with power 1 where voiced, 0 elsewhere.

    All harmonics below half the sample rate have equal amplitude: Dirichlet's kernel,
    1 + 2 sum cos(h p) = sin((H + 1/2) p) / sin(p / 2).

    Args:
        f0_BT: Pitch in Hz, 0 where unvoiced.
        hop_length: Samples from frame to frame.
        sample_rate: In Hz.
        phase_BT: Cycles that are added at each frame, such as `phase_of` a recording; None: 0.
    """
    f0_BN = _interpolated(_filled(f0_BT), hop_length)
    cycles_BN = _cycles(f0_BN, sample_rate)
    if phase_BT is not None:
        cycles_BN = cycles_BN + _interpolated(phase_BT, hop_length).double()
    return _kernel(cycles_BN, f0_BN, _held(f0_BT > 0, hop_length), sample_rate)


def phase_of(waveform_BN: Tensor, f0_BT: Tensor, hop_length: int, sample_rate: int) -> Tensor:
    """Cycles (B, T), as `pulses` takes them, that put pulses in step with the fundamental of a recording.

    Out of step, spectra of a recording and of a copy have phases that nothing predicts, and a loss on them teaches
    nothing.

    Args:
        waveform_BN: The recording.
        f0_BT: Its pitch in Hz, 0 where unvoiced. What it lacks in precision, the phase makes up for.
        hop_length: Samples from frame to frame.
        sample_rate: In Hz.
    """
    angle_BN = 2.0 * math.pi * _cycles(_interpolated(_filled(f0_BT), hop_length), sample_rate).frac().float()
    window_N = torch.hann_window(_WINDOW_HOPS * hop_length, device=waveform_BN.device)
    half = len(window_N) // 2

    def level(part_BN: Tensor) -> Tensor:
        framed_BTN = F.pad(part_BN, (half, half)).unfold(1, len(window_N), hop_length)
        return (framed_BTN * window_N).sum(-1)

    cycles_BT = torch.atan2(-level(waveform_BN * angle_BN.sin()), level(waveform_BN * angle_BN.cos())) / (2.0 * math.pi)
    turns_BT = cycles_BT.diff(dim=1)
    return F.pad((turns_BT - turns_BT.round()).cumsum(1), (1, 0)) + cycles_BT[:, :1]


class PulseStream:
    """`pulses` of one item, for frames that come one after the other."""

    def __init__(self, hop_length: int, sample_rate: int) -> None:
        self._hop_length, self._sample_rate = hop_length, sample_rate
        self._f0_1T: Tensor | None = None  # the last frame
        self._filled_1T: Tensor | None = None  # the last frame, or the last voiced one before it
        self._cycles_1 = torch.zeros(1, dtype=torch.float64)

    def push(self, f0_1T: Tensor) -> Tensor:
        """The pulses (1, n) between the last frame and the next ones with F0 (1, T)."""
        filled_1T = _filled(f0_1T, self._filled_1T)
        if self._f0_1T is not None and self._filled_1T is not None:
            f0_1T = torch.cat((self._f0_1T, f0_1T), dim=1)
            filled_1T = torch.cat((self._filled_1T, filled_1T), dim=1)
        self._f0_1T, self._filled_1T = f0_1T[:, -1:], filled_1T[:, -1:]
        f0_1N = _interpolated(filled_1T, self._hop_length)
        cycles_1N = _cycles(f0_1N, self._sample_rate) + self._cycles_1.to(f0_1T.device)[:, None]
        if cycles_1N.shape[1]:
            self._cycles_1 = cycles_1N[:, -1] - torch.floor(cycles_1N[:, -1])
        return _kernel(cycles_1N, f0_1N, _held(f0_1T > 0, self._hop_length), self._sample_rate)


def _cycles(f0_BN: Tensor, sample_rate: int) -> Tensor:
    """The phase (B, N) in cycles, in double precision, counted from the first sample."""
    return torch.cumsum(f0_BN.double() / sample_rate, dim=1)


def _kernel(cycles_BN: Tensor, f0_BN: Tensor, voiced_BN: Tensor, sample_rate: int) -> Tensor:
    """Pulses (B, N) of the phase `cycles_BN`."""
    half_angle_BN = math.pi * (cycles_BN - torch.floor(cycles_BN)).to(f0_BN.dtype)
    harmonics_BN = torch.floor(0.5 * sample_rate / f0_BN.clamp_min(1.0))
    below_BN = torch.sin(half_angle_BN)
    near = below_BN.abs() < arrays.SMALLEST_SINE
    kernel_BN = torch.sin((2 * harmonics_BN + 1) * half_angle_BN) / torch.where(
        near, torch.ones_like(below_BN), below_BN
    )
    kernel_BN = torch.where(near, 2 * harmonics_BN + 1, kernel_BN) - 1
    return torch.where(voiced_BN, kernel_BN / (2 * harmonics_BN).clamp_min(1.0).sqrt(), torch.zeros_like(kernel_BN))


def _filled(f0_BT: Tensor, before_B1: Tensor | None = None) -> Tensor:
    """F0 (B, T) with unvoiced frames set to the last voiced pitch, so that the pitch does not rise from 0 Hz at the
    start of a vowel. Before the first voiced frame it is `before_B1`, or 100 Hz."""
    voiced_BT = f0_BT > 0
    heard_BT = torch.cumsum(voiced_BT.long(), dim=1)
    # pitches of the first voiced frame, the second, ...; unvoiced ones write 0 to position 0. ONNX has no cummax.
    pitches_BV = F.pad(torch.zeros_like(f0_BT), (0, 1)).scatter(1, heard_BT * voiced_BT, f0_BT * voiced_BT)
    held_BT = pitches_BV.gather(1, heard_BT)
    first_BT = torch.full_like(held_BT, 100.0) if before_B1 is None else before_B1.expand_as(held_BT)
    return torch.where(held_BT > 0, held_BT, first_BT)


def _interpolated(values_BT: Tensor, hop_length: int) -> Tensor:
    """Linear interpolation between frames: (B, T) -> (B, N)."""
    start, end = values_BT[:, :-1, None], values_BT[:, 1:, None]
    share_H = torch.arange(hop_length, device=values_BT.device, dtype=values_BT.dtype) / hop_length
    return (start + (end - start) * share_H).flatten(1)


def _held(flags_BT: Tensor, hop_length: int) -> Tensor:
    """Nearest-neighbour interpolation of flags: (B, T) -> (B, N)."""
    half = hop_length // 2
    repeated = flags_BT[:, :, None].expand(-1, -1, hop_length).flatten(1)
    return repeated[:, half : half + (flags_BT.shape[1] - 1) * hop_length]


def noise(like_BN: Tensor, table: Tensor, start_B: Tensor | None = None) -> Tensor:
    """White noise in the shape of `like_BN`, read from `table` (samples,), each item from its own `start_B`."""
    samples = like_BN.shape[1]
    if start_B is None:
        return table.repeat(samples // len(table) + 1)[:samples].expand_as(like_BN)
    positions = torch.arange(samples, device=like_BN.device)
    return F.embedding((positions[None] + start_B[:, None]) % len(table), table[:, None])[..., 0]


# --------------------------- The vocoder: mel spectrograms to waveforms in one pass of a small network


class Vocoder(nn.Module):
    """Mel (B, T, M), from 0 to 1, -> waveform (B, N) whose pre-emphasised form peaks at about 1.

    Args:
        filters: (M, K) mel filters, with which a first estimate of the bins is made from the mel.
        sample_rate: Of the waveform.
        hop_length: Samples from frame to frame.
        floor_db: The level of mel value 0, in dB relative to that of value 1.
        reference_db: The level of mel value 1, in dB relative to a magnitude of 1.
        preemphasis: Coefficient of the pre-emphasis of the mels.
        width: Width of the network.
        layers: Number of ConvNeXt blocks.
        lookahead: Frames of the mel after a frame that its filter depends on, 3 at most; None: as many as before it.
            With it the vocoder can run incrementally (`phonate.nn.vocoder`).
        postfilter: Share by which each band's level is moved away from the mean level of the bands around it. For
            inference: training would learn to undo it.
    """

    interpolation_MK: Tensor
    spread_MK: Tensor
    postfilter_MM: Tensor
    filters_KM: Tensor
    regions_RK: Tensor
    bands_KM: Tensor
    level_K: Tensor
    noise_table: Tensor

    def __init__(
        self,
        filters: npt.NDArray[np.float32],
        *,
        sample_rate: int,
        hop_length: int,
        floor_db: float = -100.0,
        reference_db: float = 0.0,
        preemphasis: float = 0.97,
        width: int = 192,
        layers: int = 6,
        lookahead: int | None = None,
        postfilter: float = 0.0,
    ) -> None:
        super().__init__()
        self.lookahead = lookahead
        n_mels, bins = filters.shape
        n_fft = 2 * (bins - 1)
        self.sample_rate, self.hop_length = sample_rate, hop_length
        self.floor_db, self.reference_db = floor_db, reference_db
        self.fourier = ShortTimeFourier(n_fft, hop_length)
        interpolation_MK = arrays.interpolation(filters)
        postfilter_MM = arrays.postfilter_matrix(n_mels, postfilter)
        filters_KM = np.ascontiguousarray((filters * arrays.emphasis(bins, preemphasis)).T, dtype=np.float32)
        self.register_buffer("interpolation_MK", torch.from_numpy(interpolation_MK), persistent=False)
        self.register_buffer("spread_MK", torch.from_numpy(postfilter_MM @ interpolation_MK), persistent=False)
        self.register_buffer("postfilter_MM", torch.from_numpy(postfilter_MM), persistent=False)
        self.register_buffer("filters_KM", torch.from_numpy(filters_KM), persistent=False)
        self.register_buffer("regions_RK", torch.from_numpy(arrays.regions(filters)), persistent=False)
        self.register_buffer("bands_KM", torch.from_numpy(arrays.band_weights(filters, n_fft)), persistent=False)
        self.register_buffer("level_K", torch.from_numpy(arrays.levels(filters, n_fft, preemphasis)), persistent=False)
        self.register_buffer("noise_table", torch.from_numpy(arrays.noise_table()), persistent=False)
        causal = lookahead is not None
        self.embedding = convolution(n_mels, width, 7, lookahead)
        self.pitch_network = ConvNeXt(width, 2, causal=causal)
        self.pitch_head = nn.Linear(width, 2)
        self.pitch_embedding = nn.Linear(2, width)
        self.network = ConvNeXt(width, layers, causal=causal)
        self.head = nn.Linear(width, 3 * bins)
        nn.init.normal_(self.head.weight, std=1e-3)
        nn.init.zeros_(self.head.bias)
        self.shape_head = nn.Linear(width, 2 * SHAPE_WAVES * SHAPE_BANDS)
        nn.init.zeros_(self.shape_head.weight)
        nn.init.zeros_(self.shape_head.bias)

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: Any) -> None:
        """Weights of before noise was shaped leave it as it is."""
        if f"{prefix}head.weight" in state_dict:
            for name, value in self.shape_head.state_dict().items():
                state_dict.setdefault(f"{prefix}shape_head.{name}", torch.zeros_like(value))
        super()._load_from_state_dict(state_dict, prefix, *args)

    @classmethod
    def of(
        cls, processor: AudioProcessor, width: int, layers: int, lookahead: int | None = None, postfilter: float = 0.0
    ) -> Vocoder:
        """A vocoder for the features of `processor`."""
        features = arrays.features_of(processor.config.facts)
        return cls(
            processor.filters, **features, width=width, layers=layers, lookahead=lookahead, postfilter=postfilter
        )

    def pitch(self, mel_BTM: Tensor) -> tuple[Tensor, Tensor]:
        """log F0 relative to 200 Hz (B, T), and voicing logits (B, T), predicted from the mel (B, T, M)."""
        out_BT2 = self.pitch_head(self.pitch_network(self._embedded(mel_BTM)))
        return out_BT2[..., 0], out_BT2[..., 1]

    def predicted_f0(self, mel_BTM: Tensor) -> Tensor:
        """F0 (B, T) in Hz, 0 where unvoiced, predicted from the mel (B, T, M)."""
        log_f0_BT, voicing_BT = self.pitch(mel_BTM)
        f0_BT = (200.0 * log_f0_BT.exp()).clamp(arrays.LOWEST_F0, arrays.HIGHEST_F0)
        return torch.where(voicing_BT > 0, f0_BT, torch.zeros_like(f0_BT))

    def _embedded(self, mel_BTM: Tensor) -> Tensor:
        return convolved(self.embedding, 2.0 * mel_BTM - 1.0)

    def forward(
        self,
        mel_BTM: Tensor,
        f0_BT: Tensor | None = None,
        phase_BT: Tensor | None = None,
        noise_start_B: Tensor | None = None,
    ) -> Tensor:
        """The waveform (B, N).

        Args:
            mel_BTM: Mel features from 0 to 1.
            f0_BT: F0 in Hz, 0 where unvoiced; None: predicted.
            phase_BT: Cycles that are added to the phase of the pulses; None: 0.
            noise_start_B: Where each item reads the noise table.
        """
        if f0_BT is None:
            f0_BT = self.predicted_f0(mel_BTM)
        pulses_BN, noise_BN = self.source(f0_BT, phase_BT, noise_start_B)
        return self.filtered(mel_BTM, f0_BT, pulses_BN, noise_BN)

    @torch.no_grad()
    def source(
        self, f0_BT: Tensor, phase_BT: Tensor | None = None, noise_start_B: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Pulses and noise, each (B, N) with power 1. Arguments as for `forward`."""
        pulses_BN = pulses(f0_BT.float(), self.hop_length, self.sample_rate, phase_BT)
        return pulses_BN, noise(pulses_BN, self.noise_table, noise_start_B)

    def filtered(self, mel_BTM: Tensor, f0_BT: Tensor, pulses_BN: Tensor, noise_BN: Tensor) -> Tensor:
        """The waveform (B, N): pulses and noise, each (B, N), filtered according to the mel, and unless the vocoder is
        in training or can run incrementally, corrected to it."""
        hidden_BTD = self.network(self._embedded(mel_BTM) + self.embedded_pitch(f0_BT))
        with torch.no_grad():
            pulse_BTC, noise_BTC = self.fourier(pulses_BN), self.fourier(noise_BN)
        waveform_BN: Tensor = self.fourier.inverse(self.spectrum(hidden_BTD, mel_BTM, pulse_BTC, noise_BTC))
        if not self._corrects:
            return waveform_BN
        with torch.autocast(mel_BTM.device.type, enabled=False):
            return self.corrected(waveform_BN, mel_BTM)

    @property
    def _corrects(self) -> bool:
        """Not in training, which would rely on it, nor where later frames are not known."""
        return not self.training and self.lookahead is None

    def corrected(self, waveform_BN: Tensor, mel_BTM: Tensor) -> Tensor:
        """The waveform (B, N) with the levels of its mel bands moved to those of the mel, by 6 dB at most.

        Overlapping frames add up to other levels than each of them has, and pulses and noise to other levels than both.
        """
        spectrum_BTC = self.fourier(waveform_BN)
        heard_BTM = _magnitudes(spectrum_BTC) @ self.filters_KM
        wanted_BTM = self._nepers(mel_BTM) @ self.postfilter_MM
        missing_BTM = wanted_BTM - heard_BTM.clamp_min(arrays.INAUDIBLE).log()
        limited_BTM = missing_BTM.clamp(-arrays.LARGEST_CORRECTION, arrays.LARGEST_CORRECTION)
        gain_BTK = (limited_BTM @ self.interpolation_MK).exp()
        corrected_BN: Tensor = self.fourier.inverse(_scaled(spectrum_BTC, gain_BTK))
        return corrected_BN

    def _nepers(self, mel_BTM: Tensor) -> Tensor:
        """Levels (B, T, M) of the mel's bands, in nepers relative to a magnitude of 1."""
        return (mel_BTM.float() * -self.floor_db + self.floor_db + self.reference_db) * arrays.NEPERS

    def embedded_pitch(self, f0_BT: Tensor) -> Tensor:
        """(B, T, D) of F0 (B, T) in Hz, 0 where unvoiced."""
        voiced_BT = f0_BT > 0
        log_f0_BT = torch.where(voiced_BT, (f0_BT.clamp_min(1.0) / 200.0).log(), 0.0)
        embedded: Tensor = self.pitch_embedding(torch.stack([log_f0_BT, voiced_BT.float()], dim=-1))
        return embedded

    def spectrum(self, hidden_BTD: Tensor, mel_BTM: Tensor, pulse_BTC: Tensor, noise_BTC: Tensor) -> Tensor:
        """The spectrum (B, T, 2K): those of pulses and noise, filtered as the hidden frames (B, T, D) say."""
        pulse_log_BTK, phase_BTK, noise_log_BTK = self.head(hidden_BTD).float().chunk(3, dim=-1)
        with torch.autocast(mel_BTM.device.type, enabled=False):  # a rounded bf16 log level is off by 0.3 dB
            estimate_BTK = self._nepers(mel_BTM) @ self.spread_MK + self.level_K
            noise_BTC = self.shaped(noise_BTC, self.shape_head(hidden_BTD).float())
            noise_BTK = self.noise_levels(noise_BTC)
        pulse_gain_BTK = (estimate_BTK + pulse_log_BTK).clamp_max(arrays.LOUDEST).exp()
        noise_gain_BTK = (estimate_BTK - noise_BTK + noise_log_BTK).clamp_max(arrays.LOUDEST).exp()
        filtered_BTC = _rotated(pulse_BTC, pulse_gain_BTK, phase_BTK)
        spectrum_BTC: Tensor = filtered_BTC + _scaled(noise_BTC, noise_gain_BTK)
        return spectrum_BTC

    def shaped(self, noise_BTC: Tensor, shape_BTS: Tensor) -> Tensor:
        """Noise (B, T, 2K) with an envelope within the window of each frame, so that a burst may be shorter than it.

        The envelope is 1 plus waves of one to four periods in the window, which in the spectrum are sums of shifted
        bins. `shape_BTS`: their complex amplitudes in four bands, between which they are interpolated.
        """
        # in one product they would leave the processor's cache before they are used
        amplitudes = [shape_BTR @ self.regions_RK for shape_BTR in shape_BTS.chunk(2 * SHAPE_WAVES, dim=-1)]
        real_BTK, imaginary_BTK = noise_BTC.chunk(2, dim=-1)
        bins = real_BTK.shape[-1]
        padded = [F.pad(part_BTK, (SHAPE_WAVES, SHAPE_WAVES)) for part_BTK in (real_BTK, imaginary_BTK)]
        for periods in range(1, SHAPE_WAVES + 1):
            cosine_BTK, sine_BTK = amplitudes[2 * periods - 2 : 2 * periods]
            below = [part[..., SHAPE_WAVES - periods :][..., :bins] for part in padded]
            above = [part[..., SHAPE_WAVES + periods :][..., :bins] for part in padded]
            real_BTK = real_BTK.addcmul(cosine_BTK, below[0] + above[0]).addcmul(sine_BTK, below[1] - above[1])
            imaginary_BTK = imaginary_BTK.addcmul(cosine_BTK, below[1] + above[1])
            imaginary_BTK = imaginary_BTK.addcmul(sine_BTK, above[0] - below[0])
        return torch.cat([real_BTK, imaginary_BTK], dim=-1)

    def noise_levels(self, noise_BTC: Tensor) -> Tensor:
        """Levels in mel bands, interpolated to bins (B, T, K), of noise with the spectrum (B, T, 2K), in nepers.

        They vary by chance about 0. So does the mel, with the recording's noise: without its own variations the noise
        takes on those of the mel.
        """
        levels_BTM = _magnitudes(noise_BTC) @ self.bands_KM
        levels_BTK: Tensor = levels_BTM.clamp_min(arrays.LEAST_NOISE).log() @ self.interpolation_MK
        return levels_BTK

    @property
    def source_lookahead(self) -> int:
        """Frames of the pitch after a frame that its spectrum depends on: those in the window of its source."""
        return -(-self.fourier.n_fft // 2 // self.hop_length)

    @property
    def context(self) -> int:
        """Receptive field: frames on either side that a frame of the waveform depends on."""
        return arrays.receptive_field(len(self.network.blocks), self.fourier.n_fft, self.hop_length, self._corrects)


class TensorVocoder(arrays.ArrayVocoder):
    """A `Vocoder` that is called with arrays, on its own device."""

    def __init__(self, vocoder: Vocoder) -> None:
        self._vocoder = vocoder.eval()

    @property
    def context(self) -> int:
        return self._vocoder.context

    @torch.no_grad()
    def predicted_f0(self, mel_TM: FloatArray) -> FloatArray:
        f0_T: FloatArray = self._vocoder.predicted_f0(self._batch(mel_TM))[0].cpu().numpy()
        return f0_T

    @torch.no_grad()
    def source(self, f0_T: FloatArray) -> tuple[FloatArray, FloatArray]:
        pulses_BN, noise_BN = self._vocoder.source(self._batch(f0_T))
        return pulses_BN[0].cpu().numpy(), noise_BN[0].cpu().numpy()

    @torch.no_grad()
    def filtered(self, mel_TM: FloatArray, f0_T: FloatArray, pulses_N: FloatArray, noise_N: FloatArray) -> FloatArray:
        given = [self._batch(one) for one in (mel_TM, f0_T, pulses_N, noise_N)]
        waveform_N: FloatArray = self._vocoder.filtered(*given)[0].float().cpu().numpy()
        return waveform_N

    def _batch(self, values: FloatArray) -> Tensor:
        return torch.from_numpy(np.array(values, dtype=np.float32))[None].to(self._vocoder.level_K.device)


def _magnitudes(spectrum_BTC: Tensor) -> Tensor:
    """Magnitudes (B, T, K) of a spectrum (B, T, 2K)."""
    real_BTK, imaginary_BTK = spectrum_BTC.chunk(2, dim=-1)
    return (real_BTK.square() + imaginary_BTK.square()).sqrt()


def _scaled(spectrum_BTC: Tensor, gain_BTK: Tensor) -> Tensor:
    """A spectrum (B, T, 2K) times gains (B, T, K)."""
    parts_BT2K = spectrum_BTC.reshape(*gain_BTK.shape[:2], 2, -1)
    return (parts_BT2K * gain_BTK[:, :, None]).flatten(-2)


def _rotated(spectrum_BTC: Tensor, gain_BTK: Tensor, phase_BTK: Tensor) -> Tensor:
    """A spectrum times gain * exp(i phase)."""
    real_BTK, imaginary_BTK = spectrum_BTC.chunk(2, dim=-1)
    cosine_BTK, sine_BTK = gain_BTK * phase_BTK.cos(), gain_BTK * phase_BTK.sin()
    return torch.cat(
        [real_BTK * cosine_BTK - imaginary_BTK * sine_BTK, real_BTK * sine_BTK + imaginary_BTK * cosine_BTK], dim=-1
    )


class VocoderStream:
    """The samples of one recording. Joined, they are what `Vocoder.forward` makes of all frames at once.

    Phases, overlapping windows and the past of each convolution are carried from block to block.
    """

    def __init__(self, vocoder: Vocoder) -> None:
        """Raises ValueError if the vocoder has no `lookahead`, and so sees frames that have not come yet."""
        self.vocoder = vocoder
        device = vocoder.level_K.device
        self._embedding = limited(vocoder.embedding)
        self._embedding_past = self._embedding.initial_state(1)
        self._network_state = vocoder.network.initial_state(1)
        self._pulses = PulseStream(vocoder.hop_length, vocoder.sample_rate)
        self._source = AnalysisStream(vocoder.fourier, 2)
        self._synthesis = SynthesisStream(vocoder.fourier, 1)
        self._noise_start = torch.zeros(1, dtype=torch.long, device=device)
        bins = 2 * vocoder.fourier.bins
        # frames that wait for later ones
        self._mel_1TM = torch.zeros(1, 0, vocoder.spread_MK.shape[0], device=device)
        self._f0_1T = torch.zeros(1, 0, device=device)
        self._embedded_1TD = torch.zeros(1, 0, self._embedding.out_channels, device=device)
        self._source_2TC = torch.zeros(2, 0, bins, device=device)

    @torch.inference_mode()
    def push(self, mel_1TM: Tensor, f0_1T: Tensor) -> Tensor:
        """The samples (1, N), N may be 0, that the next frames complete. One input may be ahead of the other.

        Args:
            mel_1TM: Mel features from 0 to 1.
            f0_1T: F0 in Hz, 0 where unvoiced.
        """
        self._mel_1TM = torch.cat((self._mel_1TM, mel_1TM), dim=1)
        self._f0_1T = torch.cat((self._f0_1T, f0_1T), dim=1)
        source_2TC = self._source.push(self._source_samples(f0_1T)) if f0_1T.shape[1] else self._source_2TC[:, :0]
        return self._filtered(2.0 * mel_1TM - 1.0, source_2TC)

    @torch.inference_mode()
    def finish(self) -> Tensor:
        """The last samples (1, N). The stream must not be used again."""
        behind_1TM = self._mel_1TM.new_zeros(1, self.vocoder.lookahead or 0, self._mel_1TM.shape[2])
        rest_1N = self._filtered(behind_1TM, self._source.finish())
        return torch.cat((rest_1N, self._synthesis.finish()), dim=1)

    def _source_samples(self, f0_1T: Tensor) -> Tensor:
        """Pulses and noise (2, N) up to the last of the next frames."""
        pulses_1N = self._pulses.push(f0_1T)
        noise_1N = noise(pulses_1N, self.vocoder.noise_table, self._noise_start)
        self._noise_start = (self._noise_start + pulses_1N.shape[1]) % len(self.vocoder.noise_table)
        return torch.cat((pulses_1N, noise_1N))

    def _filtered(self, scaled_1TM: Tensor, source_2TC: Tensor) -> Tensor:
        """The samples of the frames that the next ones complete, given the embedding's next input."""
        embedded_1DT = self._embedding.step(scaled_1TM.transpose(1, 2), self._embedding_past)
        self._embedded_1TD = torch.cat((self._embedded_1TD, embedded_1DT.transpose(1, 2)), dim=1)
        self._source_2TC = torch.cat((self._source_2TC, source_2TC), dim=1)
        ready = min(self._embedded_1TD.shape[1], self._source_2TC.shape[1])
        mel_1TM, self._mel_1TM = _split(self._mel_1TM, ready)
        f0_1T, self._f0_1T = _split(self._f0_1T, ready)
        embedded_1TD, self._embedded_1TD = _split(self._embedded_1TD, ready)
        source_2TC, self._source_2TC = _split(self._source_2TC, ready)
        if ready == 0:
            return self._synthesis.push(source_2TC[:1])
        vocoder = self.vocoder
        hidden_1TD = vocoder.network.step(embedded_1TD + vocoder.embedded_pitch(f0_1T), self._network_state)
        return self._synthesis.push(vocoder.spectrum(hidden_1TD, mel_1TM, source_2TC[:1], source_2TC[1:]))


def _split(values_BT: Tensor, count: int) -> tuple[Tensor, Tensor]:
    return values_BT[:, :count], values_BT[:, count:]


_COMPRESSION = 0.3
_SMALL = 1e-5
_MEAN_LEVEL, _DEVIATION = 0.35, 0.2
"""Of mel features from 0 to 1. Without standardisation, a discriminator stays at chance for a thousand steps."""


Judgement = tuple[Tensor, list[Tensor]]
"""Scores (B, T', K'), high for natural speech, and each layer's output (B, C, T', K')."""


class _Convolutions(nn.Module):
    """Convolutions with leaky ReLUs, and one that gives scores."""

    layers: nn.ModuleList
    last: nn.Conv2d

    def _build(self, channels: int, kernel: tuple[int, int], strides: Sequence[tuple[int, int]]) -> None:
        """Three layers of these strides, from 2 channels to twice `channels`."""
        normed, padding = nn.utils.parametrizations.weight_norm, (kernel[0] // 2, kernel[1] // 2)
        sizes = zip((2, channels, 2 * channels), (channels, 2 * channels, 2 * channels), strides, strict=True)
        self.layers = nn.ModuleList(
            normed(nn.Conv2d(into, out, kernel, stride=stride, padding=padding)) for into, out, stride in sizes
        )
        self.last = normed(nn.Conv2d(2 * channels, 1, (3, 3), padding=1))

    def judged(self, *inputs_BTCK: Tensor, cond_BTK: Tensor | None = None) -> list[Judgement]:
        """Of each of these in two channels (B, T, 2, K), or in one, and `cond` as the other."""
        layers = [one for one in self.layers if isinstance(one, nn.Conv2d)]
        if not on_processor(inputs_BTCK[0]):
            both = [one if cond_BTK is None else torch.stack([one[:, :, 0], cond_BTK], dim=2) for one in inputs_BTCK]
            return [self._plainly_judged(layers, one) for one in both]
        return bands.judged(layers, self.last, inputs_BTCK, cond_BTK)

    def _plainly_judged(self, layers: Sequence[nn.Conv2d], x_BTCK: Tensor) -> Judgement:
        outputs, hidden = [], x_BTCK.transpose(1, 2)
        for layer in layers:
            hidden = F.leaky_relu(layer(hidden), bands.SLOPE)
            outputs.append(hidden)
        return self.last(hidden).squeeze(1), outputs


class SpectrogramDiscriminator(_Convolutions):
    """Convolutions over a complex spectrogram (Défossez et al. 2022, "High fidelity neural audio compression",
    section 3.4), with magnitudes compressed to the power 0.3 so that quiet bins matter."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self._build(channels, (3, 9), ((1, 3), (1, 3), (1, 2)))

    def forward(self, *spectra_BTC: Tensor) -> list[Judgement]:
        """Of each of these spectra (B, T, 2K)."""
        apart_BTCK = [one.reshape(*one.shape[:2], 2, -1) for one in spectra_BTC]
        return self.judged(*(bands.compressed(one, _SMALL, 0.5 * (_COMPRESSION - 1.0)) for one in apart_BTCK))


class Discriminators(nn.Module):
    """One spectrogram discriminator per resolution (n_fft, hop)."""

    def __init__(self, resolutions: Sequence[tuple[int, int]], channels: int) -> None:
        super().__init__()
        self.members = nn.ModuleList(SpectrogramDiscriminator(channels) for _ in resolutions)

    def forward(self, spectra: Sequence[Tensor]) -> list[Judgement]:
        """Each discriminator's; `spectra`: a (B, T, 2K) per resolution."""
        return [member(spectrum)[0] for member, spectrum in zip(self.members, spectra, strict=True)]

    def of_both(self, fake: Sequence[Tensor], real: Sequence[Tensor]) -> tuple[list[Judgement], list[Judgement]]:
        """Each one's, of fakes and of what is real; weights are normalised and laid out once."""
        both = [member(*spectra) for member, *spectra in zip(self.members, fake, real, strict=True)]
        return [one for one, _ in both], [one for _, one in both]


class MelDiscriminator(_Convolutions):
    """Convolutions over a mel spectrogram and its condition (Yang et al. 2021, "GANSpeech", section 2.2)."""

    def __init__(self, n_mels: int, condition: int, channels: int) -> None:
        super().__init__()
        self.condition = nn.Linear(condition, n_mels)
        self._build(channels, (5, 5), ((1, 2), (2, 2), (2, 2)))

    def forward(self, mel_BTM: Tensor, cond_BTD: Tensor) -> list[Judgement]:
        """Of a mel (B, T, M), from 0 to 1, and its condition (B, T, D); the only one."""
        return self._of_each([mel_BTM], cond_BTD)

    def of_both(self, fake_BTM: Tensor, real_BTM: Tensor, cond_BTD: Tensor) -> tuple[list[Judgement], list[Judgement]]:
        """Of a fake and a real mel with the same condition, which is projected once, as weights are normalised once."""
        fake, real = self._of_each([fake_BTM, real_BTM], cond_BTD)
        return [fake], [real]

    def _of_each(self, mels_BTM: Sequence[Tensor], cond_BTD: Tensor) -> list[Judgement]:
        cond_BTM = self.condition(cond_BTD)
        inputs_BTCM = [((one - _MEAN_LEVEL) / _DEVIATION)[:, :, None] for one in mels_BTM]
        return self.judged(*inputs_BTCM, cond_BTK=cond_BTM)


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
