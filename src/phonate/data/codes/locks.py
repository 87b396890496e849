"""Locks between processes that make the same files."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def lock(file: Path, wait: bool = True) -> Iterator[bool]:
    """Whether this process holds the lock `file`, which is made. The system releases it when the process dies.

    `wait`: for as long as another process holds it. On a file system without locks every process holds it.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        yield _locked(descriptor, wait)
    finally:
        os.close(descriptor)


def _locked(descriptor: int, wait: bool) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
    return True
