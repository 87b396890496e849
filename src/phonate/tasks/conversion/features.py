"""What a VoiceTransformer reads of a recording: content and prosody.

In training, the formants of the envelope are shifted at random, its timbre is equalised at random and noise is added,
so that only the speaker embedding identifies the speaker reliably (information perturbation: Choi et al. 2021, "Neural
analysis and synthesis", section 3.1, here on mel envelopes). Conversion uses the same features without perturbation. A
recogniser's features describe phones and contain little of the voice, so conversion from them is more intelligible.

From a single number, a small model learns the positions of the harmonics slowly and blurs them; from their spectrum
it only needs to learn their levels. In training the pitch is the speaker's own. In conversion the source's pitch
contour is first moved to the target's register, so that it does not carry the source's voice.

Where recordings give the voice, those of their frames are looked up that are nearest in content to each frame of the
speech to convert. The mean of their spectra tells the model how the voice sounds there (after Baas et al. 2023, "Voice
conversion with just nearest neighbors", section 3, where the mean of the features is the converted speech itself).

Shapes: T mel frames, M mel bands, P = M + 2 prosody features; S and R content features (50 per second) of the speech
and of recordings, W their width. Mels are on `AudioProcessor`'s decibel scale, 0 to 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from phonate.audio.decoding import FloatArray
from phonate.audio.mel_filters import band_edges, mel_filters
from phonate.audio.pitch import f0
from phonate.audio.processor import AudioProcessor
from phonate.audio.settings import HIGHEST_F0, AudioConfig
from phonate.audio.whisper import FEATURES_PER_SECOND, WhisperEncoder
from phonate.tasks.conversion.settings import ConversionData, PerturbationSettings

# ------------------ Statistics of what was heard so far, for features that do not wait for the end

# Each class takes frames in blocks of any size, with the same results; a whole recording is one block.

_SPEECH_RANGE = 0.35  # frames at most this far below the loudest so far count as speech (35 dB at the default levels)
_FALL = 0.0005  # by which the loudest level falls in each frame: 4 dB in a second
_LOWEST_LEVEL = 0.4  # levels further below that of the training corpus are not amplified up to it
_START = 0.25  # how far below it the level starts
_BINS = 256
_MEMORY = 1000.0  # frames after which a frame counts e times less
_PITCH_MEMORY = 300.0  # the same for pitches, which sink in the course of a sentence

Flags = npt.NDArray[np.bool_]


class RunningStatistics:
    """Mean and deviation of each value over the chosen frames so far, those long ago counting less.

    They start from a given mean and deviation, which stand for some frames: what is expected before anything was heard.
    """

    def __init__(
        self, mean_M: FloatArray, deviation_M: FloatArray, mean_frames: float, deviation_frames: float
    ) -> None:
        """`mean_frames`, `deviation_frames`: how many frames the given mean and deviation count as much as."""
        from scipy.signal import lfilter  # slow to import, and only running features need it

        self._lfilter = lfilter
        self._mean_M, self._variance_M = np.asarray(mean_M, np.float64), np.square(deviation_M, dtype=np.float64)
        self._mean_frames, self._deviation_frames = mean_frames, deviation_frames
        self._sums_S = np.zeros(1 + 2 * len(self._mean_M))  # of ones, values, squares

    def push(self, values_TM: FloatArray, chosen_T: Flags) -> tuple[FloatArray, FloatArray]:
        """Mean and deviation, each (T, M), at each of the next frames; they change at the frames `chosen_T` alone."""
        bands = len(self._mean_M)
        chosen_SM = np.asarray(values_TM[chosen_T] - self._mean_M, dtype=np.float64)
        new_SS = np.concatenate([np.ones((len(chosen_SM), 1)), chosen_SM, np.square(chosen_SM)], axis=1)
        decay = 1.0 - 1.0 / _MEMORY
        sums_SS = np.empty((1 + len(new_SS), new_SS.shape[1]))
        sums_SS[0] = self._sums_S
        if len(new_SS):
            sums_SS[1:], _ = self._lfilter([1.0], [1.0, -decay], new_SS, axis=0, zi=decay * self._sums_S[None])
        self._sums_S = sums_SS[-1]
        count_S1, sum_SM, squares_SM = sums_SS[:, :1], sums_SS[:, 1 : 1 + bands], sums_SS[:, 1 + bands :]
        offset_SM = sum_SM / (self._mean_frames + count_S1)
        spread_SM = squares_SM - 2.0 * offset_SM * sum_SM + count_S1 * np.square(offset_SM)
        variance_SM = (self._deviation_frames * self._variance_M + spread_SM) / (self._deviation_frames + count_S1)
        at_T = np.cumsum(chosen_T)
        deviation_SM = np.sqrt(np.maximum(variance_SM, 0.0))
        return (self._mean_M + offset_SM)[at_T].astype(np.float32), deviation_SM[at_T].astype(np.float32)


class RunningMedian:
    """Median of the values so far, those long ago counting less, from a histogram. Unlike a mean it takes no notice of
    pitches that were estimated an octave off."""

    def __init__(self, lowest: float, highest: float, expected: float, frames: float) -> None:
        """`lowest`, `highest`: range of the histogram; `expected`: counts as much as so many `frames`."""
        self._edges_E = np.linspace(lowest, highest, _BINS + 1)
        self._counts_K = np.zeros(_BINS)
        self._counts_K[self._bin(expected)] = frames

    def push(self, values_T: FloatArray, chosen_T: Flags) -> npt.NDArray[np.float64]:
        """The median at each of the next values (T,); it changes at the values `chosen_T` alone."""
        median, medians_T = self._median(), np.empty(len(values_T))
        for number, (value, chosen) in enumerate(zip(values_T, chosen_T, strict=True)):
            if chosen:
                self._counts_K *= 1.0 - 1.0 / _PITCH_MEMORY
                self._counts_K[self._bin(float(value))] += 1.0
                median = self._median()
            medians_T[number] = median
        return medians_T

    def _bin(self, value: float) -> int:
        return int(np.clip(np.searchsorted(self._edges_E, value) - 1, 0, _BINS - 1))

    def _median(self) -> float:
        below_E = np.concatenate([[0.0], np.cumsum(self._counts_K)])
        return float(np.interp(0.5 * below_E[-1], below_E, self._edges_E))


class RunningLevel:
    """The loudest level so far, slowly falling: it brings recordings to one level, and tells speech from pauses."""

    def __init__(self, reference: float) -> None:
        """`reference`: the level of the recordings that a model was trained on."""
        self._reference = reference
        self._level = reference - _START

    def push(self, mel_TM: FloatArray) -> tuple[FloatArray, Flags]:
        """What to add to the next frames of a mel to bring them to the reference (T,), and whether they are speech."""
        loudness_T = mel_TM.mean(axis=1, dtype=np.float64)
        fallen_T = _FALL * np.arange(1, 1 + len(loudness_T))
        level_T = np.maximum(np.maximum.accumulate(loudness_T + fallen_T), self._level) - fallen_T
        level_T = np.maximum(level_T, self._reference - _LOWEST_LEVEL)
        if len(level_T):
            self._level = float(level_T[-1])
        return (self._reference - level_T).astype(np.float32), loudness_T > level_T - _SPEECH_RANGE


@dataclass(frozen=True)
class CorpusStatistics:
    """What the recordings of a corpus are like: the level (as `RunningLevel` takes it) of the loudest frame, and mean
    and deviation (M,) of the content over speech."""

    level: float
    mean_M: FloatArray
    deviation_M: FloatArray

    @classmethod
    def of(cls, recordings: Iterable[tuple[FloatArray, FloatArray]]) -> CorpusStatistics:
        """Of recordings, each given by its mel (T, M) and the content (T, M) before normalisation."""
        levels, means, deviations = [], [], []
        for mel_TM, content_TM in recordings:
            loudness_T = mel_TM.mean(axis=1)
            speech_TM = content_TM[loudness_T > loudness_T.max() - _SPEECH_RANGE]
            levels.append(float(loudness_T.max()))
            means.append(speech_TM.mean(axis=0))
            deviations.append(speech_TM.std(axis=0))
        mean_M, deviation_M = (np.mean(part, axis=0).astype(np.float32) for part in (means, deviations))
        return cls(float(np.median(levels)), mean_M, deviation_M)

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {"level": self.level, "mean": self.mean_M.tolist(), "deviation": self.deviation_M.tolist()}

    @classmethod
    def read(cls, document: dict[str, Any]) -> CorpusStatistics:
        """From JSON."""
        mean_M, deviation_M = (np.array(document[name], dtype=np.float32) for name in ("mean", "deviation"))
        return cls(float(document["level"]), mean_M, deviation_M)


class RunningContent:
    """Normalises the content of one recording by what was heard of it so far."""

    def __init__(self, expected: CorpusStatistics, least_deviation: float) -> None:
        self._level = RunningLevel(expected.level)
        self._statistics = RunningStatistics(expected.mean_M, expected.deviation_M, 30.0, 60.0)
        self._least = least_deviation

    def push(self, mel_TM: FloatArray, content_TM: FloatArray) -> FloatArray:
        """The next frames (T, M) with about mean 0 and deviation 1 in each band. `mel_TM`: tells speech from pauses."""
        gain_T, speech_T = self._level.push(mel_TM)
        levelled_TM = content_TM + gain_T[:, None]
        mean_TM, deviation_TM = self._statistics.push(levelled_TM, speech_T)
        return np.asarray((levelled_TM - mean_TM) / (deviation_TM + self._least), dtype=np.float32)


# ------- Content features with little speaker information: perturbed and normalised spectral envelopes

_LOUD_PERCENTILE = 95.0
_LEAST_DEVIATION = 0.02
_KNEE_HZ = 6000.0  # formants are scaled below this; above, the axis is compressed to keep its end fixed
_WARP_STEPS = 64
_RIPPLES = 5
_QUIETER = 0.3  # live speech is not brought to one level before: in training it is up to 30 dB quieter


class Content:
    """Computes content features (T, M) from mel features (T, M) with the settings `audio`."""

    def __init__(
        self, audio: AudioConfig, cepstral_coefficients: int | None, normalise: bool, causal: bool = False
    ) -> None:
        """`cepstral_coefficients`: number kept, for a smooth envelope; None: all. `normalise`: per utterance, or, if
        `causal`, by what was heard so far, from `expected` on."""
        self.bands = audio.n_mels
        self.causal = causal
        self.expected: CorpusStatistics | None = None
        """The statistics of the training corpus, which a causal normalisation starts from."""
        self.normalise = normalise
        self._decibels = -audio.min_level_db
        self._centres = np.array(band_edges(self.bands, audio.fmin, audio.fmax)[1:-1])
        self._smoothing_MM: FloatArray | None = None
        if cepstral_coefficients is not None:
            basis = cosine_basis(self.bands)[:cepstral_coefficients]
            self._smoothing_MM = basis.T @ basis
        self._warp = lru_cache(maxsize=None)(self._warp_matrix)

    def __call__(self, mel_TM: FloatArray) -> FloatArray:
        """Content (T, M) of the mel (T, M) of a whole utterance."""
        return self._normalised(self.smoothed(mel_TM), mel_TM)

    def running(self) -> RunningContent:
        """Normalisation of one utterance in blocks."""
        if self.expected is None:
            raise ValueError("causal normalisation needs the statistics of the training corpus: set `expected`")
        return RunningContent(self.expected, _LEAST_DEVIATION)

    def perturbed(self, mel_TM: FloatArray, settings: PerturbationSettings, rng: np.random.Generator) -> FloatArray:
        """Content (T, M) of a mel (T, M) after a random formant shift, equalisation and noise."""
        if rng.random() < settings.noise_probability:
            mel_TM = self._noisy(mel_TM, settings, rng)
        if self.causal:
            mel_TM = mel_TM - np.float32(rng.uniform(0.0, _QUIETER))
        # one of a few dozen factors, evenly spaced on a log scale, so that their matrices can be cached
        low, high = np.log(settings.formants)
        content_TM = mel_TM @ self._warp(
            float(np.exp(low + (high - low) * rng.integers(_WARP_STEPS + 1) / _WARP_STEPS))
        )
        return self._normalised(content_TM + self._ripple(settings.equaliser_db, rng), mel_TM)

    def smoothed(self, mel_TM: FloatArray) -> FloatArray:
        """The envelope: only the first cepstral coefficients."""
        return mel_TM if self._smoothing_MM is None else np.asarray(mel_TM @ self._smoothing_MM, dtype=np.float32)

    def _normalised(self, content_TM: FloatArray, spectrum_TM: FloatArray) -> FloatArray:
        """Normalise each band to mean 0 and deviation 1 over the utterance's speech (as in CMVN)."""
        if not self.normalise:
            return content_TM
        if self.causal:
            return self.running().push(spectrum_TM, content_TM)
        speech_T = speech_frames(spectrum_TM)
        mean_M = content_TM[speech_T].mean(axis=0)
        deviation_M = content_TM[speech_T].std(axis=0) + _LEAST_DEVIATION
        return np.asarray((content_TM - mean_M) / deviation_M, dtype=np.float32)

    def _warp_matrix(self, factor: float) -> npt.NDArray[np.float32]:
        """(M, M) smoothing, then scaling of the formants by `factor` (piecewise linear VTLN)."""
        top, knee = self._centres[-1], min(_KNEE_HZ, _KNEE_HZ * factor)
        above = knee / factor + (top - knee / factor) / (top - knee) * (self._centres - knee)
        source = np.where(self._centres <= knee, self._centres / factor, above)
        position = np.interp(source, self._centres, np.arange(self.bands))
        lower = np.minimum(position.astype(int), self.bands - 2)
        matrix = np.zeros((self.bands, self.bands), dtype=np.float32)
        matrix[lower, np.arange(self.bands)] = 1.0 - (position - lower)
        matrix[lower + 1, np.arange(self.bands)] += position - lower
        return matrix if self._smoothing_MM is None else np.asarray(self._smoothing_MM @ matrix, np.float32)

    def _ripple(self, decibels: float, rng: np.random.Generator) -> FloatArray:
        """(M,) a smooth random equalisation, stronger in the lower orders."""
        orders = np.arange(1, _RIPPLES + 1)
        amplitude = rng.normal(size=_RIPPLES) * decibels / self._decibels / orders
        return np.asarray(
            amplitude @ (cosine_basis(self.bands)[1 : _RIPPLES + 1] * np.sqrt(self.bands / 2)), np.float32
        )

    def _noisy(self, mel_TM: FloatArray, settings: PerturbationSettings, rng: np.random.Generator) -> FloatArray:
        """`mel_TM` with coloured stationary noise added to the magnitudes."""
        loud = np.percentile(mel_TM.mean(axis=1), _LOUD_PERCENTILE)
        level_M = loud - rng.uniform(*settings.noise_snr_db) / self._decibels + self._ripple(8.0, rng)
        flutter_TM = rng.standard_normal(mel_TM.shape, dtype=np.float32) * np.float32(3.5 / self._decibels)
        scale = np.float32(np.log(10.0) * self._decibels / 20.0)
        magnitude = np.exp(scale * (mel_TM - 1.0)) + np.exp(scale * (level_M + flutter_TM - 1.0))
        return np.asarray(1.0 + np.log(magnitude) / scale, dtype=np.float32)


