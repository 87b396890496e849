"""Files mapped as arrays, and memory that is given back to the system."""

from __future__ import annotations

import mmap
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

_MAPPED: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()


def map_array(path: Path, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """The values of a file as a read-only array (N,), read when they are used."""
    mapped = np.memmap(path, dtype=dtype, mode="r")
    _MAPPED.add(mapped._mmap)  # type: ignore[attr-defined]  # numpy offers no other way to it
    # As a plain array: a slice of a memmap is another memmap, and making one costs more than many a copy.
    return np.asarray(mapped)


def drop_mapped_pages() -> None:
    """Take the pages of all arrays of `map_array` out of this process's memory.

    They stay in the system's cache while there is room, and are mapped again when they are used. Otherwise a process
    that reads through a corpus ends up holding all of it.
    """
    if not hasattr(mmap, "MADV_DONTNEED"):  # Windows
        return
    for mapped in list(_MAPPED):
        mapped.madvise(mmap.MADV_DONTNEED)


def return_freed_pages() -> None:
    """Return to the system memory that the C library has freed but kept, and the pages of mapped files.

    glibc serves tensors of up to 32 MB from its heap and keeps what is freed: with batches of varying lengths a process
    grows to several times its live memory. `malloc_trim` returns the pages; other C libraries don't have it.
    """
    import ctypes

    drop_mapped_pages()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
