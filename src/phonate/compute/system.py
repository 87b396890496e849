"""What differs between operating systems: signals, memory and limits of a process, flushing of files, locks between
processes."""

from __future__ import annotations

import errno
import logging
import math
import mmap
import os
import shutil
import signal
import stat
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from phonate.config.errors import InputError, PhonateError, plain_file

if TYPE_CHECKING:
    import numpy.typing as npt
    from filelock import FileLock

if sys.platform != "win32":
    import fcntl
    import resource

# ------------------------------------------------------------------------------------------ Signals

if sys.platform == "win32":
    HANGUP, STOP, STOP_EVENT, OWN_GROUP = signal.SIGBREAK, signal.SIGBREAK, signal.CTRL_BREAK_EVENT, 0x200
else:
    HANGUP, STOP, STOP_EVENT, OWN_GROUP = signal.SIGHUP, signal.SIGTERM, signal.SIGTERM, 0
"""The terminal was closed; what tells a process to save and end, how `Popen.send_signal` sends it, and the
`creationflags` of a process that can be told so."""
STOPPING = (signal.SIGINT, signal.SIGTERM, HANGUP)
"""Signals that end a process. From another one, SIGTERM kills on Windows."""


def ignore_console() -> None:
    """Ignore what a terminal sends to every process of a group, Ctrl-C and its closing: the parent handles them."""
    for number in (signal.SIGINT, HANGUP):
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def blocked_signals() -> Iterator[None]:
    """Signals that end a process wait; processes that are started within inherit this, until `unblock_signals`."""
    if sys.platform == "win32":  # a child is not interrupted there unless it is told to be
        yield
        return
    earlier = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, earlier)


def unblock_signals() -> None:
    """In a process that was started within `blocked_signals`."""
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)


# -------------------------- Memory: files mapped as arrays, and what is given back to the system

_MAPPED: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()


def map_array(path: Path, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """The values of a file as a read-only array (N,), read when they are used."""
    import numpy as np

    mapped = np.memmap(path, dtype=dtype, mode="r")
    _MAPPED.add(mapped._mmap)  # type: ignore[attr-defined]  # numpy offers no other way to it
    # As a plain array: a slice of a memmap is another memmap, and making one costs more than many a copy.
    return np.asarray(mapped)


def drop_mapped_pages() -> None:
    """Take the pages of all arrays of `map_array` out of this process's memory.

    They stay in the system's cache while there is room, and are mapped again when they are used. Otherwise a process
    that reads through a corpus ends up holding all of it.
    """
    if not hasattr(mmap, "MADV_DONTNEED"):  # Windows
        return
    for mapped in list(_MAPPED):
        mapped.madvise(mmap.MADV_DONTNEED)


def return_freed_pages() -> None:
    """Return to the system memory that the C library has freed but kept, and the pages of mapped files.

    glibc serves tensors of up to 32 MB from its heap and keeps what is freed: with batches of varying lengths a process
    grows to several times its live memory. `malloc_trim` returns the pages; other C libraries don't have it.
    """
    drop_mapped_pages()
    trim = _of_c_library("malloc_trim")
    if trim is not None:
        trim(0)


def _of_c_library(name: str) -> Any:
    """A function of Linux's C library; None where that has none of this name, and on other systems."""
    if sys.platform != "linux":
        return None
    import ctypes

    return getattr(ctypes.CDLL(None), name, None)


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
_LARGEST_IN_HEAP = 8 * 2**20
_LARGEST_FREE_END = 64 * 2**20


def limit_heap() -> None:
    """Have the C library take blocks over 8 MB straight from the system, to which they go back when they are freed.

    By itself glibc raises that limit to 32 MB as soon as such blocks are freed, and activations of varying sizes then
    fragment its heap. The cost is some page faults: 3 % of the processor time of a speech training step. With a limit
    set it would also return the end of its heap whenever 128 KB of it are free, hundreds of times a step: it keeps up
    to 64 MB. A vocoder's step has 300 page faults then, not 14,000, and takes no more memory at its peak; preparing 20
    clips has 100, not 4,000.
    """
    mallopt = _of_c_library("mallopt")
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_IN_HEAP)
        mallopt(_M_TRIM_THRESHOLD, _LARGEST_FREE_END)