def speech_frames(mel_TM: FloatArray) -> npt.NDArray[np.bool_]:
    """(T,) True where an utterance is loud enough to be speech."""
    loudness_T = mel_TM.mean(axis=1)
    return np.asarray(loudness_T > np.percentile(loudness_T, _LOUD_PERCENTILE) - _SPEECH_RANGE)


@lru_cache(maxsize=4)
def cosine_basis(bands: int) -> npt.NDArray[np.float32]:
    """(bands, bands) orthonormal DCT-II; row k is the cosine of order k."""
    order, band = np.arange(bands)[:, None], np.arange(bands)[None, :]
    basis = np.sqrt(2.0 / bands) * np.cos(np.pi * order * (band + 0.5) / bands)
    basis[0] /= np.sqrt(2.0)
    return np.asarray(basis, dtype=np.float32)


# ------------------------------------------- Content features from the encoder of a Whisper recogniser


def at_frames(features_SW: FloatArray, frames_T: npt.NDArray[np.int64], frames_per_second: float) -> FloatArray:
    """Features (S, W) at 50 per second, interpolated at the given mel frames: (T, W)."""
    position_T = np.minimum(frames_T * (FEATURES_PER_SECOND / frames_per_second), len(features_SW) - 1.0)
    lower_T = np.minimum(position_T.astype(int), max(0, len(features_SW) - 2))
    upper_T = np.minimum(lower_T + 1, len(features_SW) - 1)
    weight_T1 = (position_T - lower_T).astype(np.float32)[:, None]
    between_TW = features_SW[lower_T] * (1.0 - weight_T1) + features_SW[upper_T] * weight_T1
    return np.asarray(between_TW, dtype=np.float32)


