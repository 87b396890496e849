"""Work on many items over a Ray cluster (`data.executor: ray`): the executor of several machines.

The cluster is the one that Ray itself would choose: RAY_ADDRESS, or one that runs on this machine, or a new one of its
cores. Nodes need the same version of phonate, and see the files of a corpus under the same paths.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from phonate.compute.system import STOPPING
from phonate.config.errors import DataError, InputError, optional_package
from phonate.config.registry import load_plugin, loaded_plugins
from phonate.config.words import number_of
from phonate.data.parallel import ENVIRONMENT, Executor, Item, Result, no_crash, no_file
from phonate.data.settings import ExecutorName

logger = logging.getLogger("phonate")

_BATCH = 16
"""Items of a task, at most."""
_BATCHES_AHEAD = 4
"""Tasks under way for each CPU."""
_ATTEMPTS = 3
"""How often an item may see its worker die. It may be the machine's fault, of which there are many."""
_NODE_ATTEMPTS = 10
"""How often an item may be lost with its node."""
_PATIENCE_SECONDS = 60.0
_CONNECT_SECONDS = 10.0


class _Lost(Exception):
    """A worker, or a result, is gone; `deadly` where the item at work may be why."""

    def __init__(self, deadly: bool) -> None:
        super().__init__()
        self.deadly = deadly


@dataclass(frozen=True)
class RayCluster:
    """A Ray cluster does the work."""

    gpus: int = 0
    """GPUs that each task takes."""

    def __post_init__(self) -> None:
        """Raises MissingPackageError without Ray."""
        require_ray()

    def map(
        self,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        on_crash: Callable[[Item], Result] = no_crash,
        file: Callable[[Item], Path | None] = no_file,
    ) -> Iterator[Result]:
        """See `Executor`. Raises DataError where a node can't see a file that is here."""
        if items:
            with _session() as ray, closing(_Spread(ray, self.gpus, function, file).map(items, on_crash)) as results:
                yield from results


def executor_of(name: ExecutorName, local: Executor) -> Executor:
    """The executor that `data.executor` names: the cluster, or this machine as is best for the work.

    Raises MissingPackageError without the package of the cluster.
    """
    if name == "local":
        return local
    return RayCluster()


def require_ray() -> None:
    """Raises MissingPackageError without Ray."""
    optional_package("ray", "data.executor ray", "'phonate[ray]'")


@contextmanager
def _session() -> Iterator[Any]:
    """Ray, connected to the cluster. Processes that this one forks later get nothing of it: it is left at the end."""
    import ray

    if ray.is_initialized():
        yield ray
        return
    with redirect_stdout(sys.stderr):  # where Ray tells of workers that died
        with _own_signals():
            address = os.environ.get("RAY_ADDRESS", "auto")
            try:
                _require_answer(address)
                ray.init(include_dashboard=False, log_to_driver=False, configure_logging=False)
            except (OSError, ValueError, RuntimeError) as error:
                reason = " ".join(str(error).split())
                raise InputError(
                    f"data.executor ray: no cluster at {address} ({reason}); correct RAY_ADDRESS, or start one: ray "
                    "start --head"
                ) from error
        try:
            yield ray
        finally:
            ray.shutdown()


def _require_answer(address: str) -> None:
    """Raises OSError where nothing answers at HOST:PORT, which Ray notices only after minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal() and "://" not in host:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()


@contextmanager
def _own_signals() -> Iterator[None]:
    """What signals do stays as it was: Ray would have SIGTERM end this process at once, whatever is to be saved."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    earlier = {number: signal.getsignal(number) for number in STOPPING}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


# ------------------------------------------------------------- In this process: tasks, and what became of them


@dataclass(frozen=True)
class _Job:
    """What all tasks of a call have in common."""

    version: str
    folder: str
    """The current one, from which paths may be relative."""
    plugins: tuple[str, ...]
    log_level: int


@dataclass
class _Outcome:
    """What became of an item."""

    result: Any = None
    unseen_by: str | None = None
    """The node that does not see the item's file."""
    records: list[logging.LogRecord] = field(default_factory=list)


