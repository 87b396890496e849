"""A lock that only one process at a time holds: on a run, and on a folder of checkpoints."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import stat
import time
from pathlib import Path

from phonate.config.errors import CheckpointError

PATIENCE_SECONDS = 10.0
"""How long to wait: a killed process may need a moment to finish its last write and end."""
_PID_LENGTH = 20
"""More digits than a process id has."""

_log = logging.getLogger(__name__)


class FolderLock:
    """A lock on `folder/.lock` held by this process, and released by the system when the process dies.

    A POSIX record lock, because a flock would be inherited by loader workers and outlive a killed trainer. Such locks
    belong to the process: it must not open the file a second time, for closing it would release the lock.

    Raises CheckpointError when another process holds it, or when `.lock` is something else than our file.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / ".lock"
        try:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise CheckpointError(f"{self._path}: is a symbolic link; remove it") from error
            raise
        try:
            self._acquire()
        except BaseException:
            os.close(self._descriptor)
            raise

    def _acquire(self) -> None:
        owner = self._owner()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
                    _log.warning(
                        "%s: this file system has no locks; make sure that only one process trains into this folder",
                        self._path.parent,
                    )
                    return
                if error.errno not in (errno.EACCES, errno.EAGAIN):
                    raise
                if time.monotonic() > deadline:
                    raise CheckpointError(
                        f"{self._path.parent}: another process ({owner or 'unknown'}) is training here; stop it "
                        "first, or train into another folder"
                    ) from error
                time.sleep(0.1)
                owner = self._owner()
            else:
                os.ftruncate(self._descriptor, 0)
                os.pwrite(self._descriptor, str(os.getpid()).encode(), 0)
                return

    def _owner(self) -> str:
        """The process id in the file, for the message; "" where it holds none, being new or damaged."""
        status = os.fstat(self._descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:  # what we write must not end up elsewhere
            raise CheckpointError(f"{self._path}: not a plain file of its own; move it away")
        content = os.pread(self._descriptor, _PID_LENGTH, 0)
        return content.decode() if content.isdigit() else ""

    def release(self) -> None:
        """Let another process in."""
        os.close(self._descriptor)
