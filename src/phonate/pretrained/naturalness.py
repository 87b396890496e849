"""Naturalness of speech: predicted mean opinion score (MOS).

distillmos (Stahl and Gamper 2025, "Distillation and pruning for scalable self-supervised representation-based
speech quality assessment"; MIT, weights in its wheel) rates the sound alone, without a reference. It is sensitive to
noise, distortion and bandwidth, but was not designed to detect wrong words or flat prosody.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import io
import logging
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import numpy as np
import torch

from phonate.audio.decoding import FloatArray
from phonate.config.errors import DataError, InputError, optional_package

logger = logging.getLogger("phonate")

# -------------------------------------------------------------------------- Judges that may be missing

T = TypeVar("T")


def judge_of(columns: str, make: Callable[[], T]) -> T | None:
    """What `make` returns; None where its package or model is not installed: a warning says which columns are left out,
    and what to install for them."""
    try:
        return make()
    except InputError as error:
        logger.warning("not judged: %s: %s", columns, error)
        return None


@contextmanager
def old_pkg_resources() -> Iterator[None]:
    """Context in which packages can be imported that get their version from pkg_resources (removed from setuptools).

    webrtcvad, which resemblyzer uses, only calls `get_distribution(name).version`, on import.
    """
    stand_in = types.ModuleType("pkg_resources")
    stand_in.get_distribution = importlib.metadata.distribution  # type: ignore[attr-defined]
    with _standing_in(stand_in):
        yield


@contextmanager
def empty_torchaudio() -> Iterator[None]:
    """Context in which packages can be imported that import torchaudio without needing it for our purpose.

    distillmos only uses it to read files in its command line tool. torchaudio is not available for every torch version,
    so it is not required.
    """
    with _standing_in(types.ModuleType("torchaudio")):
        yield


@contextmanager
def _standing_in(module: types.ModuleType) -> Iterator[None]:
    """Context in which `module` replaces an absent package; it is removed afterwards."""
    name = module.__name__
    if name in sys.modules or importlib.util.find_spec(name) is not None:
        yield
        return
    sys.modules[name] = module
    try:
        yield
    finally:
        del sys.modules[name]


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
