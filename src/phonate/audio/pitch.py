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
from phonate.audio.yin import QUIET, YinStream, yin_f0


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
_STEPS = np.abs(np.subtract.outer(range(len(LOG_HZ)), range(len(LOG_HZ)))).astype(np.float32)
_JUMPS = np.minimum(_PER_STEP * _STEPS, _AT_MOST)
_LOWS_HZ, _NO_LOWS = 250.0, -4.2
"""Where the strongest band under so many Hz is weaker than the strongest above by more than this, in natural
logarithms, the sound came through a band filter. Recordings as they are have -1.3 at least, of telephones 0 to -3.3,
behind filters that leave nothing under 300 Hz -5 at most."""
_HABIT, _HABIT_WIDTH, _HABIT_LEAST, _SURE = 2.0, 4.0, 3.0, 1.0
"""Then a pitch whose harmonics are even ones of another is hardly told from it, and frames in doubt take the pitches
of those that are not: the weight of these, the width in steps and the least logarithm of their distribution, and the
voicing of frames that count by half. Chosen on other recordings than benchmarks/pitch.py reports."""
_NEAR = np.exp(-0.5 * np.square(_STEPS.astype(np.float64) / _HABIT_WIDTH))
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
_TILT, _NARROW_TILT = 0.5, 1.2
"""What an octave costs in a stream, in log probabilities: nearly all that is wrong there is too high. The second where
the sound has nothing under `_LOWS_HZ`, and until that is known. These and the next constants were chosen on other
recordings than benchmarks/pitch.py reports, and what each is good for is in its results."""
_ENOUGH, _NO_LOWS_HEARD = 4.0, -3.0
"""It is known when so many frames were surely voiced, and then this is `_NO_LOWS` of their mean power, where after four
seconds telephones have -2.8 at least and sharp filters -4.5 at most."""
_STREAM_JUMPS = np.minimum(0.3 * _STEPS, _AT_MOST)
_STREAM_HABIT, _STREAM_HABIT_LEAST = 0.5, 2.0
_USUAL_HZ, _USUAL_OCTAVES, _USUAL_FRAMES = 150.0, 0.6, 3.0
"""Mean and deviation of what is usual before anything was heard, and how many frames that counts as."""
_DOUBT, _TRUST = 0.7, 0.3
"""How much more voicing a pitch needs by the logarithm of how unusual it is, and how much less the most usual one."""
_OCTAVES = ((LOG_HZ - LOG_HZ[0]) / np.log(2.0)).astype(np.float32)


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
        lows_T[start:stop] = _lows(spectra[1, :, start - first : stop - first])
        parts.append((logits[:, own], voicing[own]))
    logits_PT, voicing_T = (np.concatenate(part, axis=-1) for part in zip(*parts, strict=True))
    emissions_PT = _emissions(logits_PT, voicing_T)
    least = 0.0
    if np.median(lows_T[loudness >= _LOUD * loudness.max()]) < _NO_LOWS:
        least = _NARROW_THRESHOLD
        usual_P = _usual(_distribution(logits_PT, voicing_T).sum(axis=1), _HABIT_LEAST)
        emissions_PT += _HABIT * usual_P[:, None] / (1.0 + np.exp(-voicing_T))
    path_PT = _scores(emissions_PT) + _scores(emissions_PT[:, ::-1])[:, ::-1] - emissions_PT
    track = hertz(logits_PT, path_PT.argmax(axis=0))
    voiced = (voicing_T > least) & (loudness > QUIET * loudness.max())
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
        self._power, self._sure = np.zeros(BANDS), 0.0
        """Sum of the spectra of frames so far, each as far as it is surely voiced; and of how far they are."""
        self._counts = _expected()
        self._scores = np.zeros(len(LOG_HZ), dtype=np.float32)
        """Of the likeliest paths to each pitch of the frame before."""

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
        if loudness <= max(QUIET * self._loudest, _SILENT):
            return 0.0
        logits_PT, voicing_T = network(spectra + np.float32(np.log(PEAK / self._peak)), begins, ends=True)
        own = earlier if begins else 0
        return self._decided(spectra[1, :, earlier], logits_PT[:, own:], voicing_T[own:])

    def _decided(self, spectrum_B: FloatArray, logits_PT: FloatArray, voicing_T: FloatArray) -> float:
        """The pitch of a frame, from what the network says of it and of the `_PARTIAL` ones after it."""
        sure = float(1.0 / (1.0 + np.exp(-2.0 * (voicing_T[0] - _SURE))))
        self._power, self._sure = self._power + sure * np.exp(2.0 * spectrum_B), self._sure + sure
        known = self._sure >= _ENOUGH
        narrow = not known or 0.5 * float(_lows(np.log(self._power))) < _NO_LOWS_HEARD
        prior_P = -(_NARROW_TILT if narrow else _TILT) * _OCTAVES
        self._counts += _distribution(logits_PT[:, :1] + prior_P[:, None], voicing_T[:1])[:, 0]
        threshold = _STREAM_THRESHOLD
        if narrow:
            usual_P = _usual(self._counts, _STREAM_HABIT_LEAST)
            best = self._on_path(logits_PT, voicing_T, prior_P + _STREAM_HABIT * usual_P)
            threshold -= (_TRUST + _DOUBT * float(usual_P[best])) if known else 0.0
        else:
            best = int((logits_PT[:, 0] + prior_P).argmax())
        return float(hertz(logits_PT[:, :1], np.array([best]))[0]) if voicing_T[0] > threshold else 0.0

    def _on_path(self, logits_PT: FloatArray, voicing_T: FloatArray, prior_P: FloatArray) -> int:
        """The pitch of the first of these frames on the likeliest path through those before and all of these."""
        emissions_PT = _emissions(logits_PT, voicing_T)
        emissions_PT += prior_P[:, None] / (1.0 + np.exp(-voicing_T))
        before_P = (self._scores - _STREAM_JUMPS).max(axis=1)
        self._scores = before_P - before_P.max() + emissions_PT[:, 0]
        return int((before_P + _scores(emissions_PT[:, ::-1], _STREAM_JUMPS)[:, -1]).argmax())


