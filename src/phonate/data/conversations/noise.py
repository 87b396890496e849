"""Noise for conversations: recorded, or synthetic coloured noise."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Protocol

import numpy as np

from phonate.audio.decoding import FloatArray
from phonate.config.randomness import generator
from phonate.data.store.prepared import Prepared

_BANK_SAMPLES = 1 << 19
_SLOPES = (0.0, 1.0, 2.0)
"""Exponents a of a power spectrum 1 / f^a: white, pink and brown noise."""


class Noise(Protocol):
    """A source of noise."""

    def __call__(self, samples: int, rng: np.random.Generator) -> FloatArray:
        """(samples,) float32 with an RMS of 1, or zeros if the recording is silent."""
        ...


class ColouredNoise:
    """A random mixture of white, pink and brown Gaussian noise, cut from long periodic signals that are computed once
    per process."""

    def __call__(self, samples: int, rng: np.random.Generator) -> FloatArray:
        """See `Noise`."""
        weights = rng.dirichlet(np.full(len(_SLOPES), 0.5))
        mixed = np.zeros(samples, dtype=np.float32)
        for slope, weight in zip(_SLOPES, weights, strict=True):
            mixed += np.float32(np.sqrt(weight)) * _looped(_bank(slope), samples, rng)
        return mixed


class RecordedNoise:
    """Random parts of the recordings of a prepared corpus; short recordings are repeated."""

    def __init__(self, prepared: Prepared, positions: Sequence[int]) -> None:
        self._cache = prepared.cache
        starts = np.asarray(prepared.index.sample_start)
        self._lengths = [(int(position), int(starts[position + 1] - starts[position])) for position in positions]

    def __call__(self, samples: int, rng: np.random.Generator) -> FloatArray:
        """See `Noise`."""
        position, length = self._lengths[int(rng.integers(len(self._lengths)))]
        if length >= samples:
            start = int(rng.integers(length - samples + 1))
            piece = self._cache.waveform(position, start, start + samples)
        else:
            piece = _looped(self._cache.waveform(position), samples, rng)
        level = float(np.sqrt(np.dot(piece, piece) / samples))
        return piece / np.float32(level) if level > 0.0 else piece


def _looped(waveform_N: FloatArray, samples: int, rng: np.random.Generator) -> FloatArray:
    """`samples` samples from a random position on, wrapping around at the end."""
    start = int(rng.integers(len(waveform_N)))
    pieces, missing = [waveform_N[start : start + samples]], samples - min(samples, len(waveform_N) - start)
    while missing > 0:
        pieces.append(waveform_N[:missing])
        missing -= len(pieces[-1])
    return np.concatenate(pieces)


@cache
def _bank(slope: float) -> FloatArray:
    """Periodic noise with a power spectrum 1 / f^slope above 20 Hz (at 16 kHz) and an RMS of 1."""
    rng = generator("noise", str(slope))
    bins = _BANK_SAMPLES // 2 + 1
    frequencies = np.maximum(np.arange(bins) / bins, 20.0 / 8000.0)
    spectrum = (rng.standard_normal(bins) + 1j * rng.standard_normal(bins)) * frequencies ** (-slope / 2.0)
    spectrum[0] = 0.0
    waveform = np.fft.irfft(spectrum, n=_BANK_SAMPLES)
    return np.asarray(waveform / np.sqrt(np.mean(waveform**2)), dtype=np.float32)
