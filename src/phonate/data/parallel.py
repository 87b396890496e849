"""Work on many files: executors: this process, threads, several processes, a Ray cluster.

A file that crashes its process does not end the others.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any, Protocol, TypeVar

from phonate.compute.resources import cores
from phonate.compute.system import STOPPING, blocked_signals, cache_folder, ignore_console, limit_heap, unblock_signals
from phonate.config.errors import DataError
from phonate.config.registry import load_plugin, loaded_plugins
from phonate.data.journal import Source, own_journal
from phonate.data.progress import Progress as Progress
from phonate.data.progress import Stage as Stage
from phonate.data.progress import ignore_progress as ignore_progress
from phonate.data.progress import progress_listener as progress_listener
from phonate.data.progress import report_progress as report_progress
from phonate.data.progress import track as track

logger = logging.getLogger("phonate")

Item = TypeVar("Item")


Result = TypeVar("Result")

# -------------------------------------------------------- Executors: where work on many items is done


def no_file(item: object) -> Path | None:
    """Of items that need no file."""
    return None


def no_crash(item: object) -> Any:
    """Raises, for work whose results can't do without an item at which a process died."""
    raise DataError(f"the process that worked on recording {item} died; free some memory and try again")


class Executor(Protocol):
    """Where work on many items is done. The results are the same everywhere, and in the order of the items."""

    def map(
        self,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        on_crash: Callable[[Item], Result] = no_crash,
        file: Callable[[Item], Path | None] = no_file,
    ) -> Iterator[Result]:
        """Yield `function(item)` for each item, few at a time, for there may be a million.

        Args:
            function: picklable; an error that it raises ends the work.
            on_crash: gives the result for an item whose process died (decoder crash, out of memory), where processes
                do the work.
            file: what `function` reads of an item.
        """


class Here:
    """This process does the work, one item after the other."""

    def __init__(self, source: Source | None = None, notes: Path | None = None) -> None:
        """`source`: what an item is read from, where a decoder may die at it, which is noted in the folder `notes`,
        by default that of the user's caches; see `phonate.data.journal`."""
        self._source = source
        self._notes = notes

    def map(
        self,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        on_crash: Callable[[Item], Result] = no_crash,
        file: Callable[[Item], Path | None] = no_file,
    ) -> Generator[Result]:
        """See `Executor`."""
        with _guarded(function, on_crash, self._source, self._notes) as one:
            yield from map(one, items)


@dataclass(frozen=True)
class Threads:
    """Threads of this process do the work: for what leaves Python's lock alone and has large results."""

    number: int
    source: Source | None = None
    """What an item is read from, where a decoder may die at it; see `phonate.data.journal`."""
    notes: Path | None = None
    """The folder in which that is noted. None: that of the user's caches."""

    def map(
        self,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        on_crash: Callable[[Item], Result] = no_crash,
        file: Callable[[Item], Path | None] = no_file,
    ) -> Iterator[Result]:
        """See `Executor`."""
        limit_heap()  # else arrays of each recording are requested anew from the system
        with ThreadPoolExecutor(self.number) as pool, _guarded(function, on_crash, self.source, self.notes) as one:
            remaining = iter(items)
            under_way: deque[tuple[Item, Future[Result]]] = deque()
            try:
                for number in count():
                    if number % (_ROUND * self.number) == 0:
                        for item in islice(remaining, 2 * _ROUND * self.number - len(under_way)):
                            under_way.append((item, pool.submit(one, item)))
                        # each time that this thread wakes, others wait for Python's lock
                        wait([done for _, done in islice(under_way, _ROUND * self.number)], timeout=_MOMENT_SECONDS)
                    if not under_way:
                        return
                    item, done = under_way.popleft()
                    yield _awaited(done, item, self.source)
            finally:
                for _, done in under_way:
                    done.cancel()


@dataclass(frozen=True)
class Processes:
    """Processes of this machine do the work."""

    number: int | None = None
    """None: one for each core that this process may use."""
    source: Source | None = None
    """What an item is read from, where a decoder may die at it and only this process does the work."""
    notes: Path | None = None
    """The folder in which that is noted. None: that of the user's caches."""

    def map(
        self,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        on_crash: Callable[[Item], Result] = no_crash,
        file: Callable[[Item], Path | None] = no_file,
    ) -> Iterator[Result]:
        """See `Executor`."""
        processes = cores() if self.number is None else self.number
        # A loader worker is a daemon: it may not start processes.
        alone = processes == 1 or len(items) < FEW or multiprocessing.current_process().daemon
        here = Here(self.source, self.notes)
        results = here.map(function, items, on_crash) if alone else _spread(function, items, on_crash, processes)
        with closing(results):
            yield from results