class _Spread:
    """A call of `map`."""

    def __init__(self, ray: Any, gpus: int, function: Callable[[Any], Any], file: Callable[[Any], Path | None]) -> None:
        self._ray, self._function, self._file = ray, function, file
        plugins = tuple(record["path"] for record in loaded_plugins())
        self._job = ray.put(_Job(version("phonate"), os.getcwd(), plugins, logger.getEffectiveLevel()))
        self._shared = ray.put(function)
        # A worker that dies is no reason for Ray to try again: without limit where memory ran out.
        options = {"num_cpus": 1, "num_gpus": gpus, "max_retries": 0, "runtime_env": {"env_vars": ENVIRONMENT}}
        self._task = ray.remote(**options)(_work)

    def map(self, items: Sequence[Any], on_crash: Callable[[Any], Any]) -> Generator[Any]:
        """The results in the order of the items. What is under way when the caller leaves early ends with the
        connection to the cluster: Ray 2.60 was seen to abort this process otherwise."""
        cpus = self._cpus()
        logger.info("Ray: %s over %s", number_of(len(items), "recording"), number_of(cpus, "CPU"))
        size = max(1, min(_BATCH, len(items) // (_BATCHES_AHEAD * cpus)))
        remaining = deque(items[start : start + size] for start in range(0, len(items), size))
        under_way: deque[tuple[Sequence[Any], Any]] = deque()
        while remaining or under_way:
            most = _BATCHES_AHEAD * self._cpus()  # a cluster may grow
            while remaining and len(under_way) < most:
                batch = remaining.popleft()
                under_way.append((batch, self._submit(batch)))
            batch, task = under_way[0]
            try:
                outcomes = self._outcomes(task)
            except _Lost:
                logger.info("Ray: a worker was lost with %s to be done again", number_of(len(batch), "recording"))
                results = (self._alone(item, on_crash) for item in batch)
            else:
                results = (self._result(*one) for one in zip(batch, outcomes, strict=True))
            under_way.popleft()
            del task  # lets the cluster free its results
            yield from results

    def _cpus(self) -> int:
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def _submit(self, items: Sequence[Any]) -> Any:
        files = [None if (path := self._file(item)) is None else str(path) for item in items]
        return self._task.remote(self._job, [self._shared], list(items), files)

    def _outcomes(self, task: Any) -> list[_Outcome]:
        """Of the items of a task. Raises _Lost where it did not end, and what the function raised."""
        errors = self._ray.exceptions
        while not self._ray.wait([task], timeout=_PATIENCE_SECONDS)[0]:
            if self._ray.available_resources().get("CPU", 0) == self._cpus():
                logger.warning("Ray: no worker has begun within a minute; is there a node that has what tasks need?")
        try:
            return list(self._ray.get(task))
        except errors.RayTaskError as error:
            if isinstance(error.cause, Exception):
                raise error.cause from error
            raise
        except (errors.WorkerCrashedError, errors.OutOfMemoryError) as error:
            raise _Lost(deadly=True) from error
        except (errors.NodeDiedError, errors.ObjectLostError) as error:
            raise _Lost(deadly=False) from error

    def _alone(self, item: Any, on_crash: Callable[[Any], Any]) -> Any:
        """The result for an item of a task that was lost."""
        deaths = losses = 0
        while deaths < _ATTEMPTS and losses < _NODE_ATTEMPTS:
            try:
                return self._result(item, self._outcomes(self._submit([item]))[0])
            except _Lost as lost:
                deaths, losses = deaths + lost.deadly, losses + (not lost.deadly)
        if losses == _NODE_ATTEMPTS:
            raise DataError("data.executor ray: nodes of the cluster are lost again and again; look at its logs")
        return on_crash(item)

    def _result(self, item: Any, outcome: _Outcome) -> Any:
        """Raises DataError where a node does not see a file that this one does."""
        for record in outcome.records:
            if (log := logging.getLogger(record.name)).isEnabledFor(record.levelno):
                log.handle(record)
        if outcome.unseen_by is None:
            return outcome.result
        path = self._file(item)
        if path is not None and path.exists():
            raise DataError(
                f"{path.absolute()}: the node {outcome.unseen_by} of the Ray cluster can't see it; put it (data.path, "
                "data.cache_dir) on storage that all nodes have under this path, or write shards to an address"
            )
        return self._function(item)  # which says that it is missing


# ------------------------------------------------------------------------------------------- In a worker


def _work(job: _Job, shared: list[Any], items: Sequence[Any], files: Sequence[str | None]) -> list[_Outcome]:
    """Do the items of a task. `shared`: a reference to the function, which each worker fetches once."""
    import ray

    node = socket.gethostname()
    if version("phonate") != job.version:
        raise InputError(
            f"the node {node} of the Ray cluster has phonate {version('phonate')}, this one {job.version}; install the "
            "same version on all nodes"
        )
    with suppress(OSError):  # where it matters, files are missed below
        os.chdir(job.folder)
    for plugin in job.plugins:
        try:
            load_plugin(Path(plugin))
        except InputError as error:
            raise InputError(f"{error} (the node {node} of the Ray cluster)") from error
    function = _functions.get(shared[0].hex())
    if function is None:
        _functions.clear()
        function = _functions[shared[0].hex()] = ray.get(shared[0])
    with _records(job.log_level) as records:
        outcomes = []
        for item, path in zip(items, files, strict=True):
            if path is not None and not os.path.exists(path):
                outcomes.append(_Outcome(unseen_by=node))
            else:
                outcomes.append(_Outcome(function(item), None, records.copy()))
                records.clear()
        return outcomes


_functions: dict[str, Callable[[Any], Any]] = {}
"""The function of the latest task, by its reference."""


@contextmanager
def _records(level: int) -> Iterator[list[logging.LogRecord]]:
    """What phonate logs within, for the process that gave the work."""
    records: list[logging.LogRecord] = []

    class Collecting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            record.msg, record.args = record.getMessage(), None  # arguments may not be picklable
            record.exc_info = None
            records.append(record)

    handler = Collecting()
    logger.addHandler(handler)
    logger.setLevel(level)
    try:
        yield records
    finally:
        logger.removeHandler(handler)
