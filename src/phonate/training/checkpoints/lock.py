"""One process writes checkpoints to a folder, not two."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import time
from pathlib import Path

from phonate.config.errors import CheckpointError

PATIENCE_SECONDS = 10.0
"""How long to wait: a killed process may need a moment to finish its last write and be gone."""

_log = logging.getLogger(__name__)


class FolderLock:
    """A lock on `folder/.lock` held by this process, and released by the system when the process dies.

    A POSIX record lock, because a flock would be inherited by loader workers and outlive a killed trainer.
    """

    def __init__(self, folder: Path) -> None:
        self._descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._acquire(folder)
        except BaseException:
            os.close(self._descriptor)
            raise

    def _acquire(self, folder: Path) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
                    _log.warning("%s: this file system has no locks; take care to train into it once only", folder)
                    return
                if error.errno not in (errno.EACCES, errno.EAGAIN):
                    raise
                if time.monotonic() > deadline:
                    owner = os.pread(self._descriptor, 100, 0).decode(errors="replace") or "unknown"
                    message = f"{folder}: another process ({owner}) is saving checkpoints here; stop it first"
                    raise CheckpointError(f"{message}, or train into another folder") from error
                time.sleep(0.1)
            else:
                os.ftruncate(self._descriptor, 0)
                os.pwrite(self._descriptor, str(os.getpid()).encode(), 0)
                return

    def release(self) -> None:
        """Let another process save here."""
        os.close(self._descriptor)
