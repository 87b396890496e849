"""Work for the processes of a pool, which import this file and with it nothing else."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

from phonate.config.errors import DataError


def linger(number: int, folder: Path) -> int:
    """Work that tells who does it, by a dot in a file of its own, and takes its time."""
    with (folder / str(os.getpid())).open("ab") as file:
        file.write(b".")
    time.sleep(0.02)
    return number


def die_at(number: int, deadly: tuple[int, ...] = ()) -> int:
    """What a decoder that crashes does."""
    if number in deadly:
        os.kill(os.getpid(), 9)
    return number * number


def say(number: int) -> int:
    """Work that has something to tell."""
    logging.getLogger("phonate").warning("at %d", number)
    return number


def raise_at(number: int, wrong: int) -> int:
    """Work that can't be done."""
    if number == wrong:
        raise DataError(f"{number} is wrong")
    return number


def hang_at(file: Path) -> str:
    """What a decoder does that does not come to its end."""
    if str(file) == os.environ["HANGING"]:
        time.sleep(60)
    return file.name
