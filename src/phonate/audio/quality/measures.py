"""Measures of a recording's samples that validation uses: level, clipping, silence, noise."""

from __future__ import annotations

from collections.abc import Iterable
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
    leading_silence: float = 0.0
    """Seconds before the first frame that is not silent."""
    trailing_silence: float = 0.0
    """Seconds after the last frame that is not silent."""
    longest_pause: float = 0.0
    """Seconds of the longest silence between them."""
    noise_db: float = -120.0
    """Level of the quietest tenth of the frames, in dB under that of the loudest tenth."""


def describe(waveform: npt.ArrayLike, sample_rate: int) -> AudioQuality:
    """The facts about a waveform (samples,). Takes what `read_audio` refuses, so that it can be said why."""
    samples = np.asarray(waveform, dtype=np.float32)
    finite = np.isfinite(samples)
    duration, not_finite = len(samples) / sample_rate, int(len(samples) - finite.sum())
    samples = samples[finite]
    if samples.size == 0:
        return AudioQuality(duration, 0.0, 0.0, 0.0, 0.0, 1.0, not_finite)
    peak = float(np.abs(samples).max())
    loudness = _loudness(samples, sample_rate)
    leading, longest, trailing = _silences(loudness)
    return AudioQuality(
        duration=duration,
        peak=peak,
        rms=float(np.sqrt(np.square(samples, dtype=np.float64).mean())),
        dc_offset=float(samples.mean(dtype=np.float64)),
        clipping_share=_clipping_share(samples, peak),
        silence_share=float(_silent(loudness).mean()),
        not_finite=not_finite,
        leading_silence=leading * _FRAME_SECONDS,
        trailing_silence=trailing * _FRAME_SECONDS,
        longest_pause=longest * _FRAME_SECONDS,
        noise_db=_noise_db(loudness),
    )


def describe_blocks(blocks: Iterable[npt.NDArray[np.float32]], sample_rate: int) -> AudioQuality:
    """The facts about a waveform that comes in blocks (samples,), in memory for one block.

    As `describe`, but for runs of clipped samples that cross from one block to the next.
    """
    size = max(1, int(_FRAME_SECONDS * sample_rate))
    samples = not_finite = 0
    peak = total = squares = clipped = 0.0
    loudness: list[npt.NDArray[np.float64]] = []
    rest = np.zeros(0, dtype=np.float32)
    for block in blocks:
        finite = block[np.isfinite(block)]
        samples, not_finite = samples + len(block), not_finite + len(block) - len(finite)
        if not len(finite):
            continue
        highest = float(np.abs(finite).max())
        if highest > peak / _FULL:  # what was at the peak so far is not clipped
            clipped = 0.0
        peak = max(peak, highest)
        clipped += _clipping_share(finite, peak) * len(finite)
        total += float(finite.sum(dtype=np.float64))
        squares += float(np.square(finite, dtype=np.float64).sum())
        rest = np.concatenate([rest, finite])
        if len(rest) >= size:
            loudness.append(_loudness(rest, sample_rate))
            rest = rest[len(rest) // size * size :]
    count = samples - not_finite
    if not count:
        return AudioQuality(samples / sample_rate, 0.0, 0.0, 0.0, 0.0, 1.0, not_finite)
    frames = np.concatenate(loudness) if loudness else _loudness(rest, sample_rate)
    leading, longest, trailing = _silences(frames)
    return AudioQuality(
        duration=samples / sample_rate,
        peak=peak,
        rms=float(np.sqrt(squares / count)),
        dc_offset=total / count,
        clipping_share=clipped / count,
        silence_share=float(_silent(frames).mean()),
        not_finite=not_finite,
        leading_silence=leading * _FRAME_SECONDS,
        trailing_silence=trailing * _FRAME_SECONDS,
        longest_pause=longest * _FRAME_SECONDS,
        noise_db=_noise_db(frames),
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


def _loudness(samples: npt.NDArray[np.float32], sample_rate: int) -> npt.NDArray[np.float64]:
    """(frames,) root mean square of each 20 ms."""
    size = min(len(samples), max(1, int(_FRAME_SECONDS * sample_rate)))
    frames = samples[: len(samples) // size * size].reshape(-1, size)
    return np.asarray(np.sqrt(np.square(frames, dtype=np.float64).mean(axis=1)))


def _silent(loudness: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """(frames,) which are silent; all are in digital silence."""
    return np.asarray(loudness <= loudness.max() * 10.0 ** (_SILENT_DB / 20.0))


def _silences(loudness: npt.NDArray[np.float64]) -> tuple[int, int, int]:
    """Silent frames at the beginning, in the longest pause, and at the end; none where all are silent."""
    sounding = np.flatnonzero(~_silent(loudness))
    if not len(sounding):
        return 0, 0, 0
    longest = int(np.diff(sounding).max(initial=1)) - 1
    return int(sounding[0]), longest, len(loudness) - 1 - int(sounding[-1])


def _noise_db(loudness: npt.NDArray[np.float64]) -> float:
    quiet, loud = np.quantile(loudness, (0.1, 0.9))
    return float(20.0 * np.log10(max(quiet / loud, 1e-6))) if loud > 0.0 else -120.0
