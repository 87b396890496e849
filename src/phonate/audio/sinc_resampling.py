"""Resampling by a windowed sinc, as tensors: differentiable, and on any device.

It is the interpolation of torchaudio's `functional.resample` with its default settings (Hann window, 6 zero crossings,
roll-off 0.99), which models were trained with. Recordings are resampled by soxr (`decoding.resample`).
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

_ZERO_CROSSINGS = 6
_ROLL_OFF = 0.99


def sinc_resample(waveform: Tensor, rate: int, new_rate: int) -> Tensor:
    """Waveforms (..., samples) at another rate in Hz: (..., ceil(samples * new_rate / rate)).

    Bandlimited interpolation (Smith, https://ccrma.stanford.edu/~jos/resample/): the output sample at time t is the sum
    over the input samples of their value times a windowed sinc around t.
    """
    if rate == new_rate:
        return waveform
    divisor = math.gcd(rate, new_rate)
    old, new = rate // divisor, new_rate // divisor
    length = math.ceil(waveform.shape[-1] * new / old)
    kernel, width = _kernel(old, new)
    kernel = kernel.to(waveform)
    rows = F.pad(waveform.reshape(-1, 1, waveform.shape[-1]), (width, width + old))
    phases = F.conv1d(rows, kernel, stride=old)  # (rows, new, blocks): `new` output samples of each `old` input samples
    return phases.transpose(1, 2).reshape(*waveform.shape[:-1], -1)[..., :length]


@lru_cache(maxsize=8)
def _kernel(old: int, new: int) -> tuple[Tensor, int]:
    """Filters (new, 1, taps), float64, one for each position of an output sample among `old` input samples, and how
    many samples they look back. Rates are without a common divisor."""
    cutoff = min(old, new) * _ROLL_OFF
    width = math.ceil(_ZERO_CROSSINGS * old / cutoff)
    taps = torch.arange(-width, width + old, dtype=torch.float64) / old
    shifts = torch.arange(0, -new, -1, dtype=torch.float64) / new
    times = ((taps[None, :] + shifts[:, None]) * cutoff).clamp(-_ZERO_CROSSINGS, _ZERO_CROSSINGS)
    window = torch.cos(times * math.pi / _ZERO_CROSSINGS / 2) ** 2
    return (torch.sinc(times) * window * (cutoff / old))[:, None, :], width
