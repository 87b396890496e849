"""Statistics of what was heard so far, for features that do not wait for the end of an utterance.

Each class takes frames in blocks of any size, with the same results; a whole recording is one block.

Shapes: T frames, M values of a frame (mel bands, or 1).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from phonate.audio.decoding import FloatArray

_SPEECH_RANGE = 0.35  # frames at most this far below the loudest so far count as speech (35 dB at the default levels)
_FALL = 0.0005  # by which the loudest level falls in each frame: 4 dB in a second
_LOWEST = 0.4  # levels further below that of the training corpus are not amplified up to it
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
        level_T = np.maximum(level_T, self._reference - _LOWEST)
        if len(level_T):
            self._level = float(level_T[-1])
        return (self._reference - level_T).astype(np.float32), loudness_T > level_T - _SPEECH_RANGE


@dataclass(frozen=True)
class Expected:
    """What the recordings of a corpus are like: the level (as `RunningLevel` takes it) of the loudest frame, and mean
    and deviation (M,) of the content over speech."""

    level: float
    mean_M: FloatArray
    deviation_M: FloatArray

    @classmethod
    def of(cls, recordings: Iterable[tuple[FloatArray, FloatArray]]) -> Expected:
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
    def read(cls, document: dict[str, Any]) -> Expected:
        """From JSON."""
        mean_M, deviation_M = (np.array(document[name], dtype=np.float32) for name in ("mean", "deviation"))
        return cls(float(document["level"]), mean_M, deviation_M)


class RunningContent:
    """Normalises the content of one recording by what was heard of it so far."""

    def __init__(self, expected: Expected, least_deviation: float) -> None:
        self._level = RunningLevel(expected.level)
        self._statistics = RunningStatistics(expected.mean_M, expected.deviation_M, 30.0, 60.0)
        self._least = least_deviation

    def push(self, mel_TM: FloatArray, content_TM: FloatArray) -> FloatArray:
        """The next frames (T, M) with about mean 0 and deviation 1 in each band. `mel_TM`: tells speech from pauses."""
        gain_T, speech_T = self._level.push(mel_TM)
        levelled_TM = content_TM + gain_T[:, None]
        mean_TM, deviation_TM = self._statistics.push(levelled_TM, speech_T)
        return np.asarray((levelled_TM - mean_TM) / (deviation_TM + self._least), dtype=np.float32)
