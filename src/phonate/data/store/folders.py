"""Cache folders: written under a temporary name and renamed when complete, with a digest of every file."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import psutil

from phonate.config.errors import DataError

DIGESTS = "digests.json"
VERIFIED = "verified.json"
_VERIFIED_SECONDS = 7 * 24 * 3600.0
"""All bytes are compared again after this time, to find silent disk errors."""
_ABANDONED_SECONDS = 24 * 3600.0
_FINGERPRINT = re.compile("[0-9a-f]{24}")
"""The name of a prepared corpus."""

_hash: Callable[[], hashlib.blake2b] = partial(hashlib.blake2b, digest_size=16)


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder to fill, which is synced, given digests of its files and renamed to `folder` on exit.

    If another process created `folder` meanwhile, that one is kept. Temporary folders of killed processes are removed.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(folder.parent)
    host = socket.gethostname().replace(".", "-")
    beside = folder.with_name(f".{folder.name}.{host}.{os.getpid()}")
    beside.mkdir(exist_ok=True)
    try:
        yield beside
        digests = {file.name: _digest(file) for file in sorted(beside.iterdir())}
        (beside / DIGESTS).write_text(json.dumps(digests, indent=1), encoding="utf-8")
        sync(beside)
        try:
            beside.rename(folder)
        except OSError:
            if not (folder / DIGESTS).is_file():  # else another process was first, with the same content
                raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def verify(folder: Path) -> None:
    """Raise DataError where a file differs from what was written.

    Bytes are compared when a file's size or time is not that of the last comparison, and once a week; otherwise only
    these are looked at.
    """
    try:
        digests: dict[str, str] = json.loads((folder / DIGESTS).read_text(encoding="utf-8"))
        stamps = {name: _stamp(folder / name) for name in digests}
        if _verified_before(folder, stamps):
            return
        for name, digest in digests.items():
            if _digest(folder / name) != digest:
                raise ValueError(f"{name} differs from what was written")
    except (OSError, ValueError, AttributeError) as error:
        raise damaged(folder, error) from error
    with suppress(OSError):  # a cache that is read only is compared each time
        beside = folder / f".{VERIFIED}.{os.getpid()}"
        beside.write_text(json.dumps({"time": time.time(), "files": stamps}), encoding="utf-8")
        beside.replace(folder / VERIFIED)


def damaged(folder: Path, error: Exception) -> DataError:
    """What to raise for a folder of a cache that can't be read."""
    return DataError(f"{folder}: damaged ({error}); delete this folder to prepare it again")


def sync(folder: Path) -> None:
    """Wait until the disk has a folder of files. Without it a power cut may leave the folder's name, and files of no
    length under it."""
    for path in (*folder.iterdir(), folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, _hash).hexdigest()


def _stamp(file: Path) -> list[int]:
    status = file.stat()
    return [status.st_size, status.st_mtime_ns]


def _verified_before(folder: Path, stamps: dict[str, list[int]]) -> bool:
    try:
        known = json.loads((folder / VERIFIED).read_text(encoding="utf-8"))
        return bool(known["files"] == stamps and 0.0 <= time.time() - known["time"] < _VERIFIED_SECONDS)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _remove_abandoned(parent: Path) -> None:
    """Remove unfinished folders whose processes are gone: those of this machine, and those of an unknown one (as
    earlier versions named them) after a day. Only in a cache are the latter ours for certain: predicted mels are
    written where the user says, beside folders of others."""
    host = socket.gethostname().replace(".", "-")
    in_cache = (parent / DIGESTS).is_file()
    with suppress(OSError):
        for entry in list(os.scandir(parent)):
            name, _, pid = entry.name.rpartition(".")
            if not entry.name.startswith(".") or not pid.isdecimal() or not entry.is_dir(follow_symlinks=False):
                continue
            ours = name.endswith(f".{host}")
            former = "." not in name[1:] and (in_cache or _FINGERPRINT.fullmatch(name[1:]) is not None)
            old = former and time.time() - entry.stat().st_mtime > _ABANDONED_SECONDS
            if (ours or old) and not psutil.pid_exists(int(pid)):
                shutil.rmtree(entry.path, ignore_errors=True)
