"""Speaker properties stored in addition to the embedding: register and long-term spectrum.

Shapes: T frames, M mel bands.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from phonate.audio.decoding import FloatArray
from phonate.tasks.conversion.features.content import speech_frames
from phonate.tasks.conversion.features.extractor import Recording
from phonate.tasks.conversion.features.prosody import Register
from phonate.tasks.conversion.features.running import RunningStatistics

_MOST_CLIPS = 100
_STRETCH = (0.8, 1.6)


@dataclass(frozen=True)
class Voice:
    """A speaker's register, and the mean and deviation (M,) of the mel over the speech of an utterance."""

    register: Register | None
    mean_M: FloatArray
    deviation_M: FloatArray

    @classmethod
    def of(cls, recordings: Iterable[Recording]) -> Voice:
        """The voice of a speaker, averaged over utterances (at most 100 of them)."""
        registers, spectra = [], []
        for _, recording in zip(range(_MOST_CLIPS), recordings, strict=False):
            registers.append(Register.of(recording.f0_T))
            spectra.append(long_term(recording.mel_TM))
        found = [register for register in registers if register is not None]
        register = None
        if found:
            register = Register(
                float(np.median([r.median for r in found])), float(np.mean([r.deviation for r in found]))
            )
        mean_M, deviation_M = (np.mean(part, axis=0) for part in zip(*spectra, strict=True))
        return cls(register, mean_M, deviation_M)

    def equalised(self, mel_TM: FloatArray, share: float) -> FloatArray:
        """Bring the mean and deviation of each band of a converted mel (T, M) a share of the way to this voice's."""
        return self.equalised_by(mel_TM, *long_term(mel_TM), share)

    def equalised_by(self, mel_TM: FloatArray, mean: FloatArray, deviation: FloatArray, share: float) -> FloatArray:
        """As `equalised`, for a mel whose mean and deviation are these, (M,) or (T, M)."""
        stretch = 1.0 + share * (np.clip(self.deviation_M / np.maximum(deviation, 1e-4), *_STRETCH) - 1.0)
        return np.asarray((mel_TM - mean) * stretch + mean + share * (self.mean_M - mean), dtype=np.float32)

    def running(self) -> RunningStatistics:
        """Mean and deviation of converted speech so far, for `equalised_by`; they start from this voice's own."""
        return RunningStatistics(self.mean_M, self.deviation_M, 60.0, 120.0)

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "register": None if self.register is None else [self.register.median, self.register.deviation],
            "mean": [round(float(value), 4) for value in self.mean_M],
            "deviation": [round(float(value), 4) for value in self.deviation_M],
        }

    @classmethod
    def read(cls, document: dict[str, Any]) -> Voice:
        """From JSON."""
        register = document["register"]
        return cls(
            None if register is None else Register(*register),
            np.array(document["mean"], dtype=np.float32),
            np.array(document["deviation"], dtype=np.float32),
        )


def long_term(mel_TM: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Mean and deviation (M,) of a mel over its speech frames."""
    speech_TM = mel_TM[speech_frames(mel_TM)]
    return speech_TM.mean(axis=0), speech_TM.std(axis=0)
