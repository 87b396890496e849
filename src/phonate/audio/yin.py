"""F0 by YIN (de Cheveigné and Kawahara 2002), for what was trained with it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from phonate.audio.decoding import FloatArray
from phonate.audio.settings import HIGHEST_F0

QUIET = 0.01
"""Frames 40 dB below the loudest are unvoiced, by either method."""
_LOWEST_YIN, _HIGHEST_YIN = 60.0, HIGHEST_F0["yin"]
_THRESHOLD = 0.15  # the first dip of the difference function below this is taken as the period
_UNVOICED = 0.35  # a frame whose deepest dip is above this is unvoiced
_FRAMES_PER_BLOCK = 256
_AROUND = 2  # frames on either side that the median takes


def yin_f0(waveform: FloatArray, sample_rate: int, hop_length: int) -> FloatArray:
    """`pitch.f0` of a whole waveform."""
    yin = _Yin(sample_rate, hop_length)
    padded = np.pad(waveform.astype(np.float32), (yin.span // 2, yin.size - yin.span // 2))
    track, loudness = yin(padded, 1 + len(waveform) // hop_length)
    return _steadied(np.where(loudness > QUIET * loudness.max(), track, 0.0).astype(np.float32))


class YinStream:
    """The same of a waveform that comes in blocks: a `pitch.F0Stream`."""

    def __init__(self, sample_rate: int, hop_length: int) -> None:
        self._yin = _Yin(sample_rate, hop_length)
        self._held = np.zeros(self._yin.span // 2, dtype=np.float32)
        self._track = np.zeros(2 * _AROUND, dtype=np.float32)  # the last frames, which the next ones' medians need
        self._missing = _AROUND  # frames before the first
        self._loudest = 0.0
        self._given = 0  # frames

    @property
    def samples_ahead(self) -> int:
        """Samples after a frame's centre that its pitch depends on."""
        return self._yin.span - self._yin.span // 2 + _AROUND * self._yin.hop_length

    def push(self, samples: FloatArray) -> FloatArray:
        """The pitch (frames,), maybe of none, of the frames that the next samples (n,) complete."""
        yin, held = self._yin, np.concatenate([self._held, samples.astype(np.float32, copy=False)])
        count = max(0, (len(held) - yin.span) // yin.hop_length + 1)
        if count == 0:
            self._held = held
            return np.zeros(0, dtype=np.float32)
        # One by one: rounding would depend on the size of the block, and phases add up what a pitch differs by.
        frames = (held[start : start + yin.span] for start in range(0, count * yin.hop_length, yin.hop_length))
        tracks = [yin(np.pad(frame, (0, yin.size - yin.span)), 1) for frame in frames]
        track, loudness = (np.concatenate(parts) for parts in zip(*tracks, strict=True))
        self._held = held[count * yin.hop_length :]
        loudest = np.maximum(np.maximum.accumulate(loudness), self._loudest)
        self._loudest = float(loudest[-1])
        return self._medians(np.where(loudness > QUIET * loudest, track, 0.0).astype(np.float32))

    def finish(self, frames: int) -> FloatArray:
        """The pitch of the last frames of a recording of so many: behind it there is silence."""
        # Silence of the length of a span completes every frame; those past the end count as unvoiced.
        before = self._given
        rest = self.push(np.zeros(self._yin.span + _AROUND * self._yin.hop_length, dtype=np.float32))
        return rest[: frames - before]

    def _medians(self, track: FloatArray) -> FloatArray:
        joined = np.concatenate([self._track, track])
        self._track = joined[-2 * _AROUND :]
        steadied = _steadied(joined)[_AROUND:-_AROUND]
        missing = min(self._missing, len(steadied))
        self._missing -= missing
        self._given += len(steadied) - missing
        return steadied[missing:]


class _Yin:
    """Period and loudness of frames that are `hop_length` apart, each of `span` samples."""

    def __init__(self, sample_rate: int, hop_length: int) -> None:
        self.sample_rate, self.hop_length = sample_rate, hop_length
        self.longest = int(sample_rate / _LOWEST_YIN) + 2
        self.shortest = max(2, int(sample_rate / _HIGHEST_YIN))
        self.window = int(1.5 * sample_rate / _LOWEST_YIN)
        self.span = self.window + self.longest
        import scipy.fft  # slow to import, and corpora whose pitch is cached do without

        # A length with a fast transform. The window stays inside it at every lag, so circular correlation is exact.
        self.size = scipy.fft.next_fast_len(self.span, real=True)

    def __call__(self, padded: FloatArray, count: int) -> tuple[FloatArray, FloatArray]:
        """Pitch in Hz, 0 where unvoiced, and loudness, each (count,), of samples that begin with the first frame's."""
        hop, span, window = self.hop_length, self.span, self.window
        energy = np.concatenate([[0.0], np.cumsum(np.square(padded, dtype=np.float64))])
        frames_TN = np.lib.stride_tricks.sliding_window_view(padded, self.size)[::hop][:count]
        loudness = np.sqrt((energy[span:] - energy[:-span])[::hop][:count] / span)
        moving = (energy[window:] - energy[:-window]).astype(np.float32)  # energy of the window that starts there
        moving_TL = np.lib.stride_tricks.sliding_window_view(moving, self.longest)[::hop][:count]
        lags, depths = np.empty((2, count), dtype=np.float32)
        windows_TN = np.zeros((min(count, _FRAMES_PER_BLOCK), self.size), dtype=np.float32)
        for start in range(0, count, _FRAMES_PER_BLOCK):
            block = slice(start, start + _FRAMES_PER_BLOCK)
            frames = frames_TN[block]
            windows_TN[: len(frames), :window] = frames[:, :window]
            lags[block], depths[block] = _periods(frames, windows_TN[: len(frames)], moving_TL[block], self.shortest)
        return np.where(depths < _UNVOICED, self.sample_rate / lags, 0.0).astype(np.float32), loudness


def _periods(
    frames_TN: FloatArray, windows_TN: FloatArray, moving_TL: FloatArray, shortest: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Period in samples and depth of its dip (0: periodic, 1: aperiodic), each (frames,).

    `windows_TN`: the beginnings of the frames that are compared with later parts, zeros behind.
    `moving_TL`: energy of such a part at each of L lags.
    """
    import scipy.fft

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
    silence = np.zeros(_AROUND, dtype=track.dtype)
    padded = np.concatenate((silence, track, silence))
    around = np.lib.stride_tricks.sliding_window_view(padded, 2 * _AROUND + 1)
    counts = (around > 0).sum(axis=1)
    voiced_first = np.sort(np.where(around > 0, around, np.inf), axis=1)
    rows = np.arange(len(track))
    # Of an even number, the mean of the two in the middle.
    low, high = voiced_first[rows, np.maximum(counts - 1, 0) // 2], voiced_first[rows, counts // 2]
    return np.where((counts >= 3) & (track > 0), 0.5 * (low + high), 0.0).astype(np.float32)
