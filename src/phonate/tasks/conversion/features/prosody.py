"""Pitch as a model input: the harmonics at this pitch, drawn as a mel spectrum.

From a single number, a small model learns the positions of the harmonics slowly and blurs them; from their spectrum
it only needs to learn their levels. In training the pitch is the speaker's own. In conversion the source's pitch
contour is first moved to the target's register, so that it does not carry the source's voice.

Shapes: T frames, M mel bands, P = M + 2 prosody features.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from phonate.audio.decoding import FloatArray
from phonate.audio.mel import mel_filters
from phonate.audio.settings import AudioConfig
from phonate.tasks.conversion.features.running import RunningMedian, RunningStatistics

_LOWEST, _HIGHEST, _STEPS = 60.0, 500.0, 256
_MIDDLE, _SPREAD = 170.0, 0.35  # Hz and log units, so that the inputs are about -2 .. 2
_FLOOR = 1e-3
_LEAST_DEVIATION = 0.08  # of log F0: limits how much a monotone voice is stretched
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
        return cls(float(np.median(voiced)), max(_LEAST_DEVIATION, float(np.log(voiced).std())))


def transposed(f0_T: FloatArray, target: Register) -> FloatArray:
    """The pitch contour `f0_T` (Hz, 0 where unvoiced), moved to the register of another voice."""
    own = Register.of(f0_T)
    if own is None:
        return f0_T
    voiced = f0_T > 0.0
    moved_T = np.zeros_like(f0_T)
    steps = np.log(f0_T[voiced] / own.median) * (target.deviation / own.deviation)
    moved_T[voiced] = np.clip(target.median * np.exp(steps), _LOWEST, _HIGHEST)
    return moved_T


class Prosody:
    """Computes prosody features (T, P) from F0 (T,), for mels with the settings `audio`."""

    def __init__(self, audio: AudioConfig, causal: bool = False) -> None:
        """`causal`: an unvoiced frame has the last pitch before it, instead of one between those around it."""
        self.width = audio.n_mels + 2
        self.causal = causal
        self._pictures = harmonics(audio)

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
        position_T = (pitch_T - np.log(_LOWEST)) / np.log(_HIGHEST / _LOWEST) * (_STEPS - 1)
        rows = np.clip(np.round(position_T), 0, _STEPS - 1).astype(int)
        features_TP[voiced_T, 2:] = self._pictures[rows[voiced_T]]
        return features_TP


def held(f0_T: FloatArray, before: float = _MIDDLE) -> FloatArray:
    """F0 (T,) in Hz with unvoiced frames set to the last pitch before them, or to `before` where there is none."""
    at_T = np.maximum.accumulate(np.where(f0_T > 0.0, np.arange(1, 1 + len(f0_T)), 0))
    return np.concatenate([np.array([before], dtype=np.float32), f0_T])[at_T]


class RunningTransposition:
    """`transposed` for a contour that comes in blocks: the source's register is that of its speech so far."""

    def __init__(self, target: Register | None) -> None:
        """`target`: None leaves pitches as they are."""
        self._target = target
        expected = target or Register(_MIDDLE, _SPREAD)
        middle = float(np.log(expected.median))
        self._median = RunningMedian(float(np.log(_LOWEST)), float(np.log(_HIGHEST)), middle, 2.0)
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
        stretch_T = self._target.deviation / np.maximum(deviation_T1[:, 0], _LEAST_DEVIATION)
        moved_T = self._target.median * np.exp(_SINKING + (log_T1[:, 0] - median_T) * stretch_T)
        return np.where(voiced_T, np.clip(moved_T, _LOWEST, _HIGHEST), 0.0).astype(np.float32)


@lru_cache(maxsize=8)
def harmonics(audio: AudioConfig) -> FloatArray:
    """(256, M) log mel spectra of equally strong harmonics, from 60 to 500 Hz on a log scale; mean 0, in 20 dB."""
    fundamental = np.geomspace(_LOWEST, _HIGHEST, _STEPS)[:, None]
    bin_hz = audio.sample_rate / audio.n_fft
    frequency_F = np.arange(audio.n_fft // 2 + 1) * bin_hz
    spectrum = np.zeros((_STEPS, len(frequency_F)))
    for number in range(1, int(audio.fmax / _LOWEST) + 2):
        # The transform of a Hann window around the harmonic. Its width depends on the window, not on the FFT size.
        distance = (frequency_F - number * fundamental) * (audio.win_length / audio.sample_rate)
        near_one = np.abs(np.abs(distance) - 1.0) < 1e-6
        lobe = np.sinc(distance) / np.where(near_one, 1.0, 1.0 - distance**2)
        spectrum += np.abs(np.where(near_one, 0.5, lobe))
    filters = mel_filters(audio.sample_rate, audio.n_fft, audio.n_mels, audio.fmin, audio.fmax)
    level = np.log10(spectrum @ filters.T + _FLOOR)
    return np.asarray(level - level.mean(axis=1, keepdims=True), dtype=np.float32)
