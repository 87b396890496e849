"""Naturalness of speech: predicted mean opinion score (MOS).

distillmos (Stahl and Gamper 2025, "Distillation and pruning for scalable self-supervised representation-based
speech quality assessment"; MIT, weights in its wheel) rates the sound alone, without a reference. It is sensitive to
noise, distortion and bandwidth, but was not designed to detect wrong words or flat prosody.
"""

from __future__ import annotations

import contextlib
import io

import numpy as np
import torch

from phonate.audio.decoding import FloatArray
from phonate.config.errors import DataError
from phonate.config.packages import optional_package
from phonate.evaluation.packages import empty_torchaudio

SAMPLE_RATE = 16000
LOWEST = 1.0
"""The lowest score."""
_INSTALL = "--no-deps distillmos xls-r-sqa"
_LEAST_SECONDS = 0.25
_SILENCE = 1e-4  # a peak 80 dB below full scale


class NaturalnessJudge:
    """Predicts mean opinion scores on the CPU, deterministically and independent of level."""

    def __init__(self) -> None:
        """Raises MissingPackageError if distillmos or xls-r-sqa is not installed."""
        with empty_torchaudio():
            optional_package("xls_r_sqa", "predicted MOS", _INSTALL)
            package = optional_package("distillmos", "predicted MOS", _INSTALL)
        with contextlib.redirect_stdout(io.StringIO()):  # it prints the path of its weights
            self._model = package.ConvTransformerSQAModel()
        self._model.eval()

    @torch.no_grad()
    def score(self, waveform: FloatArray, sample_rate: int, name: str = "a recording") -> float:
        """Predicted mean opinion score of a waveform (samples,), from 1 (bad) to 5 (excellent).

        Waveforms longer than 7.68 s are scored in windows of that length, and the scores are averaged. Raises DataError
        with the recording's `name` for silence, for less than a quarter of a second, and for non-finite samples.
        """
        import soxr

        samples = np.asarray(waveform, dtype=np.float32)
        if not np.isfinite(samples).all():
            raise DataError(f"{name}: has non-finite samples, so its naturalness can't be judged")
        if (nothing := _nothing_to_hear(samples, sample_rate)) is not None:
            raise DataError(f"{name}: {nothing}")
        if sample_rate != SAMPLE_RATE:
            samples = soxr.resample(samples, sample_rate, SAMPLE_RATE)
        return float(self._model(torch.from_numpy(samples)[None]))

    def score_made(self, waveform: FloatArray, sample_rate: int, name: str) -> float:
        """Like `score`, but returns the lowest score for a synthesised waveform that is silent or too short."""
        samples = np.asarray(waveform, dtype=np.float32)
        if np.isfinite(samples).all() and _nothing_to_hear(samples, sample_rate) is not None:
            return LOWEST
        return self.score(samples, sample_rate, name)


def _nothing_to_hear(samples: FloatArray, sample_rate: int) -> str | None:
    """The reason why a waveform can't be judged, if any."""
    if len(samples) < _LEAST_SECONDS * sample_rate:
        return (
            f"{len(samples) / sample_rate:.2f} s is too short to be judged; the naturalness judge needs "
            f"{_LEAST_SECONDS} s or more"
        )
    if np.abs(samples).max() < _SILENCE:
        return "is silent, so its naturalness can't be judged"
    return None
