"""Augmentation: speed, pitch and noise on the waveform, masks on its mel; and the resampling it needs.

Features are computed from the augmented waveform, so the two always agree. All randomness comes from the caller's
generator: equal generator states give equal results.

It is the interpolation of torchaudio's `functional.resample` with its default settings (Hann window, 6 zero crossings,
roll-off 0.99), which models were trained with. Recordings are resampled by soxr (`decoding.resample`).
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from phonate.audio.decoding import FloatArray, resample
from phonate.audio.settings import AudioConfig, AugmentationSettings

# --------------------------- Varying samples: speed, pitch and noise on the waveform, masks on its mel

_WINDOW_SECONDS = 0.04


class DataAugmentation:
    """Random effects on waveforms; the input is never changed.

    Args:
        settings: which effects, how strong and how often; None: the defaults.
        sample_rate: of the waveforms, in Hz.
    """

    def __init__(
        self, settings: AugmentationSettings | None = None, sample_rate: int = AudioConfig().sample_rate
    ) -> None:
        self.settings = settings or AugmentationSettings()
        self.sample_rate = sample_rate

    def __call__(self, waveform: FloatArray, rng: np.random.Generator) -> FloatArray:
        """Waveform (samples,) -> (samples / speed,), with speed, pitch and noise drawn from `rng`."""
        settings, speed, semitones = self.settings, 1.0, 0.0
        if settings.time_stretch and rng.random() < settings.time_stretch_probability:
            speed = rng.uniform(*settings.time_stretch)
        if settings.pitch_shift and rng.random() < settings.pitch_shift_probability:
            semitones = rng.uniform(*settings.pitch_shift)
        varied = stretch_and_shift(waveform, self.sample_rate, speed, semitones)
        if settings.noise and rng.random() < settings.noise_probability:
            deviation = np.float32(settings.noise * np.abs(waveform).max(initial=0.0))
            varied = varied + deviation * rng.standard_normal(len(varied), dtype=np.float32)
        return varied

    def spec(self, mel: FloatArray, rng: np.random.Generator) -> FloatArray:
        """Features (frames, n_mels) with a band of mels and a stretch of frames set to their mean.

        SpecAugment (Park et al. 2019, section 2) with one mask of each kind and no time warping.
        """
        masks = self.settings.spec_augment
        masked = mel.copy()
        if masks is None or rng.random() >= self.settings.spec_augment_probability:
            return masked
        mean = mel.mean()
        masked[:, _mask(mel.shape[1], masks.freq, rng)] = mean
        masked[_mask(mel.shape[0], masks.time, rng)] = mean
        return masked


def _mask(size: int, widest: int, rng: np.random.Generator) -> slice:
    width = int(rng.integers(0, min(widest, size) + 1))
    start = int(rng.integers(0, size - width + 1))
    return slice(start, start + width)


def stretch_and_shift(waveform: FloatArray, sample_rate: int, speed: float = 1.0, semitones: float = 0.0) -> FloatArray:
    """Waveform (samples,) -> (round(samples / speed),), `speed` times as fast and `semitones` higher.

    One pass of a phase vocoder changes the length by speed and pitch together; resampling then undoes the part due to
    pitch.
    """
    if speed == 1.0 and semitones == 0.0:
        return waveform.copy()
    pitch = 2.0 ** (semitones / 12.0)
    varied = _phase_vocoder(waveform, sample_rate, speed / pitch)
    if pitch != 1.0:
        varied = resample(varied, sample_rate * pitch, sample_rate)
    length = round(len(waveform) / speed)
    return np.pad(varied[:length], (0, max(0, length - len(varied))))


@torch.no_grad()
def _phase_vocoder(waveform: FloatArray, sample_rate: int, speed: float) -> FloatArray:
    """Waveform (samples,) -> (round(samples / speed),) at the same pitch (Flanagan and Golden 1966)."""
    # The window is a time, whatever the rate: long enough for two periods of a low voice.
    n_fft = 2 ** round(math.log2(_WINDOW_SECONDS * sample_rate))
    hop = n_fft // 4
    window = torch.hann_window(n_fft)
    spectrum_FT = torch.stft(
        torch.from_numpy(waveform), n_fft, hop, window=window, pad_mode="constant", return_complex=True
    )
    positions = torch.arange(0.0, spectrum_FT.shape[1], speed, dtype=torch.float64)
    whole = positions.long()
    spectrum_FT = torch.nn.functional.pad(spectrum_FT, (0, 2))
    between = (positions - whole).float()
    magnitudes_FT, phases_FT = spectrum_FT.abs(), spectrum_FT.angle()
    stretched_FT = torch.lerp(magnitudes_FT[:, whole], magnitudes_FT[:, whole + 1], between)
    expected_F1 = (2 * math.pi * hop / n_fft) * torch.arange(n_fft // 2 + 1)[:, None]
    deviation_FT = phases_FT[:, whole + 1] - phases_FT[:, whole] - expected_F1
    deviation_FT -= 2 * math.pi * torch.round(deviation_FT / (2 * math.pi))
    advance_FT = (deviation_FT + expected_F1).double()  # sums of thousands of radians need the digits
    start_F1 = phases_FT[:, :1].double()
    phase_FT = torch.cat([start_F1, start_F1 + advance_FT[:, :-1].cumsum(dim=1)], dim=1)
    phase_FT = torch.remainder(phase_FT, 2 * math.pi).float()
    length = round(len(waveform) / speed)
    return torch.istft(torch.polar(stretched_FT, phase_FT), n_fft, hop, window=window, length=length).numpy()


# ------------------------ Resampling by a windowed sinc, as tensors: differentiable, and on any device

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
