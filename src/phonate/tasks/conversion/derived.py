"""Features that cost too much to be made again in each epoch (F0, Whisper's), computed once and memory-mapped."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from phonate.audio.decoding import FloatArray

logger = logging.getLogger("phonate")

_SAID_EVERY = 500


class DerivedFeatures:
    """One array (frames, width) for each recording, in one file. `open_derived` makes it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._starts: list[int] = np.load(folder / "starts.npy").tolist()
        self._values = np.load(folder / "values.npy", mmap_mode="r")

    def __getstate__(self) -> dict[str, Path]:
        """Loader workers map the file anew; a pickled memmap would be a copy of it."""
        return {"folder": self._folder}

    def __setstate__(self, state: dict[str, Path]) -> None:
        self.__init__(state["folder"])  # type: ignore[misc]

    def __getitem__(self, index: int) -> FloatArray:
        """The array of recording number `index`, as float32."""
        return np.asarray(self._values[self._starts[index] : self._starts[index + 1]], dtype=np.float32)

    @property
    def width(self) -> int:
        """Values of a frame."""
        return int(self._values.shape[1])


def open_derived(
    folder: Path, count: int, compute: Callable[[int], FloatArray], dtype: npt.DTypeLike = np.float32
) -> DerivedFeatures:
    """`compute(i)`, (frames, width), for i from 0 to count - 1, read from `folder` if they were computed before.

    The folder's name must tell everything that the values depend on. It appears only when it is complete.
    """
    if not folder.is_dir():
        beside = folder.with_name(f".{folder.name}.{os.getpid()}")
        beside.mkdir(parents=True, exist_ok=True)
        try:
            _write(beside, folder.name, count, compute, dtype)
            beside.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process was first
                raise
        finally:
            shutil.rmtree(beside, ignore_errors=True)
    return DerivedFeatures(folder)


def _write(folder: Path, what: str, count: int, compute: Callable[[int], FloatArray], dtype: npt.DTypeLike) -> None:
    arrays, starts = [], [0]
    for index in range(count):
        arrays.append(np.asarray(compute(index), dtype=dtype))
        starts.append(starts[-1] + len(arrays[-1]))
        if (index + 1) % _SAID_EVERY == 0:
            logger.info("%s: %d of %d recordings", what, index + 1, count)
    np.save(folder / "values.npy", np.concatenate(arrays))
    np.save(folder / "starts.npy", np.array(starts, dtype=np.int64))
