"""Fundamental frequency (F0): by a small network (SwiftF0), or by YIN as in earlier versions.

Shapes: T frames, B bands, P pitches, C channels, N samples.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from phonate.audio.decoding import FloatArray
from phonate.audio.settings import HIGHEST_F0, F0Method

_QUIET = 0.01  # frames 40 dB below the loudest are unvoiced


def f0(waveform: FloatArray, sample_rate: int, hop_length: int, method: F0Method = "swift") -> FloatArray:
    """Fundamental frequency in Hz (1 + samples // hop_length,) of a waveform (samples,), at frames centred as the
    mel's; 0 in unvoiced frames."""
    if method == "yin":
        return _yin(waveform, sample_rate, hop_length)
    return _Swift(sample_rate, hop_length).track(waveform)


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
    return _YinStream(sample_rate, hop_length) if method == "yin" else _SwiftStream(sample_rate, hop_length)


# ------------------- SwiftF0 (Nieradzik 2025, MIT): a convolutional network over three log spectrograms

# Weights and licence are in one file, from scripts/make_f0_network.py.

_FILE = Path(__file__).with_name("swift_f0.safetensors")
_FIRST_HZ, _BANDS, _PITCHES = 46.875, 128, 95
_STEP = float((2093.75 / _FIRST_HZ) ** (1 / (_PITCHES - 1)))
_LOG_HZ = np.log(_FIRST_HZ) + np.log(_STEP) * np.arange(_PITCHES)
_LOG_HZ = _LOG_HZ[np.log(HIGHEST_F0["swift"]) > _LOG_HZ]
_PER_STEP, _AT_MOST = 0.5, 4.0
"""What a change of pitch costs by the step of 0.7 semitones, and at most, in log probabilities, so that no frame is an
octave off its neighbours. Chosen on other recordings than benchmarks/pitch.py reports."""
_JUMPS = np.minimum(_PER_STEP * np.abs(np.subtract.outer(range(len(_LOG_HZ)), range(len(_LOG_HZ)))), _AT_MOST)
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
_WINDOWS = (0.064, 0.128, 0.032)
"""Seconds, of the three spectrograms."""
_TRAINED_RATE = 16000
_DILATION = (1, 1, 1, 17, 17, 27, 27, 40, 40, 48, 48, 2, 2, 1, 1)
"""Of the filters of each layer, along the bands: distances of harmonics."""
_CONTEXT = 7
"""Frames on either side that a frame's pitch depends on."""
_PEAK = 0.9
"""Where the waveform should peak: of quiet ones the network hears less."""
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


class _Swift:
    """The network, for frames of a waveform at its own rate, `hop_length` apart. It was trained on 16 kHz and frames of
    16 ms; its spectra are the same at other rates, and from frames that are closer it is no less exact."""

    def __init__(self, sample_rate: int, hop_length: int) -> None:
        import scipy.fft  # slow to import, and corpora whose pitch is cached do without

        self._rfft = scipy.fft.rfft
        self.rate, self.hop = sample_rate, hop_length
        self.sizes = [2 * round(seconds * sample_rate / 2) for seconds in _WINDOWS]
        self.half = max(self.sizes) // 2
        """Samples before and after a frame's centre that its spectra are of."""

    def track(self, waveform: FloatArray) -> FloatArray:
        """F0 (T,) of a whole recording (N,)."""
        count = 1 + len(waveform) // self.hop
        peak = float(np.abs(waveform).max(initial=0.0))
        if peak < _SILENT:
            return np.zeros(count, dtype=np.float32)
        padded = np.pad(waveform.astype(np.float32) * np.float32(_PEAK / peak), self.half)
        loudness = self.loudness(padded, count)
        parts = []
        lows_T = np.empty(count, dtype=np.float32)
        for start in range(0, count, _FRAMES_AT_ONCE):
            stop = min(start + _FRAMES_AT_ONCE, count)
            first, last = max(0, start - _CONTEXT), min(count, stop + _CONTEXT)
            spectra = self.spectra(padded[first * self.hop :], last - first)
            logits, voicing = _network(spectra, begins=first == 0, ends=last == count)
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
        track = _hertz(logits_PT, path_PT.argmax(axis=0))
        voiced = (voicing_T > least) & (loudness > _QUIET * loudness.max())
        voiced = _without_short(voiced, round(_SHORTEST_SECONDS * self.rate / self.hop))
        return np.where(voiced, track, 0.0).astype(np.float32)

    def spectra(self, padded: FloatArray, count: int) -> FloatArray:
        """(3, B, T) log magnitudes of `count` frames of samples that begin `half` before the first frame's centre."""
        out_3BT = np.empty((len(self.sizes), _BANDS, count), dtype=np.float32)
        for log_BT, size in zip(out_3BT, self.sizes, strict=True):
            frames_TN = np.lib.stride_tricks.sliding_window_view(padded[self.half - size // 2 :], size)
            windowed_TN = frames_TN[:: self.hop][:count] * _window(size, self.rate)
            magnitude_TF = np.abs(self._rfft(windowed_TN, axis=1, overwrite_x=True))
            np.log((magnitude_TF @ _filters(size, self.rate)).T + np.float32(1e-8), out=log_BT)
        return out_3BT

    def loudness(self, padded: FloatArray, count: int) -> FloatArray:
        """(T,) root mean square of the shortest window of each frame."""
        size = min(self.sizes)
        energy = np.cumsum(np.square(padded[self.half - size // 2 :], dtype=np.float64))
        energy = np.concatenate([[0.0], energy])
        starts = np.arange(count) * self.hop
        squares = np.maximum(energy[starts + size] - energy[starts], 0.0)
        return np.asarray(np.sqrt(squares / size), dtype=np.float32)


def _without_short(voiced_T: npt.NDArray[np.bool_], least: int) -> npt.NDArray[np.bool_]:
    """Without the runs of fewer than `least` frames."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], voiced_T, [False]]).astype(np.int8)))
    kept_T = np.zeros_like(voiced_T)
    for start, end in edges.reshape(-1, 2):
        kept_T[start:end] = end - start >= least
    return kept_T


class _SwiftStream:
    """`_Swift` with no more than `_AHEAD` seconds after a frame."""

    def __init__(self, sample_rate: int, hop_length: int) -> None:
        self._swift = _Swift(sample_rate, hop_length)
        self._ahead = round(_AHEAD * sample_rate)
        self._held = np.zeros(self._swift.half, dtype=np.float32)  # from `half` before the next frame's centre on
        self._spectra = np.zeros((len(_WINDOWS), _BANDS, 0), dtype=np.float32)
        """(3, B, 0 to 7), of the frames before the next one."""
        self._given = 0  # frames
        self._loudest, self._peak = 0.0, _STREAM_PEAK
        self._lows, self._loud = 0.0, 0
        """Of the loud frames, the sum of `_lows`, and how many there are."""
        self._counts = np.zeros(len(_LOG_HZ), dtype=np.float32)

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
        self._spectra = spectra[:, :, max(0, earlier + 1 - _CONTEXT) : earlier + 1]
        begins = earlier == self._given
        self._given += 1
        loudness = float(swift.loudness(samples, 1)[0])
        self._loudest = max(self._loudest, loudness)
        if loudness <= max(_QUIET * self._loudest, _SILENT):
            return 0.0
        logits, voicing = _network(spectra + np.float32(np.log(_PEAK / self._peak)), begins, ends=True)
        own = slice(earlier, earlier + 1) if begins else slice(1)
        if loudness >= _LOUD * self._loudest:
            self._lows, self._loud = self._lows + float(_lows(spectra[:, :, earlier : earlier + 1])[0]), self._loud + 1
        self._counts += _distribution(logits[:, own], voicing[own])[:, 0]
        if voicing[own][0] <= _STREAM_THRESHOLD:
            return 0.0
        likely = logits[:, own]
        if self._lows < _NO_LOWS * self._loud:
            likely = likely + _habit(self._counts)[:, None]
        return float(_hertz(logits[:, own], likely.argmax(axis=0))[0])


def _network(spectra_3BT: FloatArray, begins: bool, ends: bool) -> tuple[FloatArray, FloatArray]:
    """Logits of pitches (P, T') and of voicing (T',) of log spectra (3, B, T). Where the recording neither `begins`
    nor `ends`, the first and the last seven frames are context, and have no pitch of their own."""
    around = (int(begins), int(ends))

    def inner(values: FloatArray, frames: int) -> FloatArray:
        return values[..., 0 if begins else frames : values.shape[-1] - (0 if ends else frames)]

    hidden = _rectified(_convolved(spectra_3BT, 0, around))
    for layer in range(1, 13, 2):
        out = _convolved(_rectified(_convolved(hidden, layer, around)), layer + 1, around)
        out += inner(hidden, 2 if layer in (1, 11) else 0)
        hidden = _rectified(out)
    hidden = _rectified(_convolved(np.ascontiguousarray(hidden[:, : _PITCHES + 1]), 13, around))
    weight, bias = _layers()[15]
    logits_PT = np.tensordot(weight[0, :, 0, 0], hidden, 1) + bias
    facts_CT = np.concatenate([_convolved(hidden, 14, around).max(axis=1), inner(spectra_3BT.mean((0, 1))[None], 6)])
    weight, bias = _layers()[16]
    facts_CT = np.pad(facts_CT, ((0, 0), around))
    count = facts_CT.shape[1] - 2
    facts_CT = np.stack([weight[:, :, tap] @ facts_CT[:, tap : tap + count] for tap in range(3)]).sum(0) + bias[:, None]
    weight, bias = _layers()[17]
    voicing_T = weight[0, :, 0] @ _rectified(facts_CT) + bias
    return inner(logits_PT, 1)[: len(_LOG_HZ)], voicing_T


def _emissions(logits_PT: FloatArray, voicing_T: FloatArray) -> FloatArray:
    """(P, T) log probabilities of pitches, near 0 where there is hardly a voice."""
    log_PT = logits_PT - logits_PT.max(axis=0)
    log_PT -= np.log(np.exp(log_PT).sum(axis=0))
    return np.asarray(log_PT / (1.0 + np.exp(-voicing_T)), dtype=np.float32)


def _lows(spectra_3BT: FloatArray) -> FloatArray:
    """(T,) how much stronger the strongest band under `_LOWS_HZ` is than the strongest above, in logarithms."""
    sharpest_BT, low = spectra_3BT[1], int(np.log(_LOWS_HZ / _FIRST_HZ) / np.log(_STEP)) + 1
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


def _hertz(logits_PT: FloatArray, best_T: npt.NDArray[np.intp]) -> FloatArray:
    """(T,) Hz, between pitch number `best_T` and its neighbours."""
    around_3T = np.clip(best_T + np.array([[-1], [0], [1]]), 0, len(logits_PT) - 1)
    share_3T = np.take_along_axis(logits_PT, around_3T, axis=0)
    share_3T = np.exp(share_3T - share_3T.max(axis=0))
    hertz_T = np.exp((share_3T * _LOG_HZ[around_3T]).sum(axis=0) / share_3T.sum(axis=0))
    return np.asarray(hertz_T, dtype=np.float32)


def _convolved(values_CBT: FloatArray, layer: int, around: tuple[int, int]) -> FloatArray:
    """The convolution of a layer. Along the bands there are zeros beyond both ends, in time so many as `around` says.

    All taps are one matrix product, whose parts are shifted and summed: faster than copies of shifted values.
    """
    weight, bias = _layers()[layer]
    taps, bands, dilation = weight.shape[2], values_CBT.shape[1], _DILATION[layer]
    below = 1 if layer == 13 else dilation * (taps // 2)
    out_bands = _PITCHES if layer == 13 else bands
    if weight.shape[3] == 3:  # filters are symmetric in time
        values_CBT = np.pad(values_CBT, ((0, 0), (0, 0), around))
        values_CBT = np.concatenate([values_CBT[..., :-2] + values_CBT[..., 2:], values_CBT[..., 1:-1]])
    frames = values_CBT.shape[2]
    parts = (_stacked(layer) @ values_CBT.reshape(len(values_CBT), -1)).reshape(taps, len(bias), bands, frames)
    out_CBT = np.empty((len(bias), out_bands, frames), dtype=np.float32)
    out_CBT[:] = bias[:, None, None]
    for tap, part_CBT in enumerate(parts):
        shift = tap * dilation - below
        first, last = max(0, -shift), min(out_bands, bands - shift)
        out_CBT[:, first:last] += part_CBT[:, first + shift : last + shift]
    return out_CBT


def _rectified(values: FloatArray) -> FloatArray:
    np.maximum(values, 0.0, out=values)
    return values


@cache
def _layers() -> list[tuple[FloatArray, FloatArray]]:
    """Weight and bias of each layer."""
    from safetensors.numpy import load_file

    tensors = load_file(_FILE)
    return [(tensors[f"{layer:02d}.weight"], tensors[f"{layer:02d}.bias"]) for layer in range(len(tensors) // 2)]


@cache
def _stacked(layer: int) -> FloatArray:
    """The filters of a layer (taps * C out, C in), those for the sum of the frames before and after first."""
    weight = _layers()[layer][0]
    weight = weight[..., :2] if weight.shape[3] == 3 else weight
    return np.ascontiguousarray(weight.transpose(2, 0, 3, 1).reshape(weight.shape[2] * len(weight), -1))


@cache
def _window(size: int, rate: int) -> FloatArray:
    """Hann's window, as strong as of as many seconds at the rate of training."""
    window = 0.5 - 0.5 * np.cos(2.0 * np.pi * np.arange(size) / size)
    return (window * (_TRAINED_RATE / rate)).astype(np.float32)


@cache
def _filters(size: int, rate: int) -> FloatArray:
    """(bins, B) triangles between the bands' neighbours, with the sum 1; of bands without a bin, the nearest one."""
    hertz = np.arange(size // 2 + 1) * (rate / size)
    edges = _FIRST_HZ * _STEP ** np.arange(-1, _BANDS + 1)
    filters = np.zeros((len(hertz), _BANDS))
    for band, (low, middle, high) in enumerate(zip(edges, edges[1:], edges[2:], strict=False)):
        filters[:, band] = np.minimum((hertz - low) / (middle - low), (high - hertz) / (high - middle)).clip(0.0)
        if not filters[:, band].any() and middle <= rate / 2:
            filters[np.abs(hertz - middle).argmin(), band] = 1.0
    return np.asarray(filters / np.maximum(filters.sum(axis=0), 1e-9), dtype=np.float32)


# ------------------------------- YIN (de Cheveigné and Kawahara 2002), for what was trained with it

_LOWEST_YIN, _HIGHEST_YIN = 60.0, HIGHEST_F0["yin"]
_THRESHOLD = 0.15  # the first dip of the difference function below this is taken as the period
_UNVOICED = 0.35  # a frame whose deepest dip is above this is unvoiced
_FRAMES_PER_BLOCK = 256
_AROUND = 2  # frames on either side that the median takes


def _yin(waveform: FloatArray, sample_rate: int, hop_length: int) -> FloatArray:
    yin = _Yin(sample_rate, hop_length)
    padded = np.pad(waveform.astype(np.float32), (yin.span // 2, yin.size - yin.span // 2))
    track, loudness = yin(padded, 1 + len(waveform) // hop_length)
    return _steadied(np.where(loudness > _QUIET * loudness.max(), track, 0.0).astype(np.float32))


class _YinStream:
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
        return self._medians(np.where(loudness > _QUIET * loudest, track, 0.0).astype(np.float32))

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
