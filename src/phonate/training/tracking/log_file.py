"""RUN/logs: what phonate logs, as a file."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

from phonate.compute.distributed import Ranks

logger = logging.getLogger("phonate")


@contextlib.contextmanager
def log_file(path: Path, ranks: Ranks) -> Iterator[None]:
    """Within this block, what phonate logs is also appended to `path`, by the first rank."""
    if not ranks.is_main:
        yield
        return
    handler = logging.FileHandler(path, encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()
