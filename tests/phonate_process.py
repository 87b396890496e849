"""`phonate ...` as a process of its own, without the seconds in which each process imports the same packages.

A server that has imported them is started once per test worker; each process is a fork of it, with its own environment,
folder, streams and signals. For tests of what a process imports or when it begins, start a Python of their own.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import types
from pathlib import Path
from typing import Any

IMPORTED = (
    "lhotse",
    "scipy.signal",
    "scipy.stats",
    "phonate.cli.data",
    "phonate.cli.training",
    "phonate.serving.server",
    "phonate.tasks.conversion.inference",
    "phonate.tasks.conversion.task",
    "phonate.tasks.diarization.task",
    "phonate.tasks.language.settings",
    "phonate.tasks.speech.task",
    "phonate.tasks.vocoder.task",
    "phonate.training.trainer",
    "phonate.workflows.live",
    "phonate.workflows.pages.report",
    "phonate.workflows.pages.recordings",
    "phonate.workflows.session.flows",
    "phonate.workflows.session.session",
    "phonate.workflows.train",
)
"""What most processes of the tests need."""
SET_CHILD_SUBREAPER = 36


class PythonProcess(subprocess.Popen):
    """A `subprocess.Popen` of `python -m MODULE`, `-c CODE` or `SCRIPT` with arguments, a child of this process.

    Its signals are those of an interactive shell, whatever started the tests.
    """

    def __init__(self, *arguments: object, **options: Any) -> None:
        super().__init__([sys.executable, *map(str, arguments)], **options)

    def _execute_child(self, *given: Any) -> None:
        if sys.platform != "linux":
            super()._execute_child(*given)  # type: ignore[misc]
            return
        args, _, preexec_fn, _, pass_fds, cwd, env, _, _, shell, *pipes = given
        p2cread, _, _, c2pwrite, _, errwrite, *_ = pipes
        assert (preexec_fn, pass_fds, shell) == (None, (), False), "what a fork of the server can't do"
        folder = os.path.abspath(cwd or ".")
        text = json.dumps({"arguments": args[1:], "folder": folder, "environment": dict(env or os.environ)}).encode()
        streams = [number if stream == -1 else stream for number, stream in enumerate((p2cread, c2pwrite, errwrite))]
        connection = _server(os.getpid())
        with _as_parent_of_orphans():
            socket.send_fds(connection, [len(text).to_bytes(8, "little")], streams)
            connection.sendall(text)
            self.pid = int.from_bytes(connection.recv(8), "little")
        assert self.pid, "the server of processes has ended"
        self._child_created = True
        self._close_pipe_fds(*pipes[:6])


class Process(PythonProcess):
    """A `subprocess.Popen` of `phonate ARGUMENTS`."""

    def __init__(self, *arguments: object, **options: Any) -> None:
        super().__init__("-m", "phonate", *arguments, **options)


def run_ranks(ranks: int, *arguments: object, **options: Any) -> subprocess.CompletedProcess[Any]:
    """Run `phonate ARGUMENTS` on several ranks, with the environment that torchrun gives them; what the first says."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = {**(options.pop("env", None) or os.environ), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    environment |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    numbered = [{**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]
    others = [
        Process(*arguments, env=one, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for one in numbered[1:]
    ]
    try:
        return run(*arguments, env=numbered[0], **options)
    finally:
        for process in others:
            process.kill() if sys.exc_info()[0] else process.wait(60)


def run(*arguments: object, **options: Any) -> subprocess.CompletedProcess[Any]:
    """Run `phonate ARGUMENTS` to its end, as `subprocess.run` does; both outputs are captured."""
    return run_python("-m", "phonate", *arguments, **options)


def run_python(*arguments: object, **options: Any) -> subprocess.CompletedProcess[Any]:
    """Run `python ARGUMENTS` to its end, as `subprocess.run` does; both outputs are captured."""
    given, timeout = options.pop("input", None), options.pop("timeout", 300)
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
    stdin = subprocess.DEVNULL if given is None else subprocess.PIPE
    with PythonProcess(*arguments, stdin=stdin, **options) as process:
        try:
            shown, said = process.communicate(given, timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, shown, said)


@contextlib.contextmanager
def _as_parent_of_orphans():
    """Processes whose parent ends meanwhile become children of this one."""
    prctl = ctypes.CDLL(None).prctl
    prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@functools.cache
def _server(_: int) -> socket.socket:
    """The connection with the server, which ends with this process."""
    here, there = socket.socketpair()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__)), str(there.fileno())]
    subprocess.Popen(command, env=environment, pass_fds=[there.fileno()], stdin=subprocess.DEVNULL, cwd="/")
    there.close()
    return here


# --- in the server


def serve(connection: socket.socket) -> None:
    """Fork a process for each request until the other side ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in IMPORTED:
        try:
            importlib.import_module(name)
        except ImportError as error:
            if (error.name or "").startswith("phonate"):  # not what belongs to an extra
                raise
    gc.collect()
    gc.freeze()
    while True:
        head, streams, _, _ = socket.recv_fds(connection, 8, 3)
        if not head:
            return
        size, text = int.from_bytes(head, "little"), b""
        while len(text) < size:
            text += connection.recv(size - len(text))
        ready, tell = os.pipe()
        between = os.fork()
        if between == 0:  # ends at once, so that the process becomes the test's
            if pid := os.fork():
                os.write(tell, pid.to_bytes(8, "little"))
                os._exit(0)
            connection.close()
            os.close(ready)
            os.close(tell)
            _be_python(json.loads(text), streams)
        os.close(tell)
        os.waitpid(between, 0)
        connection.sendall(os.read(ready, 8))
        for stream in [ready, *streams]:
            os.close(stream)


def _be_python(request: dict[str, Any], streams: list[int]) -> None:
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(3, max(streams) + 1)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    encoding, _, errors = os.environ.get("PYTHONIOENCODING", "utf-8").partition(":")
    sys.stdin = sys.__stdin__ = open(0, encoding=encoding, closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", encoding=encoding, errors=errors or "strict", closefd=False)  # noqa: SIM115
    sys.stdout.reconfigure(line_buffering=os.isatty(1), write_through="PYTHONUNBUFFERED" in os.environ)
    sys.stderr = sys.__stderr__ = open(2, "w", 1, encoding=encoding, errors="backslashreplace", closefd=False)  # noqa: SIM115
    kind, *rest = request["arguments"]
    script = kind not in {"-m", "-c"}
    sys.path[0] = str(Path(kind).resolve().parent) if script else request["folder"]
    sys.path[1:1] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.argv = rest if kind == "-m" else [kind, *rest] if script else ["-c", *rest[1:]]
    code = 0
    try:
        if kind == "-m":
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        elif kind == "-c":
            main = sys.modules["__main__"] = types.ModuleType("__main__")
            exec(compile(rest[0], "<string>", "exec"), main.__dict__)
        else:
            runpy.run_path(kind, run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:  # noqa: BLE001 - as Python prints it
        code = 1
        sys.excepthook(*sys.exc_info())
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