def normalised(features_SW: FloatArray) -> FloatArray:
    """Features (S, W) with mean 0 and deviation 1 over the utterance."""
    mean_W, scale_W = moments(features_SW)
    return np.asarray((features_SW - mean_W) / scale_W, dtype=np.float32)


def moments(features_SW: FloatArray) -> tuple[FloatArray, FloatArray]:
    """By what `normalised` moves and divides features: (W,) each."""
    mean_W = features_SW.mean(axis=0)
    deviation_W = np.sqrt(np.mean(np.square(features_SW - mean_W), axis=0))  # as `std`, which would centre them anew
    return mean_W, deviation_W + 0.1


# ------------------------ Pitch as a model input: the harmonics at this pitch, drawn as a mel spectrum

_LOWEST, _STEPS = 60.0, 256
_MIDDLE, _SPREAD = 170.0, 0.35  # Hz and log units, so that the inputs are about -2 .. 2
_FLOOR = 1e-3
_LEAST_PITCH_DEVIATION = 0.08  # of log F0: limits how much a monotone voice is stretched
_SINKING = 0.026  # log F0: pitches sink in a sentence, so that the median so far is above the whole recording's by this


@dataclass(frozen=True)
class Register:
    """Pitch range of a voice: median of F0 in Hz, and deviation of log F0 within an utterance."""

    median: float
    deviation: float

    @classmethod
    def of(cls, f0_T: FloatArray) -> Register | None:
        """The register of an utterance with F0 (T,) in Hz, 0 where unvoiced. None if no frame is voiced."""
        voiced = f0_T[f0_T > 0.0]
        if voiced.size == 0:
            return None
        return cls(float(np.median(voiced)), max(_LEAST_PITCH_DEVIATION, float(np.log(voiced).std())))


