"""The samples of a row: of its whole file, or of the part and channel that it names. What is unusual about a file is
told once, where its row is checked."""

from __future__ import annotations

from collections.abc import Iterator

from phonate.audio.decoding import (
    BLOCK_SECONDS,
    FloatArray,
    Recording,
    joined,
    open_recording,
    regrouped,
    resample,
    resampled,
)
from phonate.data.manifests.rows import Row

LONG_SECONDS = 120.0
"""Longer rows are read in blocks."""


def read_part(row: Row, sample_rate: int | None = None) -> tuple[FloatArray, int]:
    """The waveform (samples,) of a row, resampled to `sample_rate` (its own by default), and its rate.

    Raises DataError as `read_audio` does.
    """
    with open_recording(row.path) as recording:
        rate = recording.sample_rate
        if row.channel is not None and sample_rate not in (None, rate):  # as `part_blocks`, to the bit
            assert sample_rate is not None
            return joined(resampled(blocks_of(row, recording), rate, sample_rate)), sample_rate
        waveform = joined(blocks_of(row, recording))
    if sample_rate in (None, rate):
        return waveform, rate
    assert sample_rate is not None
    return resample(waveform, rate, sample_rate), sample_rate


def load_row(row: Row, sample_rate: int) -> FloatArray:
    """The waveform (samples,) of a row at `sample_rate`, its peak brought to 1, as it is cached."""
    from phonate.audio.processor import normalised_peak  # imports torch

    return normalised_peak(read_part(row, sample_rate)[0])


def part_blocks(row: Row, sample_rate: int | None = None) -> Iterator[FloatArray]:
    """The same waveform in blocks of about 30 s."""
    with open_recording(row.path) as recording:
        rate = recording.sample_rate if sample_rate is None else sample_rate
        blocks = resampled(blocks_of(row, recording), recording.sample_rate, rate)
        yield from regrouped(blocks, round(BLOCK_SECONDS * rate))


def blocks_of(row: Row, recording: Recording) -> Iterator[FloatArray]:
    """The waveform of a row in blocks (samples,), at the rate of its recording, which is open."""
    return recording.blocks(row.start, None if row.end is None else row.end - row.start, row.channel)