def _expected() -> FloatArray:
    """(P,) frames of each pitch that stand for speech before it was heard."""
    octaves_P = (LOG_HZ - np.log(_USUAL_HZ)) / np.log(2.0)
    shares_P = np.exp(-0.5 * np.square(octaves_P / _USUAL_OCTAVES))
    return np.asarray(_USUAL_FRAMES * shares_P / shares_P.sum(), dtype=np.float32)


def _emissions(logits_PT: FloatArray, voicing_T: FloatArray) -> FloatArray:
    """(P, T) log probabilities of pitches, near 0 where there is hardly a voice."""
    log_PT = logits_PT - logits_PT.max(axis=0)
    log_PT -= np.log(np.exp(log_PT).sum(axis=0))
    return np.asarray(log_PT / (1.0 + np.exp(-voicing_T)), dtype=np.float32)


def _lows(log_BT: FloatArray) -> FloatArray:
    """(T,) how much stronger the strongest band under `_LOWS_HZ` is than the strongest above, in logarithms."""
    low = int(np.log(_LOWS_HZ / FIRST_HZ) / np.log(STEP)) + 1
    return np.asarray(log_BT[:low].max(axis=0) - log_BT[low:].max(axis=0))


def _distribution(logits_PT: FloatArray, voicing_T: FloatArray) -> FloatArray:
    """(P, T) probabilities of pitches, weighted by how surely there is a voice."""
    shares_PT = np.exp(logits_PT - logits_PT.max(axis=0))
    return np.asarray(shares_PT / shares_PT.sum(axis=0) / (1.0 + np.exp(-2.0 * (voicing_T - _SURE))))


def _usual(counts_P: FloatArray, least: float) -> FloatArray:
    """(P,) logarithm of how usual pitches are among `counts_P`: about 0 for the most usual, -`least` at least."""
    usual_P = _NEAR @ counts_P
    if usual_P.max() < _FEWEST:
        return np.zeros(len(counts_P), dtype=np.float32)
    return np.asarray(np.log(usual_P / usual_P.max() + np.exp(-least)), dtype=np.float32)


def _scores(emissions_PT: FloatArray, jumps_PP: FloatArray = _JUMPS) -> FloatArray:
    """(P, T) of the likeliest path that ends in each pitch (Viterbi)."""
    scores_PT = emissions_PT.copy()
    for frame in range(1, emissions_PT.shape[1]):
        before_P = scores_PT[:, frame - 1]
        scores_PT[:, frame] += (before_P - jumps_PP).max(axis=1) - before_P.max()
    return scores_PT
