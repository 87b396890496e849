"""Sounds that tests make."""

from __future__ import annotations

from functools import cache

import numpy as np

SAMPLE_RATE = 22050


def voiced_tone(seconds: float, pitch: float, formants: tuple[float, ...], seed: int) -> np.ndarray:
    """A vowel-like sound: harmonics of a gliding pitch under formant peaks, with breath noise.

    Returns float32 samples at 22,050 Hz with a peak of 0.5.
    """
    return _voiced_tone(seconds, pitch, formants, seed).copy()


@cache  # many tests make the same few voices
def _voiced_tone(seconds: float, pitch: float, formants: tuple[float, ...], seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    time = np.arange(int(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    glide = pitch * (1 + 0.15 * np.sin(2 * np.pi * rng.uniform(0.5, 2.0) * time + rng.uniform(0, 6)))
    phase = 2 * np.pi * np.cumsum(glide) / SAMPLE_RATE
    sound = np.zeros_like(time)
    for harmonic in range(1, int(5000 / pitch)):
        frequency = harmonic * pitch
        gain = sum(np.exp(-(((frequency - formant) / 250.0) ** 2)) for formant in formants) + 0.02
        sound += gain * np.sin(harmonic * phase)
    envelope = 0.3 + 0.7 * np.abs(np.sin(np.pi * rng.uniform(2, 4) * time))
    sound = sound * envelope + 0.01 * rng.standard_normal(len(time))
    return (0.5 * sound / np.abs(sound).max()).astype(np.float32)