def transposed(f0_T: FloatArray, target: Register, highest: float = HIGHEST_F0["swift"]) -> FloatArray:
    """The pitch contour `f0_T` (Hz, 0 where unvoiced), moved to the register of another voice, up to `highest` Hz."""
    own = Register.of(f0_T)
    if own is None:
        return f0_T
    voiced = f0_T > 0.0
    transposed_T = np.zeros_like(f0_T)
    steps = np.log(f0_T[voiced] / own.median) * (target.deviation / own.deviation)
    transposed_T[voiced] = np.clip(target.median * np.exp(steps), _LOWEST, highest)
    return transposed_T


class Prosody:
    """Computes prosody features (T, P) from F0 (T,), for mels with the settings `audio`."""

    def __init__(self, audio: AudioConfig, causal: bool = False, highest: float = HIGHEST_F0["swift"]) -> None:
        """`causal`: an unvoiced frame has the last pitch before it, instead of one between those around it; `highest`:
        pitch in Hz whose harmonics are told from lower ones."""
        self.width = audio.n_mels + 2
        self.causal = causal
        self.highest = highest
        self._pictures = harmonics(audio, highest)

    def __call__(self, f0_T: FloatArray, cut: slice = slice(None)) -> FloatArray:
        """Log pitch (interpolated through unvoiced frames), voicing (1 or -1), and the spectrum of the harmonics.

        Computed for the frames `cut` of the utterance.
        """
        if self.causal:
            return self.features(np.log(held(f0_T)[cut]), f0_T[cut] > 0.0)
        frames, known = np.arange(len(f0_T))[cut], np.flatnonzero(f0_T > 0.0)
        if not known.size:
            return self.features(np.full(len(frames), np.log(_MIDDLE)), f0_T[cut] > 0.0)
        return self.features(np.interp(frames, known, np.log(f0_T[known])), f0_T[cut] > 0.0)

    def features(self, pitch_T: npt.NDArray[np.floating], voiced_T: npt.NDArray[np.bool_]) -> FloatArray:
        """The features (T, P) of a pitch (T,), the logarithm of Hz, that goes on through unvoiced frames."""
        features_TP = np.zeros((len(pitch_T), self.width), dtype=np.float32)
        features_TP[:, 1] = np.where(voiced_T, 1.0, -1.0)
        features_TP[:, 0] = (pitch_T - np.log(_MIDDLE)) / _SPREAD
        position_T = (pitch_T - np.log(_LOWEST)) / np.log(self.highest / _LOWEST) * (_STEPS - 1)
        rows = np.clip(np.round(position_T), 0, _STEPS - 1).astype(int)
        features_TP[voiced_T, 2:] = self._pictures[rows[voiced_T]]
        return features_TP