# --------------------------------------------------------------------------------------------- Limits


def peak_memory() -> int:
    """The most bytes of memory that this process has held so far."""
    if sys.platform == "win32":
        import psutil

        return int(psutil.Process().memory_info().peak_wset)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def limit_memory(extra: int) -> None:
    """Let this process take at most `extra` bytes of addresses more than it has. Only Linux enforces such a limit."""
    if sys.platform == "linux":
        import psutil

        most = int(psutil.Process().memory_info().vms) + extra
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def limit_processor_time(seconds: float) -> None:
    """End this process when it has used `seconds` of processor time in all. Windows has no such limit."""
    if sys.platform != "win32":
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(seconds), resource.RLIM_INFINITY))


TIMEOUT_CODE: int = 124 if sys.platform == "win32" else -signal.SIGALRM
"""What `subprocess` returns of a process that `end_after` ended."""


def end_after(seconds: float) -> None:
    """End this process after `seconds`, whatever it waits for."""
    if sys.platform == "win32":
        timer = threading.Timer(seconds, os._exit, (TIMEOUT_CODE,))
        timer.daemon = True
        timer.start()
    else:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, seconds)


# ---------------------------------------------------------------------------------------------- Files


def sync(path: Path) -> None:
    """Wait until the content of a file, or the names in a folder, are on disk."""
    if sys.platform == "win32":
        if path.is_file():
            with path.open("r+b") as file:  # which flushing needs there; names are flushed with it
                os.fsync(file.fileno())
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def cache_folder(cache_dir: str | Path | None = None) -> Path:
    """`cache_dir`, or where caches are kept when nobody says."""
    if cache_dir is not None:
        return Path(cache_dir).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "phonate"


def private_folder(folder: Path) -> Path:
    """`folder`, made where it is not there, for what is executed: only this user can write there. Raises OSError."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    facts = folder.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & 0o077:
        raise PermissionError(f"{folder} is not a folder that only you can open: make it one, with mode 700")
    return folder


def written_whole(file: Path, write: Callable[[Path], object]) -> None:
    """Have `write` make a file in a folder that is there: it is whole or not at all. Raises OSError."""
    beside = file.with_name(f".{file.name[-80:]}.{os.urandom(4).hex()}")
    try:
        write(beside)
        os.replace(beside, file)
    finally:
        beside.unlink(missing_ok=True)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file whole or not at all: a reader sees the old one or the new one. Raises OSError."""
    written_whole(path, lambda beside: beside.write_bytes(content))


def write_output(path: str | Path, content: bytes | Callable[[Path], object], parents: bool = False) -> Path:
    """Write a file that was asked for, whole or not at all: its bytes, or what `content` does with another path in the
    folder, which is made where `parents`. Returns the path. Raises InputError for a pipe or a device, and where it
    can't be written."""
    path = plain_file(Path(path))
    try:
        if parents:
            path.parent.mkdir(parents=True, exist_ok=True)
        if callable(content):
            written_whole(path, content)
        else:
            write_whole(path, content)
    except OSError as error:
        raise unwritten(path, error, 0 if callable(content) else len(content)) from error
    return path


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Within this block outputs at `path` are written. Raises InputError where the disk has no room or forbids it."""
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise unwritten(path, error) from error
        if any(words in str(error) for words in _FULL):
            raise unwritten(path, OSError(errno.ENOSPC, str(error))) from error
        raise


_FULL = ("requested and", "No space left on device")
"""How NumPy and safetensors say that a disk is full."""


def unwritten(path: Path, error: OSError, needed: int = 0) -> InputError:
    """What to raise where an output can't be written that has `needed` bytes (0: nobody knows)."""
    named = str(path).encode(errors="backslashreplace").decode()
    return InputError(
        f"{named}: can't be written ({why_unwritten(path, error, needed)}); choose another path or free some space"
    )


def why_unwritten(path: Path, error: OSError, needed: int = 0) -> str:
    """Why `path`, of `needed` bytes (0: nobody knows), can't be written; of a full disk, what it lacks."""
    if isinstance(error, NoSpaceError):
        return f"the disk is too full: {error.strerror}"
    if not is_full(error) and not any(words in str(error) for words in _FULL):
        return error.strerror or str(error)
    free = free_bytes(path)
    if not needed:
        return f"disk full: {megabytes(free)} free"
    return f"disk full: {megabytes(needed)} needed, {megabytes(max(needed - free, 1000))} more than is free"


