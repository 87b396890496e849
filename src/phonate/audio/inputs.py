"""Audio as callers have it: a file, or samples in an array."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from phonate.audio.decoding import FloatArray, read_audio, resample
from phonate.config.errors import DataError, InputError

Audio = str | Path | NDArray[Any]
"""The path of a recording, or mono samples (N,) as floats in [-1, 1]."""
AudioT = TypeVar("AudioT", bound=Audio)
"""For lists of one kind of them."""


def as_waveform(audio: Audio, rate: int, sample_rate: int | None = None) -> FloatArray:
    """The samples (N,) float32 of a recording, at `rate` Hz.

    Args:
        audio: A file of any format and rate, or samples (N,).
        rate: Hz, wanted.
        sample_rate: Hz of an array; None: it is at `rate` already. A file says its own.

    Raises:
        DataError: a file that can't be read.
        InputError: an array that is not one row of finite floats, or a `sample_rate` given for a file.
    """
    if isinstance(audio, str | Path):
        if sample_rate is not None:
            raise InputError(f"{audio}: a file has its own sample rate; sample_rate is for arrays")
        return read_audio(audio, rate)[0]
    samples = np.asarray(audio)
    if samples.ndim != 1 or not len(samples) or not np.issubdtype(samples.dtype, np.floating):
        raise InputError(f"audio must be mono samples (N,) as floats in [-1, 1], not {samples.dtype} {samples.shape}")
    if not np.isfinite(samples).all():
        raise DataError("audio has samples that are NaN or infinite")
    waveform = samples.astype(np.float32, copy=False)
    return waveform if sample_rate in (None, rate) else resample(waveform, float(sample_rate or rate), rate)
