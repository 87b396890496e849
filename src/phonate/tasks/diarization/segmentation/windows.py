"""Overlapping windows of long recordings, which are read in blocks, so that memory does not grow with their length.

Shapes: T feature frames, F features, N samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from phonate.audio.decoding import FloatArray
from phonate.data.features import Features

Read = Callable[[], Iterable[FloatArray]]
"""Each call iterates over a recording from the start, in blocks (N,)."""


@dataclass(frozen=True)
class Window:
    """A part of a recording."""

    start: int
    """Its first feature frame."""
    features_TF: FloatArray
    waveform_N: FloatArray
    """The corresponding samples."""


def read_windows(read: Read, features: Features, length: int, step: int, stride: int) -> Iterator[Window]:
    """Windows of `length` feature frames every `step` frames; the last one ends with the recording.

    All start at multiples of `stride`, which divides `length` and `step`. A shorter recording is one window, or none if
    it is shorter than a frame.
    """
    assert length % stride == 0
    assert step % stride == 0
    hop = features.audio.hop_length
    samples = _Samples(read())
    for start, features_TF in _sliding(features.compute_blocks(read), length, step, stride):
        waveform_N = samples.cut(start * hop, (start + len(features_TF)) * hop)
        yield Window(start, features_TF, waveform_N)


def _sliding(blocks: Iterable[FloatArray], length: int, step: int, stride: int) -> Iterator[tuple[int, FloatArray]]:
    """First frame and frames of each window."""
    held: FloatArray | None = None
    first, start = 0, 0  # of what is held, and of the next window
    for block in blocks:
        held = block if held is None else np.concatenate([held, block])
        while first + len(held) >= start + length:
            yield start, held[start - first : start - first + length]
            start += step
        # the last window may begin anywhere after the start of the previous one
        keep = max(0, start - step - first)
        held, first = held[keep:], first + keep
    if held is None:
        return
    total = first + len(held)
    if start == 0:
        yield 0, held
    elif start - step + length < total:
        begin = -(-(total - length) // stride) * stride
        yield begin, held[begin - first :]


class _Samples:
    """Cuts samples out of blocks, from left to right."""

    def __init__(self, blocks: Iterable[FloatArray]) -> None:
        self._blocks = iter(blocks)
        self._held = np.zeros(0, dtype=np.float32)
        self._first = 0

    def cut(self, start: int, end: int) -> FloatArray:
        """Samples `start` to `end` (exclusive), fewer at the end of the recording. `start` must not decrease."""
        parts = [self._held]
        held = self._first + len(self._held)
        while held < end and (block := next(self._blocks, None)) is not None:
            parts.append(block)
            held += len(block)
        joined = np.concatenate(parts)
        self._held, self._first = joined[start - self._first :], start
        return self._held[: end - start]
