"""Room acoustics, noise and level at the microphone.

Shapes: P sources (speakers), N samples, R samples of an impulse response.
"""

from __future__ import annotations

import numpy as np
import torch

from phonate.audio.decoding import FloatArray
from phonate.data.conversations.noise import Noise
from phonate.data.conversations.settings import AcousticSettings

_SMALLEST_FFT = 1 << 15
_ONSET_SECONDS = 0.003
"""Seconds between the direct sound and the first reflection."""
_DAMPING = 0.6
"""Coefficient of the one-pole low-pass of the reverberation: walls and air absorb high frequencies first."""
_QUIET = 1e-4
"""Signals with a lower RMS are not scaled."""


class Acoustics:
    """Applies `settings` to waveforms at `sample_rate` Hz, with noise from `noise`."""

    def __init__(self, settings: AcousticSettings, sample_rate: int, noise: Noise) -> None:
        self.settings = settings
        self.sample_rate = sample_rate
        self.noise = noise

    def __call__(self, sources_PN: FloatArray, speech_samples: int, rng: np.random.Generator) -> FloatArray:
        """The signal (N,) at the microphone, of sources (P, N) that each have their own room impulse response.

        `speech_samples`: the number of samples that contain speech, over which levels are measured. If it is 0, the
        level is not changed.
        """
        settings = self.settings
        if rng.random() < settings.reverberation:
            seconds = rng.uniform(*settings.rt60)
            responses = [self._response(seconds, rng) for _ in sources_PN]
            mixed_N = convolved(sources_PN, np.stack(responses))
        else:
            mixed_N = sources_PN.sum(axis=0, dtype=np.float32) if len(sources_PN) != 1 else sources_PN[0].copy()
        level = np.sqrt(float(np.dot(mixed_N, mixed_N)) / (speech_samples or len(mixed_N)))
        if settings.level_db is not None:
            wanted = 10.0 ** (rng.uniform(*settings.level_db) / 20.0)
            if speech_samples and level > _QUIET:
                mixed_N *= np.float32(wanted / level)
                level = wanted
        if rng.random() < settings.noise:
            snr = rng.uniform(*settings.snr_db)
            mixed_N += np.float32(level * 10.0 ** (-snr / 20.0)) * self.noise(len(mixed_N), rng)
        return mixed_N

    def _response(self, rt60: float, rng: np.random.Generator) -> FloatArray:
        ratio = rng.uniform(*self.settings.direct_to_reverberant_db)
        longest = round(self.settings.rt60[1] * self.sample_rate)
        return np.pad(room_response(rt60, ratio, self.sample_rate, rng), (0, longest))[:longest]


def room_response(
    rt60: float, direct_to_reverberant_db: float, sample_rate: int, rng: np.random.Generator
) -> FloatArray:
    """A synthetic room impulse response (R,) of `rt60` seconds: the direct sound, 1 at sample 0, and low-pass filtered
    noise that decays by 60 dB in `rt60` seconds (Moorer 1979)."""
    length, onset = max(2, round(rt60 * sample_rate)), round(_ONSET_SECONDS * sample_rate)
    tail = rng.standard_normal(length + 32, dtype=np.float32)
    kernel = np.float32(_DAMPING) ** np.arange(32, dtype=np.float32)
    tail = np.convolve(tail, kernel)[31 : 31 + length]
    tail *= 10.0 ** (-3.0 * np.arange(length, dtype=np.float32) / length)
    tail[:onset] = 0.0
    energy = float(np.dot(tail, tail))
    response = tail * np.float32(np.sqrt(10.0 ** (-direct_to_reverberant_db / 10.0) / max(energy, 1e-12)))
    response[0] = 1.0
    return np.asarray(response, dtype=np.float32)


def convolved(sources_PN: FloatArray, responses_PR: FloatArray) -> FloatArray:
    """The sum (N,) of sources (P, N), each convolved with its response (R,) and truncated to N samples.

    Computed by overlap-add; blocks in which a source is silent are skipped.
    """
    sources, samples = sources_PN.shape
    n_fft = max(_SMALLEST_FFT, 1 << (2 * responses_PR.shape[1] - 1).bit_length())
    step = n_fft - responses_PR.shape[1] + 1
    blocks = -(-samples // step)
    padded = torch.zeros(sources, blocks * step)
    padded[:, :samples] = torch.from_numpy(sources_PN)
    pieces_PBN = padded.view(sources, blocks, step)
    source_A, block_A = pieces_PBN.ne(0.0).any(-1).nonzero(as_tuple=True)
    responses_PF = torch.fft.rfft(torch.from_numpy(responses_PR), n=n_fft)
    spectra_AF = torch.fft.rfft(pieces_PBN[source_A, block_A], n=n_fft) * responses_PF[source_A]
    summed_BF = torch.zeros(blocks, n_fft // 2 + 1, dtype=torch.complex64).index_add_(0, block_A, spectra_AF)
    sounds_BN = torch.fft.irfft(summed_BF, n=n_fft)
    mixed = torch.zeros(blocks * step + n_fft)
    mixed[: blocks * step] = sounds_BN[:, :step].reshape(-1)
    for block in range(blocks):
        end = (block + 1) * step
        mixed[end : end + n_fft - step] += sounds_BN[block, step:]
    return np.ascontiguousarray(mixed[:samples].numpy())
