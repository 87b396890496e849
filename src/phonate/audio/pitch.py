"""Fundamental frequency (F0) estimation."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import scipy.fft

from phonate.audio.decoding import FloatArray

_THRESHOLD = 0.15  # the first dip of the difference function below this is taken as the period
_UNVOICED = 0.35  # a frame whose deepest dip is above this is unvoiced
_QUIET = 0.01  # frames 40 dB below the loudest are unvoiced, too
_FRAMES_PER_BLOCK = 256


def f0(
    waveform: FloatArray, sample_rate: int, hop_length: int, lowest: float = 60.0, highest: float = 500.0
) -> FloatArray:
    """Fundamental frequency in Hz (1 + samples // hop_length,) of a waveform (samples,); 0 in unvoiced frames.

    YIN (de Cheveigné and Kawahara 2002) on frames centred as the mel's; then a median over five frames.
    """
    longest = int(sample_rate / lowest) + 2
    shortest = max(2, int(sample_rate / highest))
    window = int(1.5 * sample_rate / lowest)
    span = window + longest
    # A length with a fast transform. The window stays inside it at every lag, so circular correlation is exact.
    size = scipy.fft.next_fast_len(span, real=True)
    padded = np.pad(waveform.astype(np.float32), (span // 2, size - span // 2))
    energy = np.concatenate([[0.0], np.cumsum(np.square(padded, dtype=np.float64))])
    count = 1 + len(waveform) // hop_length
    frames_TN = np.lib.stride_tricks.sliding_window_view(padded, size)[::hop_length][:count]
    loudness = np.sqrt((energy[span:] - energy[:-span])[::hop_length][:count] / span)
    moving = (energy[window:] - energy[:-window]).astype(np.float32)  # energy of the window that starts at each sample
    moving_TL = np.lib.stride_tricks.sliding_window_view(moving, longest)[::hop_length][:count]
    lags, depths = np.empty((2, count), dtype=np.float32)
    windows_TN = np.zeros((min(count, _FRAMES_PER_BLOCK), size), dtype=np.float32)
    for start in range(0, count, _FRAMES_PER_BLOCK):
        block = slice(start, start + _FRAMES_PER_BLOCK)
        frames = frames_TN[block]
        windows_TN[: len(frames), :window] = frames[:, :window]
        lags[block], depths[block] = _periods(frames, windows_TN[: len(frames)], moving_TL[block], shortest)
    voiced = (depths < _UNVOICED) & (loudness > _QUIET * loudness.max())
    return _steadied(np.where(voiced, sample_rate / lags, 0.0).astype(np.float32))


def median_f0(waveform: FloatArray, sample_rate: int) -> float:
    """Median F0 in Hz over the voiced frames of a waveform (samples,); NaN when there are none."""
    track = f0(waveform, sample_rate, sample_rate // 100)
    voiced = track[track > 0.0]
    return float(np.median(voiced)) if voiced.size else float("nan")


def _periods(
    frames_TN: FloatArray, windows_TN: FloatArray, moving_TL: FloatArray, shortest: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Period in samples and depth of its dip (0: periodic, 1: aperiodic), each (frames,).

    `windows_TN`: the beginnings of the frames that are compared with later parts, zeros behind.
    `moving_TL`: energy of such a part at each of L lags.
    """
    size, longest = frames_TN.shape[1], moving_TL.shape[1]
    spectrum = scipy.fft.rfft(frames_TN)
    spectrum *= np.conj(scipy.fft.rfft(windows_TN))
    correlation = scipy.fft.irfft(spectrum, size, overwrite_x=True)
    difference = np.maximum(moving_TL[:, :1] + moving_TL - 2 * correlation[:, :longest], 0.0)  # equation 6
    mean = np.cumsum(difference[:, 1:], axis=1) / np.arange(1, longest, dtype=np.float32)
    normalised = np.ones_like(difference)
    normalised[:, 1:] = difference[:, 1:] / np.maximum(mean, 1e-12)  # equation 8
    inner = normalised[:, shortest:-1]
    dips = (inner <= normalised[:, shortest - 1 : -2]) & (inner < normalised[:, shortest + 1 :])
    deep = dips & (inner < _THRESHOLD)
    lag = np.where(deep.any(axis=1), deep.argmax(axis=1), np.where(dips, inner, np.inf).argmin(axis=1)) + shortest
    rows = np.arange(len(frames_TN))
    left, depth, right = (normalised[rows, lag + step] for step in (-1, 0, 1))
    curvature = left - 2 * depth + right
    shift = np.where(curvature > 0, 0.5 * (left - right) / np.maximum(curvature, 1e-12), 0.0)
    return (lag + np.clip(shift, -1, 1)).astype(np.float32), depth.astype(np.float32)


def _steadied(track: FloatArray) -> FloatArray:
    """Median of the voiced among each five frames, where at least three are; else 0."""
    around = np.lib.stride_tricks.sliding_window_view(np.pad(track, 2), 5)
    counts = (around > 0).sum(axis=1)
    hertz = np.nan_to_num(np.nanmedian(np.where(around > 0, around, np.nan)[counts > 0], axis=1))
    steadied = np.zeros_like(track)
    steadied[counts > 0] = hertz
    return np.where((counts >= 3) & (track > 0), steadied, 0.0).astype(np.float32)
