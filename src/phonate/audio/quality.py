"""Measures of recordings: level, clipping, silence, noise; statistics of a voice; a score for training a voice.

Shapes: N samples, T frames, F = 1025 frequencies, M = 128 mel bands.

The definitions are librosa's with its defaults (frames of 2048 samples, 512 apart, centred), over one spectrum for all
of them. Recordings are scored as if resampled to one rate. Resampling and a spectrum with four overlapping frames take
most of the time, and levels are rarely close to a threshold: so both are estimated first, and computed exactly only
where the estimate is not conclusive.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import numpy as np
import numpy.typing as npt

from phonate.audio.decoding import FloatArray, resample
from phonate.audio.fourier import rfft
from phonate.audio.mel_filters import mel_filters
from phonate.audio.pitch import f0

# ------------------------------------------------------- Loudness, as broadcasters measure it (EBU R128)

LOUDNESS_SECONDS = 0.4
"""Shorter recordings have no loudness: it is that of windows of this length."""
_INAUDIBLE = -70.0
"""What FFmpeg gives where all windows are under the gate of -70 LUFS."""


def loudness(blocks: Iterable[FloatArray], sample_rate: int) -> float | None:
    """The integrated loudness in LUFS, by FFmpeg's ebur128, of a recording in blocks (samples,).

    None where there is none: for silence, and for recordings under 0.4 s.
    """
    import av  # only those who ask for it wait for it

    graph = av.filter.Graph()
    source = graph.add_abuffer(sample_rate=sample_rate, format="flt", layout="mono", time_base=Fraction(1, sample_rate))
    meter, sink = graph.add("ebur128", "metadata=1:framelog=quiet"), graph.add("abuffersink")
    source.link_to(meter)
    meter.link_to(sink)
    graph.configure()
    count, value = 0, _INAUDIBLE

    def measured() -> Iterator[float]:
        while True:
            try:
                facts = graph.pull().metadata
            except (av.BlockingIOError, av.EOFError):
                return
            if "lavfi.r128.I" in facts:  # a last part of under 100 ms has none
                yield float(facts["lavfi.r128.I"])

    for block in blocks:
        if len(block):
            frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(block[None]), format="flt", layout="mono")
            frame.sample_rate, frame.pts, frame.time_base = sample_rate, count, Fraction(1, sample_rate)
            graph.push(frame)
            count += len(block)
            value = [value, *measured()][-1]
    graph.push(None)
    value = [value, *measured()][-1]
    return value if value > _INAUDIBLE and count >= LOUDNESS_SECONDS * sample_rate else None


# ------------- Measures of a recording's samples that validation uses: level, clipping, silence, noise

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
    checksum: int = 0
    """CRC-32 of the levels of all frames, which is made in no time beside one of the samples: copies have the same."""


def describe(waveform: npt.ArrayLike, sample_rate: int) -> AudioQuality:
    """The facts about a waveform (samples,). Takes what `read_audio` refuses, so that it can be said why."""
    samples = np.asarray(waveform, dtype=np.float32)
    duration, not_finite = len(samples) / sample_rate, 0
    extremes = _extremes(samples)
    if not math.isfinite(sum(extremes)):
        finite = samples[np.isfinite(samples)]
        not_finite, samples, extremes = len(samples) - len(finite), finite, _extremes(finite)
    if samples.size == 0:
        return AudioQuality(duration, 0.0, 0.0, 0.0, 0.0, 1.0, not_finite)
    loudness = _loudness(samples, sample_rate)
    silent = _silent(loudness)
    leading, longest, trailing = _silences(silent)
    peak = max(extremes)
    return AudioQuality(
        duration=duration,
        peak=peak,
        rms=math.sqrt(float(np.dot(samples, samples)) / len(samples)),
        dc_offset=float(np.add.reduce(samples)) / len(samples),
        clipping_share=_clipping_share(samples, peak, extremes),
        silence_share=np.count_nonzero(silent) / len(silent),
        not_finite=not_finite,
        leading_silence=leading * _FRAME_SECONDS,
        trailing_silence=trailing * _FRAME_SECONDS,
        longest_pause=longest * _FRAME_SECONDS,
        noise_db=_noise_db(loudness),
        checksum=zlib.crc32(loudness.data),
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
        clipped += _clipping_share(finite, peak, _extremes(finite)) * len(finite)
        total += float(finite.sum(dtype=np.float64))
        squares += float(np.square(finite, dtype=np.float64).sum())
        rest = np.concatenate([rest, finite])
        if len(rest) >= size:
            loudness.append(_loudness(rest, sample_rate))
            rest = rest[len(rest) // size * size :]
    count = samples - not_finite
    if not count:
        return AudioQuality(samples / sample_rate, 0.0, 0.0, 0.0, 0.0, 1.0, not_finite)
    frames = np.concatenate(loudness or [_loudness(rest, sample_rate)])
    leading, longest, trailing = _silences(_silent(frames))
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
        checksum=zlib.crc32(frames.data),
    )


def _extremes(samples: npt.NDArray[np.float32]) -> tuple[float, float]:
    """How far the samples reach above 0, and below it."""
    return float(samples.max(initial=0.0)), -float(samples.min(initial=0.0))


def _clipping_share(samples: npt.NDArray[np.float32], peak: float, extremes: tuple[float, float]) -> float:
    if peak < _QUIETEST_CLIPPING:
        return 0.0
    clipped, least = 0, np.float32(_FULL * peak)
    for sign, reached in zip((1, -1), extremes, strict=True):
        if reached < least:  # as one of the two nearly always
            continue
        at = np.flatnonzero(samples >= least if sign > 0 else samples <= -least)
        if len(at) >= _CLIPPED_RUN:
            runs = np.diff(np.flatnonzero(np.diff(at, prepend=-2, append=at[-1] + 2) != 1))
            clipped += int(runs[runs >= _CLIPPED_RUN].sum())
    return clipped / len(samples)


def _loudness(samples: npt.NDArray[np.float32], sample_rate: int) -> npt.NDArray[np.float64]:
    """(frames,) root mean square of each 20 ms."""
    size = min(len(samples), max(1, int(_FRAME_SECONDS * sample_rate)))
    frames = samples[: len(samples) // size * size].reshape(-1, size)
    return np.asarray(np.sqrt(np.vecdot(frames, frames) / np.float64(size)))


def _silent(loudness: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """(frames,) which are silent; all are in digital silence."""
    return np.asarray(loudness <= loudness.max() * 10.0 ** (_SILENT_DB / 20.0))


def _silences(silent: npt.NDArray[np.bool_]) -> tuple[int, int, int]:
    """Silent frames at the beginning, in the longest pause, and at the end; none where all are silent."""
    sounding = np.flatnonzero(~silent)
    if not len(sounding):
        return 0, 0, 0
    longest = int((sounding[1:] - sounding[:-1]).max(initial=1)) - 1
    return int(sounding[0]), longest, len(silent) - 1 - int(sounding[-1])


def _noise_db(loudness: npt.NDArray[np.float64]) -> float:
    # not by np.quantile, which imports numpy.ma for it
    ordered = np.sort(loudness)
    quiet, loud = (_between(ordered, share * (len(ordered) - 1)) for share in (0.1, 0.9))
    return float(20.0 * np.log10(max(quiet / loud, 1e-6))) if loud > 0.0 else -120.0


def _between(values: npt.NDArray[np.float64], at: float) -> float:
    """The value at a place between two."""
    below, above = values[int(at) : int(at) + 2][[0, -1]].tolist()
    return float(below + (above - below) * (at - int(at)))


N_FFT, HOP = 2048, 512
# ------------------------- Summary statistics of a voice recording: timbre, pitch, spectrum and energy

N_MFCC = 13
N_MELS = 128
_ROLLOFF = 0.85
_FLOOR = 1e-10
_RANGE_DB = 80.0
_ZERO = 1e-10  # librosa's threshold for zero crossings
_FRAMES_PER_BLOCK = 32  # fits into the CPU cache
_PITCH_HOP_SECONDS = 0.01


@dataclass(frozen=True)
class VoiceFeatures:
    """Statistics over the frames of one recording. Pitch is None where there is no voice."""

    duration: float
    """Seconds."""
    frames: int
    """Frames over which all statistics but pitch are taken."""
    mfcc_mean: tuple[float, ...]
    """Mean of each of 13 mel-frequency cepstral coefficients."""
    mfcc_std: tuple[float, ...]
    voiced_frames: int
    """Frames of 10 ms that have a pitch."""
    pitch_mean: float | None
    """Hz, over voiced frames."""
    pitch_std: float | None
    pitch_min: float | None
    pitch_max: float | None
    spectral_centroid: float
    """Mean over frames of the mean frequency, weighted by magnitude, in Hz."""
    spectral_centroid_std: float
    spectral_rolloff: float
    """Mean of the frequency under which 85 % of the magnitude lies, in Hz."""
    zero_crossing_rate: float
    """Share of neighbouring samples that differ in sign."""
    rms: float
    """Mean over frames of the root mean square, in units of full scale."""
    rms_std: float


def voice_features(waveform: FloatArray, sample_rate: int) -> VoiceFeatures:
    """The features of a waveform (N,), at least one sample."""
    magnitude_TF = magnitudes(waveform)
    centroid_T = centroids(magnitude_TF, sample_rate)
    mfcc_TC = mfcc(magnitude_TF, sample_rate)
    rms_T = _rms(waveform)
    pitch = f0(waveform, sample_rate, round(_PITCH_HOP_SECONDS * sample_rate))
    voiced = pitch[pitch > 0.0]
    has_voice = voiced.size > 0
    return VoiceFeatures(
        duration=len(waveform) / sample_rate,
        frames=len(magnitude_TF),
        mfcc_mean=tuple(mfcc_TC.mean(axis=0).tolist()),
        mfcc_std=tuple(mfcc_TC.std(axis=0).tolist()),
        voiced_frames=int(voiced.size),
        pitch_mean=float(voiced.mean()) if has_voice else None,
        pitch_std=float(voiced.std()) if has_voice else None,
        pitch_min=float(voiced.min()) if has_voice else None,
        pitch_max=float(voiced.max()) if has_voice else None,
        spectral_centroid=float(centroid_T.mean()),
        spectral_centroid_std=float(centroid_T.std()),
        spectral_rolloff=float(_rolloffs(magnitude_TF, sample_rate).mean()),
        zero_crossing_rate=float(_crossing_rates(waveform).mean()),
        rms=float(rms_T.mean()),
        rms_std=float(rms_T.std()),
    )


def magnitudes(waveform: FloatArray) -> FloatArray:
    """(T, F) magnitudes of the short-time Fourier transform, T = 1 + N // 512, with silence beyond both ends."""
    frames_TN = _frames(np.pad(waveform, N_FFT // 2))
    magnitude_TF = np.empty((len(frames_TN), N_FFT // 2 + 1), dtype=np.float32)
    windowed = np.empty((_FRAMES_PER_BLOCK, N_FFT), dtype=np.float32)
    for start in range(0, len(frames_TN), _FRAMES_PER_BLOCK):
        block = frames_TN[start : start + _FRAMES_PER_BLOCK]
        part = np.multiply(block, hann(N_FFT), out=windowed[: len(block)])
        np.abs(rfft(part), out=magnitude_TF[start : start + len(block)])
    return magnitude_TF


def centroids(magnitude_TF: FloatArray, sample_rate: int) -> FloatArray:
    """(T,) mean frequency of each frame, weighted by magnitude, in Hz; 0 in digital silence."""
    moment_T = magnitude_TF @ _frequencies(sample_rate)
    return np.asarray(moment_T / np.maximum(magnitude_TF.sum(axis=1), np.finfo(np.float32).tiny), dtype=np.float32)


def mfcc(magnitude_TF: FloatArray, sample_rate: int) -> FloatArray:
    """(T, 13) mel-frequency cepstral coefficients: the cosine transform of 128 mel bands in dB, at most 80 under the
    loudest."""
    import scipy.fft

    decibels_TM = mel_decibels(magnitude_TF, sample_rate)
    return np.asarray(scipy.fft.dct(decibels_TM, type=2, norm="ortho", axis=1)[:, :N_MFCC], dtype=np.float32)


def mel_decibels(magnitude_TF: FloatArray, sample_rate: int) -> FloatArray:
    """(T, 128) power in mel bands from 0 Hz to half the sample rate, in dB, at most 80 under the loudest."""
    power_TM = np.square(magnitude_TF) @ _mel(sample_rate)
    decibels_TM = 10.0 * np.log10(np.maximum(power_TM, _FLOOR))
    return np.asarray(np.maximum(decibels_TM, decibels_TM.max() - _RANGE_DB), dtype=np.float32)


def envelopes(mfcc_RC: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """(R, 128) the mel bands in dB that coefficients (R, 13) stand for: the inverse of `mfcc`'s cosine transform. The
    coefficients that `mfcc` leaves out are the finer ripple, which is missing here."""
    import scipy.fft

    return np.asarray(scipy.fft.idct(np.asarray(mfcc_RC, np.float64), type=2, norm="ortho", axis=-1, n=N_MELS))


def _rolloffs(magnitude_TF: FloatArray, sample_rate: int) -> FloatArray:
    """(T,) Hz."""
    below_TF = np.cumsum(magnitude_TF, axis=1)
    first_T = (below_TF >= _ROLLOFF * below_TF[:, -1:]).argmax(axis=1)
    return np.asarray(_frequencies(sample_rate)[first_T])


def _rms(waveform: FloatArray) -> FloatArray:
    """(T,) root mean square of each frame."""
    frames_TN = _frames(np.pad(waveform, N_FFT // 2))
    return np.asarray(np.sqrt(np.einsum("tn,tn->t", frames_TN, frames_TN) / N_FFT))


def _crossing_rates(waveform: FloatArray) -> FloatArray:
    """(T,) share of the samples of each frame that differ in sign from the one before; ends are held on."""
    held = np.pad(waveform, N_FFT // 2, mode="edge")
    negative = held < -_ZERO
    until = np.concatenate([[0], np.cumsum(negative[1:] != negative[:-1])])
    starts = np.arange(0, len(held) - N_FFT + 1, HOP)
    return np.asarray((until[starts + N_FFT - 1] - until[starts]) / N_FFT, dtype=np.float32)


def _frames(padded: FloatArray) -> FloatArray:
    """(T, N_FFT) a view of overlapping frames."""
    return np.lib.stride_tricks.sliding_window_view(padded, N_FFT)[::HOP]


@cache
def hann(size: int) -> FloatArray:
    """(size,) Hann's window, periodic."""
    return (0.5 - 0.5 * np.cos(2.0 * np.pi * np.arange(size) / size)).astype(np.float32)


@cache
def _frequencies(sample_rate: int) -> FloatArray:
    """(F,) Hz."""
    return np.fft.rfftfreq(N_FFT, 1.0 / sample_rate).astype(np.float32)


@cache
def _mel(sample_rate: int) -> FloatArray:
    """(F, M)."""
    return np.ascontiguousarray(mel_filters(sample_rate, N_FFT, N_MELS, 0.0, sample_rate / 2).T)


# -------- Quality score of a recording for training a voice, fast enough for tens of thousands of them

QUIET_RMS = 0.01
CLIPPED_PEAK = 0.99
DULL_HZ = 1000.0
SHORT_SECONDS = 3.0

_SCORE_FRAME_SECONDS = 0.1
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
    return VoiceLevels(_frame_rms(waveform), peak, centroid)


def _estimate(waveform: FloatArray, sample_rate: int, judged_rate: int) -> VoiceLevels:
    """From frames of about 0.1 s with half an overlap, at the recording's own rate, up to the highest frequency that is
    left at the other."""
    size = 1 << round(math.log2(_SCORE_FRAME_SECONDS * sample_rate))
    padded = np.concatenate([waveform, np.zeros(size, dtype=np.float32)])  # the end counts, too
    frames_TN = np.lib.stride_tricks.sliding_window_view(padded, size)[:: size // 2]
    magnitude_TF = np.abs(rfft(frames_TN * hann(size)))
    power_F = np.einsum("tf,tf->f", magnitude_TF, magnitude_TF)
    bins = 1 + min(size // 2, int(0.5 * judged_rate * size / sample_rate))
    share = float(power_F[:bins].sum()) / max(float(power_F.sum()), _TINY)
    moment_T = magnitude_TF[:, :bins] @ (np.arange(bins, dtype=np.float32) * np.float32(sample_rate / size))
    centroid_T = moment_T / np.maximum(magnitude_TF[:, :bins].sum(axis=1), _TINY)
    return VoiceLevels(_frame_rms(waveform) * math.sqrt(share), _peak(waveform), float(centroid_T.mean()))


def _near(value: float, threshold: float) -> bool:
    return threshold / _DOUBT < value < threshold * _DOUBT


def _frame_rms(waveform: FloatArray) -> float:
    return math.sqrt(float(np.dot(waveform, waveform)) / len(waveform))


def _peak(waveform: FloatArray) -> float:
    return float(max(waveform.max(initial=0.0), -waveform.min(initial=0.0)))