def _awaited(done: Future[Result], item: Item, source_of: Source | None) -> Result:
    """The result; a line says where it takes long."""
    if source_of is not None:
        with suppress(TimeoutError):
            return done.result(timeout=_LONG_SECONDS)
        source, size = source_of(item), 0
        with suppress(OSError, ValueError):  # ValueError: a name with a null byte
            size = os.path.getsize(source)
        with suppress(TimeoutError):
            return done.result(timeout=size / _LONG_BYTES_A_SECOND)
        if not done.done():
            logger.warning(
                "%s: takes long; if nothing comes of it, end this process and start again: it is then read apart",
                source,
            )
    return done.result()


@contextmanager
def _guarded(
    function: Callable[[Item], Result], on_crash: Callable[[Item], Result], source: Source | None, notes: Path | None
) -> Iterator[Callable[[Item], Result]]:
    """`function`, which does in another process what this one may die at."""
    if source is None:
        yield function
        return
    guard = Guard(function, on_crash, source, notes)
    try:
        yield guard
        guard.finish()
    finally:
        guard.end()


# ---------------------------------------------------------------------------------- Several processes

FEW = 32
"""Fewer files are processed in this process, since starting others takes longer."""
_ROUND = 4
"""Results of each thread that are taken at once; as many more are under way meanwhile. They may be large."""
_BATCH = 16
_BATCHES_AHEAD = 4
_IDLE_SECONDS = 10
"""Idle processes end after this time. Validation and extraction share them."""
_WATCH_SECONDS = 0.5
_MOMENT_SECONDS = 0.2
_LONG_SECONDS = 60.0
_LONG_BYTES_A_SECOND = 1e6
"""Work on an item that takes longer is worth a line."""
_PATIENCE_SECONDS = 600.0
_BYTES_A_SECOND = 2000.0
"""What the slowest work manages, which is to transcribe."""
ENVIRONMENT = {
    # the processes use all cores already
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    # keep freed memory in the process: requesting it anew for each recording takes a quarter of the time
    "MALLOC_MMAP_THRESHOLD_": str(32 * 1024**2),
    "MALLOC_TRIM_THRESHOLD_": str(128 * 1024**2),
}
"""Of processes that do the work."""


def map_files(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    on_crash: Callable[[Item], Result],
    what: str,
    progress: Progress | None = None,
    processes: int | None = None,
    notes: Path | None = None,
) -> Iterator[Result]:
    """Yield `function(item)` for each item, in order, from `processes`, and report the progress.

    Args:
        function: a module-level (picklable) function that returns errors rather than raising them.
        on_crash: see `Executor`.
        what: the description passed to `progress`, or to the current progress listener.
        processes: by default one for each core that this process may use.
        notes: the folder in which files are noted at which a decoder may die. None: that of the user's caches.
    """
    results = Processes(processes, lambda item: os.path.abspath(str(item)), notes).map(function, items, on_crash)
    for done, result in enumerate(results, 1):
        (progress or report_progress)(what, done, len(items))
        yield result


def _spread(
    function: Callable[[Item], Result], items: Sequence[Item], on_crash: Callable[[Item], Result], processes: int
) -> Generator[Result]:
    remaining = deque(items[start : start + _BATCH] for start in range(0, len(items), _BATCH))
    under_way: deque[tuple[Sequence[Item], Future[list[Result]]]] = deque()
    pool = _pool(processes)
    try:
        while remaining or under_way:
            try:
                while remaining and len(under_way) < _BATCHES_AHEAD * processes:
                    with _signals_later(), _signals_blocked():
                        under_way.append((remaining[0], pool.submit(_each, function, remaining[0])))
                    remaining.popleft()
                results = _result(under_way[0][1])
            except BrokenProcessPool:
                # It is unknown which file crashed: retry those in flight one at a time.
                again = [item for batch, _ in under_way for item in batch]
                under_way.clear()
                for item in again:
                    pool = _pool(processes)
                    try:
                        yield _result(pool.submit(function, item))
                    except BrokenProcessPool:
                        yield on_crash(item)
                pool = _pool(processes)
                continue
            under_way.popleft()
            yield from results
    except BaseException:  # interrupted, or the generator was closed
        with _signals_later():
            for _, batch_done in under_way:
                batch_done.cancel()
            _end_batches(pool)
            pool.shutdown(wait=True)  # with kill_workers=True its thread stumbles over results that still come in
        raise


def _end_batches(pool: Any) -> None:
    """Have the processes leave their batches after the item that they work on: sixteen may take half a minute."""
    for process in list((pool._processes or {}).values()):
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGTERM)


def _result(future: Future[Result]) -> Result:
    """The result of a batch; signals that arrive meanwhile are delivered shortly after."""
    while True:
        with _signals_later(), suppress(TimeoutError):
            return future.result(timeout=_MOMENT_SECONDS)


