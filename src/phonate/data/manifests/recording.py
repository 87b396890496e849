"""The samples of a row: of its whole file, or of the part and channel that it names."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from phonate.audio.decoding import FloatArray, read_audio, read_blocks, sample_rate_of
from phonate.data.manifests.rows import Row

LONG_SECONDS = 120.0
"""Longer rows are read in blocks."""


def read_part(row: Row, sample_rate: int | None = None) -> tuple[FloatArray, int]:
    """The waveform (samples,) of a row, resampled to `sample_rate` (its own by default), and its rate.

    Raises DataError as `read_audio` does.
    """
    if row.channel is None:
        duration = None if row.end is None else row.end - row.start
        return read_audio(row.path, sample_rate, row.start, duration)
    return np.concatenate(list(part_blocks(row, sample_rate))), sample_rate or sample_rate_of(row.path)


def load_row(row: Row, sample_rate: int) -> FloatArray:
    """The waveform (samples,) of a row at `sample_rate`, its peak brought to 1, as it is cached."""
    from phonate.audio.processor import normalised_peak  # imports torch

    return normalised_peak(read_part(row, sample_rate)[0])


def part_blocks(row: Row, sample_rate: int | None = None) -> Iterator[FloatArray]:
    """The same waveform in blocks of about 30 s."""
    return read_blocks(row.path, sample_rate, row.start, row.end, row.channel)
