"""Work for processes, which import this file and with it nothing else."""

from __future__ import annotations

import os
import time
from pathlib import Path


def linger(number: int, folder: Path) -> int:
    """Work that tells who does it, and takes its time."""
    (folder / str(os.getpid())).touch()
    time.sleep(0.02)
    return number
