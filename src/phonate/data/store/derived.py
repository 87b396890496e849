"""Features that are too expensive to compute in each epoch (F0, Whisper encodings): computed once, memory-mapped."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from phonate.audio.settings import AudioConfig
from phonate.data.parallel import map_files
from phonate.data.progress import report_progress
from phonate.data.store.folders import DIGESTS, damaged, new_folder, verify
from phonate.data.store.pitch import crashed, pitch_of
from phonate.data.store.prepared import Prepared

Values = npt.NDArray[Any]

logger = logging.getLogger("phonate")

_SAID_EVERY = 500
_PITCH_VERSION = 2  # raise it when F0 is computed otherwise


class DerivedFeatures:
    """One array (frames, width) for each recording, in one file. `open_derived` makes it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._starts: list[int] = np.load(folder / "starts.npy").tolist()
        self._values = np.load(folder / "values.npy", mmap_mode="r")

        if self._starts[-1] != len(self._values):
            raise ValueError(f"{len(self._values)} of {self._starts[-1]} frames are there")

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getstate__(self) -> dict[str, Path]:
        """Workers map the file themselves; a pickled memmap would copy it."""
        return {"folder": self._folder}

    def __setstate__(self, state: dict[str, Path]) -> None:
        self.__init__(state["folder"])  # type: ignore[misc]

    def __getitem__(self, index: int) -> npt.NDArray[Any]:
        """The array (frames, width) of recording number `index`: integers as they are stored, else float32."""
        values = self._values[self._starts[index] : self._starts[index + 1]]
        return np.asarray(values, dtype=values.dtype if values.dtype.kind in "iu" else np.float32)

    @property
    def width(self) -> int:
        """Values of a frame."""
        return int(self._values.shape[1])


def open_derived(
    folder: Path,
    count: int,
    compute: Callable[[int], Values],
    dtype: npt.DTypeLike = np.float32,
    each: Callable[[Callable[[int], Values], range], Iterable[Values]] = map,
    what: str = "computing features",
) -> DerivedFeatures:
    """`compute(i)`, (frames, width), for i from 0 to count - 1, read from `folder` if they were computed before.

    The folder's name must identify everything that the values depend on. It is created only when complete.
    `each` maps `compute` over a range, as `map` does; `what` describes the work in logs and progress reports.
    Raises DataError if a file was damaged since.
    """
    if not folder.is_dir():
        with new_folder(folder) as beside:
            _write(beside, what, count, each(compute, range(count)), dtype)
    if (folder / DIGESTS).is_file():  # earlier versions wrote none
        verify(folder)
    try:
        derived = DerivedFeatures(folder)
        if len(derived) != count:
            raise ValueError(f"features of {len(derived)} recordings, the corpus has {count}")
    except (OSError, ValueError, EOFError) as error:
        raise damaged(folder, error) from error
    return derived


def open_pitch(prepared: Prepared, audio: AudioConfig) -> DerivedFeatures:
    """F0 (T, 1) in Hz of each recording of a prepared corpus at the frames of its mel, the same for all tasks."""
    return open_derived(
        prepared.folder / f"f0-v{_PITCH_VERSION}",
        len(prepared.index),
        partial(pitch_of, prepared.folder, audio),
        each=lambda compute, positions: map_files(compute, positions, crashed, "computing pitch", _ignore),
        what="computing pitch",
    )


def _ignore(what: str, done: int, total: int) -> None:
    """Progress is reported when an array is written."""


def _write(folder: Path, what: str, count: int, arrays: Iterable[Values], dtype: npt.DTypeLike) -> None:
    """Each array goes to the disk as it comes: together they may be larger than the memory."""
    starts, width = [0], None
    with (folder / "values.npy").open("wb") as file:
        for index, array in enumerate(arrays):
            values = np.ascontiguousarray(array, dtype=dtype)
            if width is None:
                width = values.shape[1]
                _write_header(file, dtype, 0, width)
            if values.shape[1:] != (width,):
                raise ValueError(f"{what}: recording {index} has features {values.shape}, others are {width} wide")
            file.write(values.tobytes())
            starts.append(starts[-1] + len(values))
            report_progress(what, index + 1, count)
            if (index + 1) % _SAID_EVERY == 0:
                logger.info("%s: %d of %d recordings", what, index + 1, count)
        file.seek(0)
        _write_header(file, dtype, starts[-1], width or 0)
    np.save(folder / "starts.npy", np.array(starts, dtype=np.int64))


def _write_header(file: BinaryIO, dtype: npt.DTypeLike, frames: int, width: int) -> None:
    """The header of a .npy file. NumPy leaves room in it for any number of `frames`, so it can be written again."""
    descr = np.lib.format.dtype_to_descr(np.dtype(dtype))
    header = {"descr": descr, "fortran_order": False, "shape": (frames, width)}
    np.lib.format.write_array_header_1_0(file, header)
