"""What commands with a trained model do before they load it: refuse what can't be read or written."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path


def require_sounds(recordings: Iterable[str]) -> None:
    """Raise InputError for what is no recording on this machine, before the work starts."""
    from phonate.audio.readers import opened
    from phonate.compute.remote import is_remote
    from phonate.config.errors import InputError

    for recording in recordings:
        if is_remote(recording):
            raise InputError(f"{recording}: an address; download the recording, and give its file")
        with opened(Path(recording)):
            pass


def require_folders(*paths: str | None) -> None:
    """Raise InputError for a file that can't be written there, before the work starts."""
    from phonate.config.errors import InputError, plain_file

    for path in filter(None, paths):
        if not Path(path).absolute().parent.is_dir():
            raise InputError(f"{path}: the folder {Path(path).parent} does not exist; create it first")
        require_makeable(Path(path).absolute().parent)
        plain_file(Path(path))


def require_makeable(folder: Path) -> None:
    """Raise InputError for a folder that can't be made, or written in, before the work starts. It is not made: the work
    may be refused yet."""
    from phonate.compute.system import unwritten

    there = next(one for one in (folder.absolute(), *folder.absolute().parents) if os.path.lexists(one))
    if not there.is_dir():
        raise unwritten(folder, NotADirectoryError(errno.ENOTDIR, f"{there} is a file"))
    if not os.access(there, os.W_OK | os.X_OK):
        raise unwritten(folder, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))


def without_blas_threads() -> None:
    """Let NumPy's products of matrices run on the thread that asks for them. Those of a voice are so small that other
    threads would spend more time on waiting for each other than on them."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # is read when NumPy is imported