@contextmanager
def _signals_later() -> Iterator[None]:
    """Defer signals to the end of the block. An exception raised inside the pool's own conditions would leave one
    locked, and the pool's thread waiting for ever."""
    if threading.current_thread() is not threading.main_thread():  # signals are only raised in the main thread
        yield
        return
    came: list[int] = []
    earlier = {number: signal.getsignal(number) for number in STOPPING}
    raising = {number: handler for number, handler in earlier.items() if callable(handler)}
    for number in raising:
        signal.signal(number, lambda number, _: came.append(number))
    try:
        yield
    finally:
        for number, handler in raising.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Processes that are started within have signals blocked until `_serve` says what is to become of them: Ctrl-C,
    which reaches them, too, would end each with a traceback while it still imports."""
    from multiprocessing import resource_tracker

    from joblib.externals.loky.backend import resource_tracker as loky_tracker

    for tracker in (resource_tracker, loky_tracker):
        tracker.ensure_running()  # starting one unblocks the signals
    with blocked_signals():
        yield


def _pool(processes: int) -> Any:
    """The executor of the previous call, or a new one if that is broken.

    joblib's processes, unlike the standard library's, need no `if __name__ == "__main__"` in the user's script.
    """
    from joblib.externals.loky import get_reusable_executor

    return get_reusable_executor(
        processes, timeout=_IDLE_SECONDS, initializer=_serve, initargs=(os.getpid(),), env=ENVIRONMENT
    )


def one_process() -> Any:
    """An executor of a single process, for whoever asks, with the plug-ins of this one."""
    from joblib.externals.loky import ProcessPoolExecutor

    plugins = [record["path"] for record in loaded_plugins()]
    return ProcessPoolExecutor(1, initializer=_serve, initargs=(os.getpid(), plugins), env=ENVIRONMENT)


def submit(pool: Any, function: Callable[[Item], Result], item: Item) -> Future[Result]:
    """The work under way in a process of the pool, which is started where there is none yet."""
    with _signals_blocked():
        done: Future[Result] = pool.submit(function, item)
    return done


class Guard:
    """Does `function` on items, and notes what they are read from meanwhile; suspects are done in another process."""

    def __init__(
        self, function: Callable[[Any], Any], on_crash: Callable[[Any], Any], source: Source, notes: Path | None = None
    ) -> None:
        """`notes`: the folder of the journal; None: the user's caches."""
        self._function, self._on_crash, self._source = function, on_crash, source
        self._journal = own_journal(notes or cache_folder(None))
        self._journal.open()
        self._apart: Any = None
        self._lock = threading.Lock()
        self._innocent: set[str] = set()
        self._guilty: set[str] = set()
        self._ended = False

    def __call__(self, item: Any) -> Any:
        """What `function` or `on_crash` gives for the item."""
        source = self._source(item)
        # a loader worker is a daemon: it may not start processes
        if source not in self._journal.suspects or multiprocessing.current_process().daemon:
            with self._journal.reading(source):
                return self._function(item)
        with self._lock:
            return self._attempt(item, source)

    def _attempt(self, item: Any, source: str) -> Any:
        if source in self._guilty:
            return self._on_crash(item)
        if source not in self._innocent:
            logger.info("%s: a process died while it read this; it is read in another one", source)
        self._apart = self._apart or one_process()
        done = submit(self._apart, self._function, item)
        try:
            result = done.result(timeout=_patience(source))
        except (BrokenProcessPool, TimeoutError):
            if self._ended or (done.done() and not isinstance(done.exception(), BrokenProcessPool)):
                raise
            self._guilty.add(source)
            self._innocent.discard(source)
            self._end_process()
            return self._on_crash(item)
        self._innocent.add(source)
        return result

    def finish(self) -> None:
        """All items are done: suspects that were read whole are none any more."""
        for source in self._innocent:
            self._journal.acquit(source)

    def end(self) -> None:
        """Leave what is under way."""
        if not self._ended:
            self._ended = True
            self._end_process()
            self._journal.close()

    def _end_process(self) -> None:
        if self._apart is not None:
            self._apart.shutdown(wait=True, kill_workers=True)
            self._apart = None


def _patience(source: str) -> float:
    """Seconds that an item may take."""
    size = 0
    with suppress(OSError, ValueError):
        size = os.path.getsize(source.partition("\n")[0])
    return _PATIENCE_SECONDS + size / _BYTES_A_SECOND


_told_to_stop = threading.Event()
"""In a process of the pool: whether what is left of its batches is not wanted any more."""


class _Stopped(Exception):
    """A batch was left before its end."""


def _each(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    results = []
    for item in items:
        if _told_to_stop.is_set():
            raise _Stopped
        results.append(function(item))
    return results


def _serve(parent: int, plugins: Sequence[str] = ()) -> None:
    """Initialise a worker: ignore SIGINT and SIGHUP, which the parent handles, stop work on SIGTERM, and exit when the
    parent has ended."""
    ignore_console()
    signal.signal(signal.SIGTERM, lambda *_: _told_to_stop.set())
    unblock_signals()
    for plugin in plugins:
        load_plugin(Path(plugin))
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_WATCH_SECONDS)
    os._exit(1)
