"""Fundamental frequency (F0): by a small network (SwiftF0), or by YIN as in earlier versions.

Shapes: T frames, B bands, P pitches, N samples.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from phonate.audio.decoding import FloatArray
from phonate.audio.settings import F0Method
from phonate.audio.swift_f0 import BANDS, CONTEXT, FIRST_HZ, LOG_HZ, PEAK, STEP, Spectrograms, hertz, network
from phonate.audio.yin import YinStream, yin_f0

_QUIET = 0.01  # frames 40 dB below the loudest are unvoiced


def f0(waveform: FloatArray, sample_rate: int, hop_length: int, method: F0Method = "swift") -> FloatArray:
    """Fundamental frequency in Hz (1 + samples // hop_length,) of a waveform (samples,), at frames centred as the
    mel's; 0 in unvoiced frames."""
    if method == "yin":
        return yin_f0(waveform, sample_rate, hop_length)
    return _swift_f0(waveform, sample_rate, hop_length)


def median_f0(waveform: FloatArray, sample_rate: int) -> float:
    """Median F0 in Hz over the voiced frames of a waveform (samples,); NaN when there are none."""
    track = f0(waveform, sample_rate, sample_rate // 100)
    voiced = track[track > 0.0]
    return float(np.median(voiced)) if voiced.size else float("nan")


def voice_f0(waveforms: Iterable[FloatArray], sample_rate: int) -> float:
    """Median over recordings (samples,) of their `median_f0` in Hz; NaN where none is voiced."""
    voiced = [one for one in (median_f0(waveform, sample_rate) for waveform in waveforms) if one > 0.0]
    return float(np.median(voiced)) if voiced else float("nan")


class F0Stream(Protocol):
    """`f0` of a waveform that comes in blocks. Levels are in comparison with the loudest so far."""

    @property
    def samples_ahead(self) -> int:
        """Samples after a frame's centre that its pitch depends on."""

    def push(self, samples: FloatArray) -> FloatArray:
        """The pitch (frames,), maybe of none, of the frames that the next samples (n,) complete."""

    def finish(self, frames: int) -> FloatArray:
        """The pitch of the last frames of a recording of so many: behind it there is silence."""


def f0_stream(sample_rate: int, hop_length: int, method: F0Method = "swift") -> F0Stream:
    """A stream for frames `hop_length` apart."""
    return YinStream(sample_rate, hop_length) if method == "yin" else _SwiftStream(sample_rate, hop_length)


# ------------------- From what the network says to one pitch a frame

_PER_STEP, _AT_MOST = 0.5, 4.0
"""What a change of pitch costs by the step of 0.7 semitones, and at most, in log probabilities, so that no frame is an
octave off its neighbours. Chosen on other recordings than benchmarks/pitch.py reports."""
_JUMPS = np.minimum(_PER_STEP * np.abs(np.subtract.outer(range(len(LOG_HZ)), range(len(LOG_HZ)))), _AT_MOST)
_JUMPS = _JUMPS.astype(np.float32)
_LOWS_HZ, _NO_LOWS = 250.0, -4.2
"""Where the strongest band under so many Hz is weaker than the strongest above by more than this, in natural
logarithms, the sound came through a band filter. Recordings as they are have -1.3 at least, of telephones 0 to -3.3,
behind filters that leave nothing under 300 Hz -5 at most."""
_HABIT, _HABIT_WIDTH, _HABIT_LEAST, _SURE = 2.0, 4.0, 3.0, 1.0
"""Then a pitch whose harmonics are even ones of another is hardly told from it, and frames in doubt take the pitches
of those that are not: the weight of these, the width in steps and the least logarithm of their distribution, and the
voicing of frames that count by half. Chosen on other recordings than benchmarks/pitch.py reports."""
_NARROW_THRESHOLD = 0.15
"""What is voiced then: below, pitches are often an octave off."""
_LOUD, _FEWEST = 0.1, 0.2
"""Share of the loudest that counts as loud; frames of which there is no habit yet."""
_SILENT = 1e-5
_SHORTEST_SECONDS = 0.04
"""Of a whole recording, shorter stretches have no pitch: noise has some of 20 ms."""
_FRAMES_AT_ONCE = 64

_AHEAD = 0.046
"""Seconds after a frame's centre that are used in a stream: live conversion waits no longer for other reasons. The rest
of the windows is filled with zeros, and so are those of `_PARTIAL` frames more. Fewer frames seem voiced then, so the
threshold is lower."""
_PARTIAL = 3
_STREAM_THRESHOLD = -0.5
_STREAM_PEAK = 0.1
"""What a stream is expected to peak at, at least."""


def _swift_f0(waveform: FloatArray, sample_rate: int, hop_length: int) -> FloatArray:
    """F0 (T,) of a whole recording (N,)."""
    grams = Spectrograms(sample_rate, hop_length)
    count = 1 + len(waveform) // hop_length
    peak = float(np.abs(waveform).max(initial=0.0))
    if peak < _SILENT:
        return np.zeros(count, dtype=np.float32)
    padded = np.pad(waveform.astype(np.float32) * np.float32(PEAK / peak), grams.half)
    loudness = grams.loudness(padded, count)
    parts = []
    lows_T = np.empty(count, dtype=np.float32)
    for start in range(0, count, _FRAMES_AT_ONCE):
        stop = min(start + _FRAMES_AT_ONCE, count)
        first, last = max(0, start - CONTEXT), min(count, stop + CONTEXT)
        spectra = grams.spectra(padded[first * hop_length :], last - first)
        logits, voicing = network(spectra, begins=first == 0, ends=last == count)
        offset = start - first if first == 0 else 0
        own = slice(offset, offset + stop - start)
        lows_T[start:stop] = _lows(spectra[:, :, start - first : stop - first])
        parts.append((logits[:, own], voicing[own]))
    logits_PT, voicing_T = (np.concatenate(part, axis=-1) for part in zip(*parts, strict=True))
    emissions_PT = _emissions(logits_PT, voicing_T)
    least = 0.0
    if np.median(lows_T[loudness >= _LOUD * loudness.max()]) < _NO_LOWS:
        least = _NARROW_THRESHOLD
        habit_P = _habit(_distribution(logits_PT, voicing_T).sum(axis=1))
        emissions_PT += habit_P[:, None] / (1.0 + np.exp(-voicing_T))
    path_PT = _scores(emissions_PT) + _scores(emissions_PT[:, ::-1])[:, ::-1] - emissions_PT
    track = hertz(logits_PT, path_PT.argmax(axis=0))
    voiced = (voicing_T > least) & (loudness > _QUIET * loudness.max())
    voiced = _without_short(voiced, round(_SHORTEST_SECONDS * sample_rate / hop_length))
    return np.where(voiced, track, 0.0).astype(np.float32)


def _without_short(voiced_T: npt.NDArray[np.bool_], least: int) -> npt.NDArray[np.bool_]:
    """Without the runs of fewer than `least` frames."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], voiced_T, [False]]).astype(np.int8)))
    kept_T = np.zeros_like(voiced_T)
    for start, end in edges.reshape(-1, 2):
        kept_T[start:end] = end - start >= least
    return kept_T


class _SwiftStream:
    """`_swift_f0` with no more than `_AHEAD` seconds after a frame."""

    def __init__(self, sample_rate: int, hop_length: int) -> None:
        self._swift = Spectrograms(sample_rate, hop_length)
        self._ahead = round(_AHEAD * sample_rate)
        self._held = np.zeros(self._swift.half, dtype=np.float32)  # from `half` before the next frame's centre on
        self._spectra = np.zeros((3, BANDS, 0), dtype=np.float32)
        """(3, B, 0 to 7), of the frames before the next one."""
        self._given = 0  # frames
        self._loudest, self._peak = 0.0, _STREAM_PEAK
        self._lows, self._loud = 0.0, 0
        """Of the loud frames, the sum of `_lows`, and how many there are."""
        self._counts = np.zeros(len(LOG_HZ), dtype=np.float32)

    @property
    def samples_ahead(self) -> int:
        """Samples after a frame's centre that its pitch depends on."""
        return self._ahead

    def push(self, samples: FloatArray) -> FloatArray:
        """The pitch (frames,), maybe of none, of the frames that the next samples (n,) complete."""
        swift = self._swift
        self._held = np.concatenate([self._held, samples.astype(np.float32, copy=False)])
        size, pitches = swift.half + self._ahead, []
        while len(self._held) >= size:  # one by one, so that a pitch does not depend on the blocks
            pitches.append(self._next(self._held[:size]))
            self._held = self._held[swift.hop :]
        return np.array(pitches, dtype=np.float32)

    def finish(self, frames: int) -> FloatArray:
        """The pitch of the last frames of a recording of so many: behind it there is silence."""
        before = self._given
        rest = self.push(np.zeros(self._ahead + self._swift.hop, dtype=np.float32))
        return rest[: frames - before]

    def _next(self, samples: FloatArray) -> float:
        swift = self._swift
        self._peak = max(self._peak, float(np.abs(samples).max()))
        spectra = swift.spectra(np.pad(samples, (0, swift.half - self._ahead + _PARTIAL * swift.hop)), 1 + _PARTIAL)
        earlier = self._spectra.shape[2]
        spectra = np.concatenate([self._spectra, spectra], axis=2)
        self._spectra = spectra[:, :, max(0, earlier + 1 - CONTEXT) : earlier + 1]
        begins = earlier == self._given
        self._given += 1
        loudness = float(swift.loudness(samples, 1)[0])
        self._loudest = max(self._loudest, loudness)
        if loudness <= max(_QUIET * self._loudest, _SILENT):
            return 0.0
        logits, voicing = network(spectra + np.float32(np.log(PEAK / self._peak)), begins, ends=True)
        own = slice(earlier, earlier + 1) if begins else slice(1)
        if loudness >= _LOUD * self._loudest:
            self._lows, self._loud = self._lows + float(_lows(spectra[:, :, earlier : earlier + 1])[0]), self._loud + 1
        self._counts += _distribution(logits[:, own], voicing[own])[:, 0]
        if voicing[own][0] <= _STREAM_THRESHOLD:
            return 0.0
        likely = logits[:, own]
        if self._lows < _NO_LOWS * self._loud:
            likely = likely + _habit(self._counts)[:, None]
        return float(hertz(logits[:, own], likely.argmax(axis=0))[0])


def _emissions(logits_PT: FloatArray, voicing_T: FloatArray) -> FloatArray:
    """(P, T) log probabilities of pitches, near 0 where there is hardly a voice."""
    log_PT = logits_PT - logits_PT.max(axis=0)
    log_PT -= np.log(np.exp(log_PT).sum(axis=0))
    return np.asarray(log_PT / (1.0 + np.exp(-voicing_T)), dtype=np.float32)


def _lows(spectra_3BT: FloatArray) -> FloatArray:
    """(T,) how much stronger the strongest band under `_LOWS_HZ` is than the strongest above, in logarithms."""
    sharpest_BT, low = spectra_3BT[1], int(np.log(_LOWS_HZ / FIRST_HZ) / np.log(STEP)) + 1
    return np.asarray(sharpest_BT[:low].max(axis=0) - sharpest_BT[low:].max(axis=0))


def _distribution(logits_PT: FloatArray, voicing_T: FloatArray) -> FloatArray:
    """(P, T) probabilities of pitches, weighted by how surely there is a voice."""
    shares_PT = np.exp(logits_PT - logits_PT.max(axis=0))
    return np.asarray(shares_PT / shares_PT.sum(axis=0) / (1.0 + np.exp(-2.0 * (voicing_T - _SURE))))


def _habit(counts_P: FloatArray) -> FloatArray:
    """(P,) log probabilities to be added to those of a frame: how usual pitches are among `counts_P`."""
    away_PP = np.subtract.outer(range(len(counts_P)), range(len(counts_P))) / _HABIT_WIDTH
    usual_P = np.exp(-0.5 * np.square(away_PP)) @ counts_P
    if usual_P.max() < _FEWEST:
        return np.zeros(len(counts_P), dtype=np.float32)
    return np.asarray(_HABIT * np.log(usual_P / usual_P.max() + np.exp(-_HABIT_LEAST)), dtype=np.float32)


def _scores(emissions_PT: FloatArray) -> FloatArray:
    """(P, T) of the likeliest path that ends in each pitch (Viterbi)."""
    scores_PT = emissions_PT.copy()
    for frame in range(1, emissions_PT.shape[1]):
        before_P = scores_PT[:, frame - 1]
        scores_PT[:, frame] += (before_P[:, None] - _JUMPS).max(axis=0) - before_P.max()
    return scores_PT
