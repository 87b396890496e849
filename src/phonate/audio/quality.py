"""What can be said about a recording from its samples alone: the facts that validation judges by."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_FRAME_SECONDS = 0.02
_SILENT_DB = -40.0
_CLIPPED_RUN = 3
_FULL = 1.0 - 1e-4
_QUIETEST_CLIPPING = 0.1  # in a nearly silent 16-bit recording the peak is a step that many samples share


@dataclass(frozen=True)
class AudioQuality:
    """Facts about a waveform; amplitudes are in units of full scale, shares from 0 to 1."""

    duration: float
    """Seconds."""
    peak: float
    """Largest absolute sample."""
    rms: float
    """Root mean square of the samples."""
    dc_offset: float
    """Mean of the samples."""
    clipping_share: float
    """Share of the samples in runs of three or more at the peak, where the recorder had no more room."""
    silence_share: float
    """Share of the 20 ms frames that are 40 dB or more under the loudest one; 1 for digital silence."""
    not_finite: int
    """NaN and infinite samples; the other facts leave them out."""


def describe(waveform: npt.ArrayLike, sample_rate: int) -> AudioQuality:
    """The facts about a waveform (samples,). Takes what `read_audio` refuses, so that it can be said why."""
    samples = np.asarray(waveform, dtype=np.float32)
    finite = np.isfinite(samples)
    duration, not_finite = len(samples) / sample_rate, int(len(samples) - finite.sum())
    samples = samples[finite]
    if samples.size == 0:
        return AudioQuality(duration, 0.0, 0.0, 0.0, 0.0, 1.0, not_finite)
    peak = float(np.abs(samples).max())
    return AudioQuality(
        duration=duration,
        peak=peak,
        rms=float(np.sqrt(np.square(samples, dtype=np.float64).mean())),
        dc_offset=float(samples.mean(dtype=np.float64)),
        clipping_share=_clipping_share(samples, peak),
        silence_share=_silence_share(samples, sample_rate),
        not_finite=not_finite,
    )


def _clipping_share(samples: npt.NDArray[np.float32], peak: float) -> float:
    if peak < _QUIETEST_CLIPPING:
        return 0.0
    clipped = 0
    for side in (samples, -samples):
        edges = np.flatnonzero(np.diff(np.pad((side >= _FULL * peak).astype(np.int8), 1)))
        runs = edges[1::2] - edges[::2]
        clipped += int(runs[runs >= _CLIPPED_RUN].sum())
    return clipped / len(samples)


def _silence_share(samples: npt.NDArray[np.float32], sample_rate: int) -> float:
    size = min(len(samples), max(1, int(_FRAME_SECONDS * sample_rate)))
    frames = samples[: len(samples) // size * size].reshape(-1, size)
    loudness = np.sqrt(np.square(frames, dtype=np.float64).mean(axis=1))
    loudest = loudness.max()
    return float((loudness <= loudest * 10.0 ** (_SILENT_DB / 20.0)).mean()) if loudest > 0.0 else 1.0
