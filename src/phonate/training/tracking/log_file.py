"""RUN/logs: log files."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from pathlib import Path

from phonate.compute.distributed import Ranks
from phonate.training.signals import on_quit

logger = logging.getLogger("phonate")


class _LogFile(logging.FileHandler):
    """A log file. If the disk is full, one warning is printed instead of a traceback for each record."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Stop writing the file."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
            return
        logger.removeHandler(self)
        logger.warning("%s: can't be written (%s); no more is logged to this file", self.baseFilename, error.strerror)


def _append(path: Path, message: str) -> None:
    """Write the last line when the process is terminated. Bypasses the logger: runs in a signal handler."""
    with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
        file.write(f"{datetime.now().isoformat(' ', 'seconds')} ERROR {message}\n")


@contextlib.contextmanager
def log_file(path: Path, ranks: Ranks) -> Iterator[None]:
    """Context in which the first rank also appends phonate's log to `path`."""
    if not ranks.is_main:
        yield
        return
    handler = _LogFile(path, encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        with on_quit(partial(_append, path)):
            yield
    finally:
        logger.removeHandler(handler)
        with contextlib.suppress(OSError):  # a failed write was already reported
            handler.close()