def held(f0_T: FloatArray, before: float = _MIDDLE) -> FloatArray:
    """F0 (T,) in Hz with unvoiced frames set to the last pitch before them, or to `before` where there is none."""
    at_T = np.maximum.accumulate(np.where(f0_T > 0.0, np.arange(1, 1 + len(f0_T)), 0))
    return np.concatenate([np.array([before], dtype=np.float32), f0_T])[at_T]


class RunningTransposition:
    """`transposed` for a contour that comes in blocks: the source's register is that of its speech so far."""

    def __init__(self, target: Register | None, highest: float = HIGHEST_F0["swift"]) -> None:
        """`target`: None leaves pitches as they are; `highest`: Hz."""
        self._highest = highest
        self._target = target
        expected = target or Register(_MIDDLE, _SPREAD)
        middle = float(np.log(expected.median))
        self._median = RunningMedian(float(np.log(_LOWEST)), float(np.log(highest)), middle, 2.0)
        self._statistics = RunningStatistics(
            np.array([middle], np.float32), np.array([expected.deviation], np.float32), 2.0, 60.0
        )

    def push(self, f0_T: FloatArray) -> FloatArray:
        """The next frames (T,) in Hz, 0 where unvoiced, in the target's register."""
        if self._target is None:
            return f0_T
        voiced_T = f0_T > 0.0
        log_T1 = np.log(np.where(voiced_T, f0_T, 1.0))[:, None]
        median_T = self._median.push(log_T1[:, 0], voiced_T)
        _, deviation_T1 = self._statistics.push(log_T1, voiced_T)
        stretch_T = self._target.deviation / np.maximum(deviation_T1[:, 0], _LEAST_PITCH_DEVIATION)
        moved_T = self._target.median * np.exp(_SINKING + (log_T1[:, 0] - median_T) * stretch_T)
        return np.where(voiced_T, np.clip(moved_T, _LOWEST, self._highest), 0.0).astype(np.float32)


