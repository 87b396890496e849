"""RUN/logs: what phonate logs, as a file."""

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
    """A log file that on a full disk costs one line on the console, not a traceback for each record."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Give the file up."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
            return
        logger.removeHandler(self)
        logger.warning("%s: can't be written (%s); this log ends here", self.baseFilename, error.strerror)


def _append(path: Path, message: str) -> None:
    """The last line of a process that is told to quit. Runs in a signal handler, so past the logger and its locks."""
    with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
        file.write(f"{datetime.now().isoformat(' ', 'seconds')} ERROR {message}\n")


@contextlib.contextmanager
def log_file(path: Path, ranks: Ranks) -> Iterator[None]:
    """Within this block, what phonate logs is also appended to `path`, by the first rank."""
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
        with contextlib.suppress(OSError):  # what could not be written has been reported
            handler.close()
