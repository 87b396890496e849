"""Cores and memory that this process may use under CPU affinity and control groups.

A container sees all cores and memory of its host; its limits are in the files of its control group. (joblib.cpu_count
reads only the top control group, and imports numpy.)
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import psutil


def cores(root: Path = Path("/")) -> int:
    """Cores this process may use, at least 1: those of the affinity mask, limited by the control group's share.

    A share of 2.5 cores counts as 3. `root` is the parent of /proc and /sys/fs/cgroup.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    shares = [math.ceil(share) for share in _shares(root)]
    return max(1, min([allowed, *shares]))


def memory_bytes(root: Path = Path("/")) -> int:
    """Memory this process may use, in bytes: the machine's, limited by the control group."""
    return min([int(psutil.virtual_memory().total), *_memory_limits(root)])


def _shares(root: Path) -> Iterator[float]:
    """Cores that the control group and those above it allow; empty without a limit."""
    for folder in _folders(root, None):
        quota, _, period = _text(folder / "cpu.max").partition(" ")
        if quota.isdigit() and period.isdigit() and int(period):
            yield int(quota) / int(period)
    for folder in _folders(root, "cpu"):
        quota, period = _text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(period):  # -1 is no limit
            yield int(quota) / int(period)


def _memory_limits(root: Path) -> Iterator[int]:
    files = [folder / "memory.max" for folder in _folders(root, None)]
    files += [folder / "memory.limit_in_bytes" for folder in _folders(root, "memory")]
    for file in files:
        if (text := _text(file)).isdigit():  # "max" is no limit; neither is 2^63 of version 1, by its size
            yield int(text)


def _folders(root: Path, controller: str | None) -> Iterator[Path]:
    """Folders of the process's control group and those above it: version 2 for None, else version 1's hierarchy.

    In a container the path is the host's, which is not mounted there: what is mounted at the top is its own group.
    """
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, names, path = [*line.split(":", 2), "", ""][:3]
        if names == "" if controller is None else controller in names.split(","):
            mount = root / "sys/fs/cgroup" / ("" if controller is None else controller)
            inside = PurePosixPath(path.lstrip("/"))
            yield from dict.fromkeys(mount / part for part in (inside, *inside.parents))


def _text(file: Path) -> str:
    """The text of a file; empty if it does not exist, as in groups without that controller."""
    try:
        return file.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