@lru_cache(maxsize=8)
def harmonics(audio: AudioConfig, highest: float) -> FloatArray:
    """(256, M) log mel spectra of equally strong harmonics, from 60 to `highest` Hz on a log scale; mean 0, in 20
    dB."""
    number_N1 = np.arange(1, int(audio.fmax / _LOWEST) + 2)[:, None]
    bin_F = np.arange(audio.n_fft // 2 + 1) * (audio.win_length / audio.n_fft)
    sine_F, cosine_F = np.sin(np.pi * bin_F) / np.pi, np.cos(np.pi * bin_F) / np.pi
    spectrum = np.empty((_STEPS, len(bin_F)))
    for row, fundamental in enumerate(np.geomspace(_LOWEST, highest, _STEPS)):
        # The transform of a Hann window around each harmonic, sinc(x) / (1 - x^2) = sin(pi x) / (pi (x - x^3)), with
        # the sine of the difference from sines of both. Its width depends on the window, not on the FFT size.
        harmonic_N1 = number_N1 * fundamental * (audio.win_length / audio.sample_rate)
        distance = bin_F - harmonic_N1
        lobes = np.cos(np.pi * harmonic_N1) * sine_F - np.sin(np.pi * harmonic_N1) * cosine_F
        near = np.abs(distance) < 1.5  # where both are small
        lobes /= np.where(near, 1.0, (1.0 - distance**2) * distance)
        lobes[near] = _hann_lobe(distance[near])
        np.abs(lobes, out=lobes).sum(axis=0, out=spectrum[row])
    filters = mel_filters(audio.sample_rate, audio.n_fft, audio.n_mels, audio.fmin, audio.fmax)
    level = np.log10(spectrum @ filters.T + _FLOOR)
    return np.asarray(level - level.mean(axis=1, keepdims=True), dtype=np.float32)


def _hann_lobe(distance: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """sinc(x) / (1 - x^2)."""
    near_one = np.abs(np.abs(distance) - 1.0) < 1e-6
    return np.where(near_one, 0.5, np.sinc(distance) / np.where(near_one, 1.0, 1.0 - distance**2))


# ---------------- What a VoiceTransformer reads of a recording, the same in training and in conversion

EVERYTHING = slice(None)


@dataclass(frozen=True)
class Recording:
    """Clean features of one recording. Shapes: T frames, M mel bands, S Whisper features, W their width."""

    mel_TM: FloatArray
    f0_T: FloatArray
    whisper_SW: FloatArray | None = None
    moments: tuple[FloatArray, FloatArray] | None = None
    """Those of the Whisper features. None: computed when they are needed."""


class FeatureExtractor:
    """Makes `Recording`s of waveforms, and model inputs of `Recording`s, as the recipe's `data` says.

    `causal`: inputs depend on no later frame, as `model.causal` needs it.
    """

    def __init__(self, data: ConversionData, causal: bool = False) -> None:
        self.data = data
        self.causal = causal
        self.processor = AudioProcessor(data.audio)
        self.envelope = Content(data.audio, data.cepstral_coefficients, data.normalise, causal)
        """Content that is computed from the mel."""
        self.harmonics = Prosody(data.audio, causal, HIGHEST_F0[data.f0_method])
        """Prosody features of a pitch."""
        self._whisper: WhisperEncoder | None = None

    @property
    def whisper(self) -> WhisperEncoder:
        """The Whisper encoder, loaded when it is first needed."""
        if self._whisper is None:
            self._whisper = WhisperEncoder(self.data.whisper_model, "data.content: whisper")
        return self._whisper

    @property
    def teacher(self) -> bool:
        """Whether Whisper features are what a network is taught to predict from the mel, instead of what it reads."""
        return self.causal and self.data.content == "whisper"

    @property
    def reference_dim(self) -> int:
        """Features of a frame that tell the voice: a mel spectrum, where voices are given by recordings."""
        return self.data.audio.n_mels if self.data.voices == "reference" else 0

    @property
    def prosody_dim(self) -> int:
        """Prosody features of a frame."""
        return self.harmonics.width if self.data.prosody else 0

    def recording(self, waveform: FloatArray) -> Recording:
        """Clean features of a waveform (N,) at the configured rate."""
        audio = self.data.audio
        return Recording(
            self.processor.mel(waveform),
            self.pitch(waveform),
            self.whisper(waveform, audio.sample_rate) if self.data.content == "whisper" and not self.teacher else None,
        )

    def pitch(self, waveform: FloatArray) -> FloatArray:
        """F0 (T,) in Hz at the mel's frames; zeros where the model does not read prosody."""
        audio = self.data.audio
        if not self.data.prosody:
            return np.zeros(self.processor.frames(len(waveform)), dtype=np.float32)
        return f0(waveform, audio.sample_rate, audio.hop_length, self.data.f0_method)

    def content(
        self, recording: Recording, rng: np.random.Generator | None = None, cut: slice = EVERYTHING
    ) -> FloatArray:
        """Content features (T, input_dim) of the frames `cut`; with `rng`, of the recording's perturbed form.

        Normalisation sees the whole recording, as it does in conversion.
        """
        if recording.whisper_SW is not None and not self.teacher:
            return self.whisper_content(recording, cut)
        if rng is None or self.data.perturbation is None:
            return self.envelope(recording.mel_TM)[cut]
        return self.envelope.perturbed(recording.mel_TM, self.data.perturbation, rng)[cut]

    def whisper_content(self, recording: Recording, cut: slice = EVERYTHING) -> FloatArray:
        """Whisper features (T, W) of the frames `cut`."""
        if recording.whisper_SW is None:
            raise ValueError("the recording has no Whisper features")
        frames_T = np.arange(len(recording.mel_TM))[cut]
        content_TW = at_frames(recording.whisper_SW, frames_T, self.data.audio.frames_per_second)
        if self.data.normalise:
            mean_W, scale_W = recording.moments or moments(recording.whisper_SW)
            content_TW -= mean_W
            content_TW /= scale_W
        return content_TW

    def prosody(self, recording: Recording, register: Register | None = None, cut: slice = EVERYTHING) -> FloatArray:
        """Prosody features (T, prosody_dim) of the frames `cut`, in the recording's own register or another."""
        if not self.data.prosody:
            return np.zeros((len(recording.mel_TM[cut]), 0), dtype=np.float32)
        if register is None:
            return self.harmonics(recording.f0_T, cut)
        return self.harmonics(transposed(recording.f0_T, register, self.harmonics.highest), cut)


# ---------------------------------- Frames of recordings of a voice, looked up by what is said in them

_NEIGHBOURS = 4
_AT_ONCE = 256  # frames that are looked up together, to bound the memory


@dataclass(frozen=True)
class SpeechFrames:
    """Frames of recordings to look up: their content, of length 1 (R, W), and their mel spectra (R, M)."""

    content_RW: FloatArray
    mel_RM: FloatArray

    @classmethod
    def of(cls, recording: Recording, frames_per_second: float) -> SpeechFrames:
        """The frames of a recording with Whisper features, at their rate; `frames_per_second`: of its mel."""
        if recording.whisper_SW is None:
            raise ValueError("the recording has no Whisper features")
        times_S = np.arange(len(recording.whisper_SW)) * (frames_per_second / FEATURES_PER_SECOND)
        nearest_S = np.minimum(np.round(times_S).astype(int), len(recording.mel_TM) - 1)
        values_SW = normalised(recording.whisper_SW)
        length_S1 = np.linalg.norm(values_SW, axis=1, keepdims=True)
        return cls(np.asarray(values_SW / np.maximum(length_S1, 1e-6), dtype=np.float32), recording.mel_TM[nearest_S])

    @classmethod
    def joined(cls, parts: Sequence[SpeechFrames]) -> SpeechFrames:
        """Those of several recordings."""
        return cls(np.concatenate([part.content_RW for part in parts]), np.concatenate([part.mel_RM for part in parts]))

    def __len__(self) -> int:
        return len(self.content_RW)

    def __getitem__(self, chosen: slice) -> SpeechFrames:
        return SpeechFrames(self.content_RW[chosen], self.mel_RM[chosen])

    def nearest(self, content_SW: FloatArray) -> FloatArray:
        """Mean spectrum (S, M) of the frames whose content is most similar (by cosine) to each of `content_SW`, whose
        rows have the length 1."""
        count = min(_NEIGHBOURS, len(self))
        spectra = []
        for start in range(0, len(content_SW), _AT_ONCE):
            distance_SR = -(content_SW[start : start + _AT_ONCE] @ self.content_RW.T)
            nearest_SK = np.argpartition(distance_SR, count - 1, axis=1)[:, :count]
            spectra.append(self.mel_RM[nearest_SK].mean(axis=1))
        return np.concatenate(spectra)


def timbre(recording: Recording, reference: SpeechFrames, cut: slice, frames_per_second: float) -> FloatArray:
    """What the reference sounds like when it says what is said in the frames `cut` of a recording: (T, M)."""
    content_SW = SpeechFrames.of(recording, frames_per_second).content_RW
    frames_T = np.arange(len(recording.mel_TM))[cut]
    first, last = (int(frame * FEATURES_PER_SECOND / frames_per_second) for frame in (frames_T[0], frames_T[-1]))
    part = slice(min(first, len(content_SW) - 1), last + 2)  # at_frames interpolates between two
    spectra_SM = np.zeros((len(content_SW), reference.mel_RM.shape[1]), dtype=np.float32)
    spectra_SM[part] = reference.nearest(content_SW[part])
    return at_frames(spectra_SM, frames_T, frames_per_second)
