"""Mapped files: read as arrays, and their pages given back; what only Linux's C library can do."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import numpy as np
import pytest

from phonate.compute.system import drop_mapped_pages, limit_heap, map_array, return_freed_pages


def resident(path: Path) -> int:
    """kB of a mapped file that are in this process's memory."""
    entries = Path("/proc/self/smaps").read_text().split(str(path))[1:]
    return sum(int(entry.split("Rss:")[1].split()[0]) for entry in entries)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_pages_are_given_back_and_values_stay(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(-(2**15), 2**15, 4_000_000).astype("<i2")
    path = tmp_path / "values.int16"
    values.tofile(path)
    mapped = map_array(path, "<i2")
    part = mapped[1000:2000]
    total = int(mapped.astype(np.int64).sum())
    assert resident(path) > 7000
    drop_mapped_pages()
    assert resident(path) < 100
    assert np.array_equal(part, values[1000:2000])
    assert int(mapped.astype(np.int64).sum()) == total
    del mapped, part
    drop_mapped_pages()  # of files that are no longer mapped, there is nothing to drop


def test_other_systems_are_not_asked_for_a_c_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(name: None) -> None:
        raise TypeError("argument of type 'NoneType' is not iterable")  # Windows has no library without a name

    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(ctypes, "CDLL", refused)
    return_freed_pages()
    limit_heap()
