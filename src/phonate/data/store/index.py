"""The index of a prepared corpus: what training reads instead of manifests, memory-mapped."""

from __future__ import annotations

from collections.abc import Sequence
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


_ARRAYS = ("speaker", "sample_start", "frame_start")
_STRINGS = ("id", "path", "text", "speakers")


class Index:
    """N recordings: `id`, `path`, `text` and number of `speaker` of each, and where its samples and frames begin in
    the cache's files (N + 1 starts). `speakers` are the names, sorted; a speaker's number is the place there."""

    def __init__(
        self,
        *,
        id: Strings,
        path: Strings,
        text: Strings,
        speakers: Strings,
        speaker: NDArray[np.int64],
        sample_start: NDArray[np.int64],
        frame_start: NDArray[np.int64],
    ) -> None:
        self.id = id
        self.path = path
        self.text = text
        self.speakers = speakers
        self.speaker = speaker
        self.sample_start = sample_start
        self.frame_start = frame_start

    def __len__(self) -> int:
        return len(self.id)

    @property
    def frames(self) -> NDArray[np.int64]:
        """(N,) frames of each recording."""
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
