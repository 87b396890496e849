"""The excitation signal of a source-filter model: a pulse train at the pitch, and noise.

Shapes: B batch, T frames, N = (T - 1) * hop samples.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

_SMALLEST = 1e-4
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
    near = below_BN.abs() < _SMALLEST
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


def noise_table(samples: int = 1 << 16) -> Tensor:
    """White noise (samples,) of power 1, always the same."""
    return torch.randn(samples, generator=torch.Generator().manual_seed(0))


def noise(like_BN: Tensor, table: Tensor, start_B: Tensor | None = None) -> Tensor:
    """White noise in the shape of `like_BN`, read from `table` (samples,), each item from its own `start_B`."""
    positions = torch.arange(like_BN.shape[1], device=like_BN.device)
    if start_B is None:
        return F.embedding(positions % table.shape[0], table[:, None])[None, :, 0].expand_as(like_BN)
    return F.embedding((positions[None] + start_B[:, None]) % len(table), table[:, None])[..., 0]
