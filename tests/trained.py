"""Runs that tests train, once for each state of the sources on a machine, whichever tests and sessions ask."""

from __future__ import annotations

import functools
import getpass
import hashlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import filelock

import phonate

OLD = 24 * 3600.0
"""Seconds after which what no test has asked for is removed."""


@functools.cache
def _folder(program: str) -> Path:
    """Where runs are kept of which `program`, the helpers beside this file, phonate and torch are the sources."""
    import torch

    digest = hashlib.sha256(f"{sys.version} {torch.__version__} {program}".encode())
    package = Path(phonate.__file__).parent
    sources = [*package.rglob("*.py"), *package.rglob("*.yaml"), *Path(__file__).parent.glob("*.py"), Path(program)]
    for source in sorted(sources):
        digest.update(source.read_bytes())
    kept = Path(tempfile.gettempdir()) / f"phonate-tests-{getpass.getuser()}"
    kept.mkdir(mode=0o700, exist_ok=True)
    assert kept.stat().st_uid == os.getuid()
    folder = kept / digest.hexdigest()[:16]
    folder.mkdir(exist_ok=True)
    os.utime(folder)
    for other in kept.iterdir():
        if time.time() - other.stat().st_mtime > OLD:
            shutil.rmtree(other, ignore_errors=True)
    return folder


def trained(name: str, train: Callable[[Path], object]) -> Path:
    """The folder that `train` fills, at the same path each time. It is for reading: tests change copies of it."""
    kept = _folder(train.__code__.co_filename)
    folder, done = kept / name, kept / f"{name}.done"
    with filelock.FileLock(kept / f"{name}.lock"):
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)  # of a session that was killed
            folder.mkdir()
            train(folder)
            done.touch()
    return folder
