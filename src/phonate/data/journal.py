"""What this process reads, in a file that outlives it.

A decoder that crashes takes its process along, and one that hangs has it killed. What was being read then is read in
a process of its own the next time: what kills that one, too, is refused by name, and the others are innocent.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import psutil

from phonate.compute.remote import is_remote
from phonate.compute.system import cache_folder

if sys.platform != "win32":
    import fcntl

logger = logging.getLogger("phonate")

Source = Callable[[Any], str]
"""The name of what an item is read from: a path, or a shard, a line feed and a name in it."""

_PREFIX = ".reading"
_SLOT = 1 << 14
"""Bytes of an entry. A path is shorter."""
_READING, _SUSPECT = b"r", b"s"
_SAME_SECONDS = 2.0
"""By which the start of a process may differ from one look to the next."""


class Journal:
    """The entries of this process, and those of processes that died.

    The file is locked as long as its process lives: a container that is started anew with the same caches has another
    name for its machine, and other process ids.
    """

    def __init__(self, folder: Path) -> None:
        self.pid = os.getpid()
        self.folder = folder
        self.suspects: dict[str, int] = {}
        """What a process died at, and the number of its entry here."""
        self._ours = f"{_PREFIX}.{_host()}."
        self._path = folder / f"{self._ours}{self.pid}.{_begun(self.pid):.0f}"
        self._file: BinaryIO | None = None
        self._lock = threading.Lock()
        self._free: list[int] = []
        self._entries = 0
        self._users = 0

    @contextmanager
    def reading(self, source: str) -> Iterator[None]:
        """Within, `source` is noted."""
        entry = self._note(_READING, source)
        try:
            yield
        finally:
            self._clear(entry)

    def take_over(self) -> None:
        """Make what dead processes noted the suspects of this one."""
        for path in sorted(self.folder.glob(f"{_PREFIX}.*")) if self.folder.is_dir() else ():
            if path == self._path:
                continue
            with suppress(OSError), _looking_at(path) as dead:  # OSError: another process was first
                for kind, source in _entries(path):
                    file = source.partition("\n")[0]
                    known = source in self.suspects or not (is_remote(file) or os.path.exists(file))
                    if (dead or kind == _SUSPECT) and not known:
                        self.suspects[source] = self._note(_SUSPECT, source)
                if dead:
                    path.unlink()

    def acquit(self, source: str) -> None:
        """It was read whole."""
        entry = self.suspects.pop(source, None)
        if entry is not None:
            self._clear(entry)

    def open(self) -> None:
        """One user more."""
        with self._lock:
            self._users += 1

    def close(self) -> None:
        """One user less. After the last, the file is removed once nothing is noted in it any more; a thread may still
        begin to read."""
        with self._lock:
            self._users = max(0, self._users - 1)
            self._remove()

    def _remove(self) -> None:
        if self._users == 0 and self._file is not None and len(self._free) == self._entries:
            self._file.close()
            self._file, self._free, self._entries = None, [], 0
            with suppress(OSError):
                self._path.unlink()

    def _note(self, kind: bytes, source: str) -> int:
        with self._lock:
            if self._file is None:
                with suppress(OSError):
                    self.folder.mkdir(parents=True, exist_ok=True)
                    self._file = _opened(self._path)
            if self._free:
                entry = self._free.pop()
            else:
                entry, self._entries = self._entries, self._entries + 1
            self._write(entry, kind + _encoded(source) + b"\0")
        return entry

    def _clear(self, entry: int) -> None:
        with self._lock:
            self._write(entry, b"\0")
            self._free.append(entry)
            self._remove()

    def _write(self, entry: int, content: bytes) -> None:
        if self._file is not None:
            with suppress(OSError):  # on a full disk nothing is noted; that it is full, others say
                self._file.seek(entry * _SLOT)
                self._file.write(content)


@lru_cache(maxsize=1)
def _begun(process: int) -> float:
    """When this process was started, in seconds."""
    return float(psutil.Process(process).create_time())


def _encoded(source: str) -> bytes:
    return source.encode("utf-8", "surrogateescape")[: _SLOT - 2]


def _entries(path: Path) -> Iterator[tuple[bytes, str]]:
    content = path.read_bytes()
    for start in range(0, len(content), _SLOT):
        entry = content[start : start + _SLOT].split(b"\0", 1)[0]
        if entry:
            yield entry[:1], entry[1:].decode("utf-8", "surrogateescape")


def _host() -> str:
    return socket.gethostname().replace(".", "-")


def _opened(path: Path) -> BinaryIO:
    """The file, new and locked."""
    while True:
        file = path.open("w+b", buffering=0)
        if sys.platform == "win32":
            return file
        with suppress(OSError):  # a file system without locks
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()  # taken for that of a dead process, before it was locked


@contextmanager
def _looking_at(path: Path) -> Iterator[bool]:
    """Whether the process that writes `path` is dead; within, no other process takes it over. Raises OSError."""
    host, _, process = path.name.removeprefix(f"{_PREFIX}.").partition(".")
    here = host == _host()
    if here and _is_alive(process):
        yield False
        return
    if sys.platform == "win32":
        yield here
        return
    with path.open("r+b") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            dead = True
        except BlockingIOError:
            dead = False
        except OSError:  # a file system without locks
            dead = here
        yield dead


def _is_alive(name: str) -> bool:
    """Whether PID.START is a process of this machine; another one may have its number meanwhile."""
    pid, _, start = name.partition(".")
    try:
        begun = float(psutil.Process(int(pid)).create_time())
        return abs(begun - float(start)) <= _SAME_SECONDS
    except (psutil.Error, ValueError):
        return False


_journals: dict[Path, Journal] = {}
_journals_lock = threading.Lock()


def own_journal(folder: Path) -> Journal:
    """That of this process in `folder`, or among the user's caches where nothing can be written there."""
    there = next(one for one in (folder.absolute(), *folder.absolute().parents) if one.exists())
    if not os.access(there, os.W_OK):
        folder = cache_folder(None)
    with _journals_lock:
        journal = _journals.get(folder)
        if journal is None or journal.pid != os.getpid():
            journal = _journals[folder] = Journal(folder)
        journal.take_over()
        return journal