def is_full(error: BaseException | None) -> bool:
    """Whether a disk or a user's share of it is full, by an error or what caused it."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return error is not None and is_full(error.__cause__)


def free_bytes(path: Path) -> int:
    """Bytes free where `path` is or would be."""
    # on the disk of the nearest folder that exists
    return shutil.disk_usage(next(folder for folder in (path, *path.absolute().parents) if folder.exists())).free


def require_space(path: Path, needed: int) -> None:
    """Raise NoSpaceError where `needed` bytes are more than is free for `path`."""
    if needed > (free := free_bytes(path)):
        raise NoSpaceError(f"{megabytes(needed)} are needed, and {megabytes(free)} are free")


class NoSpaceError(OSError):
    """The disk will be full before the work is done."""

    def __init__(self, message: str) -> None:
        super().__init__(errno.ENOSPC, message)


class SpaceWatch:
    """Finds early that a disk has no room for many items, by what the first ones took.

    Args:
        path: Where they are written.
        weights: Of each item, in order: what its bytes are in proportion to, among items of its kind.
        kinds: Of each item. Of a kind of which nothing was done yet, nothing is expected.
    """

    def __init__(self, path: Path, weights: Sequence[float], kinds: Sequence[str] | None = None) -> None:
        self._path = path
        self._weights = weights
        self._kinds = kinds or [""] * len(weights)
        self._left = dict.fromkeys(self._kinds, 0.0)
        for kind, weight in zip(self._kinds, weights, strict=True):
            self._left[kind] += weight
        self._done = dict.fromkeys(self._left, 0.0)
        self._written = dict.fromkeys(self._left, 0.0)
        self._next = 0
        self._look_at = _FEW_ITEMS

    def add(self, item: int, written: int) -> None:
        """Item number `item` took `written` bytes; items before it that were not added took none. Raises NoSpaceError
        where those that follow need more than is free."""
        for number in range(self._next, item + 1):
            self._left[self._kinds[number]] -= self._weights[number]
            self._done[self._kinds[number]] += self._weights[number]
        self._written[self._kinds[item]] += written
        self._next = item + 1
        if self._next < self._look_at:
            return
        self._look_at = 2 * self._next
        known = [kind for kind, weight in self._done.items() if weight > 0.0]
        needed = sum(self._written[kind] / self._done[kind] * self._left[kind] for kind in known)
        if needed > _CERTAIN * (free := free_bytes(self._path)):
            raise NoSpaceError(
                f"by the first {self._next} of {len(self._weights)} about {megabytes(int(needed))} more are needed, "
                f"and {megabytes(free)} are free"
            )


_FEW_ITEMS = 16
_CERTAIN = 1.25
"""What is needed is an estimate: so many times as much as is free is too much for certain."""


def megabytes(count: int) -> str:
    """A number of bytes as `12.3 MB`, a small one as `12 kB`."""
    return f"{count / 1e6:,.1f} MB" if count >= 100_000 else f"{math.ceil(count / 1e3)} kB"


@contextmanager
def temporary_file(content: bytes, suffix: str = "") -> Iterator[Path]:
    """A file with `content`, for as long as the block runs. Another program can open it on Windows, too, which forbids
    that of `tempfile.NamedTemporaryFile`."""
    import tempfile  # every command imports this module

    with tempfile.TemporaryDirectory(prefix="phonate-") as folder:
        file = Path(folder, f"content{suffix}")
        file.write_bytes(content)
        yield file


def sync_all(folder: Path) -> None:
    """Wait until the disk has a folder of files. Without it a power cut may leave the folder's name, and files of no
    length under it."""
    for path in (*folder.iterdir(), folder):
        sync(path)


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading, unbuffered. Raises OSError for a device, a pipe or a folder, without waiting."""
    flags = (getattr(os, name, 0) for name in ("O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))  # as far as the system has them
    descriptor = os.open(path, sum(flags, os.O_RDONLY))
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return open(descriptor, "rb", buffering=0)
    except BaseException:
        os.close(descriptor)
        raise


# ---------------------------------------------------------------------------------------------- Locks

_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
"""What a file system without locks says."""
_PID_LENGTH = 20

_log = logging.getLogger(__name__)


@contextmanager
def lock(file: Path, wait: bool = True) -> Iterator[bool]:
    """Whether this thread of this process holds the lock `file`, which is made.

    `wait`: for as long as another one holds it. On a file system without locks everybody holds it. Processes forked
    meanwhile share it, and keep it until they end.
    """
    from filelock import FileLock, Timeout  # every command imports this module

    file.parent.mkdir(parents=True, exist_ok=True)
    one = FileLock(file)
    try:
        one.acquire(blocking=wait)
    except Timeout:
        yield False
        return
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    try:
        yield True
    finally:
        one.release()


class LockTaken(Exception):
    """Another process holds a `ProcessLock`."""

    def __init__(self, owner: str) -> None:
        super().__init__(owner)
        self.owner = owner
        """Its process id, or "unknown"."""


class ProcessLock:
    """A lock on a file that belongs to this process alone, and holds its process id.

    On POSIX a record lock: loader workers would inherit that of `lock`, so it would outlive a killed trainer. A record
    lock is released when the process closes the file, so nothing else may open it here.
    """

    def __init__(self, file: Path, patience: float = 0.0, error: type[PhonateError] = InputError) -> None:
        """Raises LockTaken when another process still holds it after `patience` seconds, and `error` when the file is
        something else than our own."""
        self.file = file
        self._error = error
        self._windows: FileLock | None = None
        self._descriptor = -1
        if sys.platform == "win32":  # where others can't read what is locked
            from filelock import FileLock, Timeout

            self._windows = FileLock(file, timeout=patience)
            try:
                self._windows.acquire()
            except Timeout:
                raise LockTaken("unknown") from None
            return
        while self._descriptor < 0:
            self._descriptor = self._open()
            try:
                self._acquire(patience)
                if self._is_removed():  # by who held it, once it was opened here: another process would make a new one
                    self.release()
            except BaseException:
                os.close(self._descriptor)
                raise

    def _open(self) -> int:
        try:
            return os.open(self.file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise self._error(f"{self.file}: is a symbolic link; remove it") from error
            raise

    def _acquire(self, patience: float) -> None:
        owner = self._owner()
        deadline = time.monotonic() + patience
        while True:
            try:
                fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in _NO_LOCKS:
                    _log.warning(
                        "%s: this file system has no locks; make sure that only one process works in this folder",
                        self.file.parent,
                    )
                    return
                if error.errno not in (errno.EACCES, errno.EAGAIN):
                    raise
                if time.monotonic() >= deadline:
                    raise LockTaken(owner or "unknown") from error
                time.sleep(0.1)
                owner = self._owner()
            else:
                os.ftruncate(self._descriptor, 0)
                os.pwrite(self._descriptor, str(os.getpid()).encode(), 0)
                return

    def _is_removed(self) -> bool:
        """Whether the locked file is no longer that of its name."""
        try:
            return not os.path.samestat(os.fstat(self._descriptor), os.stat(self.file, follow_symlinks=False))
        except FileNotFoundError:
            return True

    def _owner(self) -> str:
        """The process id in the file; "" where it holds none, being new or damaged."""
        status = os.fstat(self._descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:  # what we write must not end up elsewhere
            raise self._error(f"{self.file}: not a plain file of its own; move it away")
        content = os.pread(self._descriptor, _PID_LENGTH, 0)
        return content.decode() if content.isdigit() else ""

    def release(self, remove: bool = False) -> None:
        """Let another process in. `remove`: the file is removed."""
        if self._windows is not None:
            self._windows.release()
            if remove:
                with suppress(OSError):  # another process has it
                    self.file.unlink()
        elif self._descriptor >= 0:
            if remove:  # first: a file that another process has locked meanwhile must not go
                self.file.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = -1


_STANDARD_ERROR = 2


def write_to_console(line: str) -> None:
    """Write a line to standard error by a single system call, which is safe in a signal handler."""
    start = "\n" if os.isatty(_STANDARD_ERROR) else ""  # a progress bar may be drawn there
    with suppress(OSError):  # the terminal has gone
        os.write(_STANDARD_ERROR, f"{start}{line}\n".encode("utf-8", "backslashreplace"))
