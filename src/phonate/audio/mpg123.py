"""Keeping the notes of libmpg123 off the console.

libsndfile decodes MP3 with libmpg123, which writes notes on damaged frames straight to the file descriptor of standard
error, and libsndfile has no option against it.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import threading
from collections.abc import Iterator

_STANDARD_ERROR = 2
_NOTE = re.compile(
    rb"(Note: (Illegal Audio-MPEG|Trying to resync|Skipped \d+ bytes|Hit end of)"
    rb"|Warning: (Xing|Encountered|Real sample|Cannot|Big change|Frankenstein)|\[[\w./]*libmpg123/).*"
)


class _Filter:
    """Standard error led through a temporary file while any thread decodes; what mpg123 did not write is passed on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._console = -1
        self._buffer = -1

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        self._enter()
        try:
            yield
        finally:
            self._leave()

    def _enter(self) -> None:
        with self._lock:
            self._users += 1
            if self._users > 1:
                return
            if self._buffer < 0:
                with tempfile.TemporaryFile(buffering=0) as file:
                    self._buffer = os.dup(file.fileno())
            with contextlib.suppress(OSError):  # standard error may be closed
                self._console = os.dup(_STANDARD_ERROR)
                os.dup2(self._buffer, _STANDARD_ERROR, inheritable=True)

    def _leave(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users or self._console < 0:
                return
            os.dup2(self._console, _STANDARD_ERROR, inheritable=True)
            size = os.lseek(self._buffer, 0, os.SEEK_CUR)
            if size:
                self._pass_on(os.pread(self._buffer, size, 0))
                os.lseek(self._buffer, 0, os.SEEK_SET)
                os.ftruncate(self._buffer, 0)
            os.close(self._console)
            self._console = -1

    def _pass_on(self, written: bytes) -> None:
        others = b"".join(
            line for line in written.splitlines(keepends=True) if line.strip() and not _NOTE.match(line.strip())
        )
        if others:
            with contextlib.suppress(OSError):  # the console has gone
                os.write(self._console, others)


_filter = _Filter()
quiet = _filter.on
"""Within, nothing that libmpg123 notes reaches standard error. For short calls: other output waits until the end."""
