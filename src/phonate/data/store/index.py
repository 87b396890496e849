"""The index of a prepared corpus: what training reads instead of manifests, memory-mapped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray


class Strings(Sequence[str]):
    """Strings in two arrays: their bytes one after the other, and where each begins."""

    def __init__(self, data: NDArray[np.uint8], starts: NDArray[np.int64]) -> None:
        self._data = data
        self._starts = starts

    @classmethod
    def of(cls, values: Sequence[str]) -> Strings:
        """The strings of a list."""
        encoded = [value.encode("utf-8", "surrogateescape") for value in values]
        starts = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
        return cls(np.frombuffer(b"".join(encoded), dtype=np.uint8), starts)

    def __len__(self) -> int:
        return len(self._starts) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        at = index % len(self)
        return self._data[self._starts[at] : self._starts[at + 1]].tobytes().decode("utf-8", "surrogateescape")

    def save(self, folder: Path, name: str) -> None:
        """Write both arrays into `folder`."""
        np.save(folder / f"{name}.npy", self._data)
        np.save(folder / f"{name}-starts.npy", self._starts)

    @classmethod
    def load(cls, folder: Path, name: str) -> Strings:
        """Map what `save` wrote."""
        return cls(
            np.load(folder / f"{name}.npy", mmap_mode="r"), np.load(folder / f"{name}-starts.npy", mmap_mode="r")
        )


_ARRAYS = (
    "segment_first",
    "segment_start",
    "segment_end",
    "segment_speaker",
    "recording",
    "official_split",
    "sample_start",
    "frame_start",
)
_STRINGS = ("id", "path", "segment_text", "speakers")
SPLITS = ("", "train", "validation", "test")
"""Names of the numbers in `Index.official_split`."""
_SEVERAL = -1


class _Texts(Sequence[str]):
    """The text of each row: those of its segments, with spaces between."""

    def __init__(self, segments: Strings, first: NDArray[np.int64]) -> None:
        self._segments = segments
        self._first = first

    def __len__(self) -> int:
        return len(self._first) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        at = index % len(self)
        return " ".join(filter(None, self._segments[int(self._first[at]) : int(self._first[at + 1])]))


@dataclass(frozen=True)
class IndexedSegment:
    """A segment of an indexed row."""

    start: float
    """Seconds from the beginning of the row."""
    end: float
    speaker: int
    """Its number in `Index.speakers`; -1 where it has none."""
    text: str


class Index:
    """N rows with K segments in all.

    `id` and `path` of each row. Row i has the segments `segment_first[i]` (N + 1,) to `segment_first[i + 1]`, with
    `segment_start`, `segment_end` (K,) in seconds from the row's beginning, `segment_speaker` (K,) and `segment_text`.
    `speakers` are the names, sorted; a speaker's number is the place there, -1 for none. `recording` (N,) is equal for
    rows of one file; `official_split` (N,) is a number in SPLITS. `sample_start` and `frame_start` (N + 1,) are where
    each row begins in the cache's files.
    """

    def __init__(
        self,
        *,
        id: Strings,
        path: Strings,
        speakers: Strings,
        segment_first: NDArray[np.int64],
        segment_start: NDArray[np.float64],
        segment_end: NDArray[np.float64],
        segment_speaker: NDArray[np.int64],
        segment_text: Strings,
        recording: NDArray[np.int64],
        official_split: NDArray[np.int64],
        sample_start: NDArray[np.int64],
        frame_start: NDArray[np.int64],
    ) -> None:
        self.id = id
        self.path = path
        self.speakers = speakers
        self.segment_first = segment_first
        self.segment_start = segment_start
        self.segment_end = segment_end
        self.segment_speaker = segment_speaker
        self.segment_text = segment_text
        self.recording = recording
        self.official_split = official_split
        self.sample_start = sample_start
        self.frame_start = frame_start
        self.text: Sequence[str] = _Texts(segment_text, segment_first)
        """The text of each row; "" for none."""

    def __len__(self) -> int:
        return len(self.id)

    @cached_property
    def speaker(self) -> NDArray[np.int64]:
        """(N,) the speaker of each row; -1 for rows of several speakers, or of none."""
        row_K = np.repeat(np.arange(len(self)), np.diff(self.segment_first))
        lowest_N = np.full(len(self), len(self.speakers), dtype=np.int64)
        highest_N = np.full(len(self), _SEVERAL, dtype=np.int64)
        np.minimum.at(lowest_N, row_K, self.segment_speaker)
        np.maximum.at(highest_N, row_K, self.segment_speaker)
        return np.where(lowest_N == highest_N, lowest_N, _SEVERAL)

    def segments(self, position: int) -> list[IndexedSegment]:
        """The segments of a row, in the order of their starts."""
        numbers = range(int(self.segment_first[position]), int(self.segment_first[position + 1]))
        return [
            IndexedSegment(
                float(self.segment_start[k]),
                float(self.segment_end[k]),
                int(self.segment_speaker[k]),
                self.segment_text[k],
            )
            for k in numbers
        ]

    @property
    def frames(self) -> NDArray[np.int64]:
        """(N,) frames of each row."""
        return np.diff(self.frame_start)

    def save(self, folder: Path) -> None:
        """Write the index into `folder`."""
        for name in _STRINGS:
            getattr(self, name).save(folder, name)
        for name in _ARRAYS:
            np.save(folder / f"{name}.npy", getattr(self, name))

    @classmethod
    def load(cls, folder: Path) -> Index:
        """Map what `save` wrote."""
        parts: dict[str, Any] = {name: Strings.load(folder, name) for name in _STRINGS}
        parts |= {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in _ARRAYS}
        return cls(**parts)
