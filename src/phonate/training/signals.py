"""Stopping on SIGTERM, Ctrl-C and a closed terminal without losing a step."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from phonate.compute.system import HANGUP, STOPPING, write_to_console
from phonate.config.errors import Interrupted, in_command, option

if TYPE_CHECKING:
    from phonate.compute.distributed import Ranks

_NOTE = "stopping after this step"
_AGAIN = "press Ctrl-C again to quit now"

QuitListener = Callable[[str], None]
_quit_listeners: list[QuitListener] = []


@contextlib.contextmanager
def on_quit(listener: QuitListener) -> Iterator[None]:
    """Within, `listener` gets the last message of a process that is told to quit without saving.

    It runs in a signal handler, between any two operations of the main thread: it must not print or log, as the
    buffers and locks of those may be in use.
    """
    _quit_listeners.append(listener)
    try:
        yield
    finally:
        _quit_listeners.remove(listener)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Within, SIGTERM, SIGHUP and Ctrl-C end the work at once by raising `Interrupted`.

    While a model trains, the trainer's `Signals` take over, which finish the step and save first.
    """
    stop = _Stop()
    try:
        with _handlers(stop):
            yield
    except Interrupted:
        raise
    except BaseException as error:
        if stop.received is None and not isinstance(error, KeyboardInterrupt):
            raise
        # an interrupted import may surface as any other error, a panic of a module in Rust among them, which is no
        # Exception
        number = stop.received or signal.SIGINT
        name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        raise Interrupted(f"stopped by {name}", number) from None


class _Stopped(BaseException):
    """Raised where a signal came. Not KeyboardInterrupt: once that has passed through an import in C, Python ends the
    process by SIGINT, whatever its exit code was to be."""


class _Stop:
    """A handler that remembers which signal came."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._process = os.getpid()

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a loader worker that was forked a moment ago
            return
        self.received = number
        raise _Stopped


@contextlib.contextmanager
def _handlers(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Within, `handler` gets the stopping signals. Only the main thread receives any."""
    earlier: dict[int, Any] = {}
    try:
        if threading.current_thread() is threading.main_thread():
            for number in STOPPING:
                # a hang-up under nohup stays without effect
                if not (number == HANGUP and signal.getsignal(number) is signal.SIG_IGN):
                    earlier[number] = signal.signal(number, handler)
        yield
    finally:
        for changed, previous in earlier.items():
            signal.signal(changed, previous)


class StopNow(BaseException):
    """Raised in a region that can be left at once (waiting for data, validating). Not an Exception, so that no
    handler on the way takes it for an error."""


class Signals:
    """Turns the first SIGTERM, SIGINT or SIGHUP into a stop after the current step. Another SIGINT ends the process
    without saving.

    SIGHUP (the terminal was closed) has no effect where it is ignored (nohup). Neither it nor SIGTERM ever quits,
    since one stop may send it several times: schedulers signal all processes of a job, among them launchers such as
    torchrun, which signal theirs in turn, and Slurm sends it again when the time that it has granted is over.

    Between `enter` and `leave` the first signal raises `StopNow` instead.

    Args:
        immediate: whether such regions are left at once.
        announce: whether to say on standard error that the run is stopping.
        checkpoints: the folder of checkpoints, the newest of which is named when the process quits.
    """

    def __init__(
        self,
        immediate: bool = True,
        announce: bool = True,
        checkpoints: Path | None = None,
    ) -> None:
        self.received: int | None = None
        self._immediate = immediate
        self._announce = announce
        self._checkpoints = checkpoints
        self._leavable = False
        self._process = os.getpid()
        self._installed = contextlib.ExitStack()

    def __enter__(self) -> Signals:
        self._process = os.getpid()
        self._installed.enter_context(_handlers(self._handle))
        return self

    def __exit__(self, *_: object) -> None:
        self._installed.close()

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a loader worker that was forked a moment ago
            return
        if self.received is None:
            self.received = number
            if self._announce:
                of_console = number == signal.SIGINT
                write_to_console(f"{_NOTE}; {_AGAIN}" if of_console else f"{signal.Signals(number).name}: {_NOTE}")
            if self._leavable:
                raise StopNow
        elif number == signal.SIGINT:
            self._quit(number)

    def _quit(self, number: int) -> None:
        """End the process at once, as the main thread may be waiting for a save that takes minutes."""
        called = "command" if in_command() else "call"
        saved = [] if self._checkpoints is None else sorted(self._checkpoints.glob("step-*"))
        latest = (
            f"the last checkpoint is {saved[-1]}"
            if saved
            else f"there is no checkpoint: the same {called} with {option('resume', 'auto')} begins again"
        )
        message = f"quit without saving; {latest}"
        for listener in _quit_listeners:
            with contextlib.suppress(Exception):  # nothing may keep the process from ending
                listener(message)
        if self._announce:
            write_to_console(message)
        os._exit(128 + number)

    def received_by_any(self, ranks: Ranks) -> bool:
        """Whether a signal asked any rank to stop. All ranks must ask at the same point."""
        return ranks.sum([self.received or 0.0])[0] > 0

    def enter(self) -> None:
        """Begin a region that may be left at once. (A bare pair of calls: this runs in every step.)"""
        self._leavable = self._immediate
        if self._leavable and self.received is not None:
            self._leavable = False
            raise StopNow

    def leave(self) -> None:
        """End that region."""
        self._leavable = False

    @contextlib.contextmanager
    def leavable(self) -> Iterator[None]:
        """A block that the first signal leaves at once."""
        self.enter()
        try:
            yield
        finally:
            self.leave()
