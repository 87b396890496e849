"""Quality score of a recording for training a voice, fast enough for tens of thousands of them.

Recordings are scored as if resampled to one rate. Resampling and a spectrum with four overlapping frames take most of
the time, and levels are rarely close to a threshold: so both are estimated first, and computed exactly only where the
estimate is not conclusive. Shapes: N samples, T frames, F frequencies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy.fft

from phonate.audio.decoding import FloatArray, resample
from phonate.audio.voice_features import centroids, hann, magnitudes

QUIET_RMS = 0.01
CLIPPED_PEAK = 0.99
DULL_HZ = 1000.0
SHORT_SECONDS = 3.0

_FRAME_SECONDS = 0.1
_DOUBT = 1.25  # an estimate within this factor of a threshold is not conclusive
_TINY = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True)
class VoiceLevels:
    """Levels that the score depends on; amplitudes in units of full scale."""

    rms: float
    peak: float
    """Largest absolute sample of the recording as it is: resampling would hide clipping, or make some up."""
    centroid: float
    """Mean over frames of the mean frequency, weighted by magnitude, in Hz."""


def voice_score(levels: VoiceLevels, seconds: float) -> tuple[float, list[str]]:
    """The score, from 0 to 1, and the reasons that lower it.

    It is 1, times 0.5 if the RMS is under 0.01, 0.8 if the peak is over 0.99 (clipped, most likely), 0.9 if the
    spectral centroid is under 1 kHz (muffled), and 0.9 if it is shorter than 3 s.
    """
    rms, peak, centroid = levels.rms, levels.peak, levels.centroid
    factors = [
        (rms < QUIET_RMS, 0.5, f"quiet (RMS {rms:.4f} is under {QUIET_RMS:g})"),
        (peak > CLIPPED_PEAK, 0.8, f"clipped (peak {peak:.3f} is over {CLIPPED_PEAK:g})"),
        (centroid < DULL_HZ, 0.9, f"muffled (spectral centroid {centroid:.0f} Hz is under {DULL_HZ:.0f})"),
        (seconds < SHORT_SECONDS, 0.9, f"short ({seconds:.2f} s is under {SHORT_SECONDS:g})"),
    ]
    lowering = [(factor, why) for holds, factor, why in factors if holds]
    return math.prod((factor for factor, _ in lowering), start=1.0), [why for _, why in lowering]


def voice_levels(waveform: FloatArray, sample_rate: int, judged_rate: int) -> VoiceLevels:
    """The levels of a waveform (N,) at `judged_rate`, exact where they are close to a threshold."""
    estimate = _estimate(waveform, sample_rate, judged_rate)
    if _near(estimate.rms, QUIET_RMS) or _near(estimate.centroid, DULL_HZ):
        return exact_levels(waveform, sample_rate, judged_rate)
    return estimate


def exact_levels(waveform: FloatArray, sample_rate: int, judged_rate: int) -> VoiceLevels:
    """The levels of a waveform (N,) resampled to `judged_rate`, by librosa's definition of the centroid."""
    peak = _peak(waveform)
    if sample_rate != judged_rate:
        waveform = resample(waveform, sample_rate, judged_rate)
    centroid = float(centroids(magnitudes(waveform), judged_rate).mean())
    return VoiceLevels(_rms(waveform), peak, centroid)


def _estimate(waveform: FloatArray, sample_rate: int, judged_rate: int) -> VoiceLevels:
    """From frames of about 0.1 s with half an overlap, at the recording's own rate, up to the highest frequency that is
    left at the other."""
    size = 1 << round(math.log2(_FRAME_SECONDS * sample_rate))
    padded = np.concatenate([waveform, np.zeros(size, dtype=np.float32)])  # the end counts, too
    frames_TN = np.lib.stride_tricks.sliding_window_view(padded, size)[:: size // 2]
    magnitude_TF = np.abs(scipy.fft.rfft(frames_TN * hann(size), overwrite_x=True))
    power_F = np.einsum("tf,tf->f", magnitude_TF, magnitude_TF)
    kept = 1 + min(size // 2, int(0.5 * judged_rate * size / sample_rate))
    share = float(power_F[:kept].sum()) / max(float(power_F.sum()), _TINY)
    moment_T = magnitude_TF[:, :kept] @ (np.arange(kept, dtype=np.float32) * np.float32(sample_rate / size))
    centroid_T = moment_T / np.maximum(magnitude_TF[:, :kept].sum(axis=1), _TINY)
    return VoiceLevels(_rms(waveform) * math.sqrt(share), _peak(waveform), float(centroid_T.mean()))


def _near(value: float, threshold: float) -> bool:
    return threshold / _DOUBT < value < threshold * _DOUBT


def _rms(waveform: FloatArray) -> float:
    return math.sqrt(float(np.dot(waveform, waveform)) / len(waveform))


def _peak(waveform: FloatArray) -> float:
    return float(max(waveform.max(), -waveform.min()))
