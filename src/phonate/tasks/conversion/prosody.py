"""Pitch as a speaker-independent input: where the melody goes, not how high the voice is."""

from __future__ import annotations

import numpy as np

from phonate.audio.decoding import FloatArray

PROSODY_DIM = 2
"""Features of a frame: normalised pitch, and voiced (1) or not (-1)."""

_LEAST_SPREAD = 0.1  # of log F0: a monotone voice is not stretched into a lively one
_MOST = 2.0


def prosody(f0: FloatArray) -> FloatArray:
    """F0 in Hz (frames,), 0 where unvoiced -> (frames, 2) float32.

    Log pitch, interpolated through unvoiced frames, minus the utterance's median and divided by its standard
    deviation: a man's and a woman's reading of one melody come out alike.
    """
    voiced = f0 > 0.0
    features = np.zeros((len(f0), PROSODY_DIM), dtype=np.float32)
    features[:, 1] = np.where(voiced, 1.0, -1.0)
    if voiced.any():
        pitch = np.log(f0[voiced])
        frames = np.arange(len(f0))
        melody = np.interp(frames, frames[voiced], pitch) - np.median(pitch)
        features[:, 0] = np.clip(melody / max(_LEAST_SPREAD, float(pitch.std())) / 1.5, -_MOST, _MOST)
    return features
