"""Stopping on SIGTERM, Ctrl-C and a closed terminal without losing a step."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that end training, after saving."""


def is_ignored(number: int) -> bool:
    """Whether a signal is to stay without effect: a hang-up under nohup."""
    return number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN


class StopNow(BaseException):
    """Raised in a region that can be left at once (waiting for data, validating). Not an Exception, so that no
    handler on the way takes it for an error."""


class Signals:
    """Turns the first SIGTERM, SIGINT or SIGHUP into a stop after the current step; the second one ends the process.

    SIGHUP, which says that the terminal was closed, stops nothing where it is ignored (nohup), and ends nothing as the
    second one: the system and the shell may each send it.

    Between `leavable` and the end of its block the first signal raises `StopNow` instead.
    """

    def __init__(self, immediate: bool = True) -> None:
        self.received: int | None = None
        self._immediate = immediate
        self._leavable = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            for number in STOPPING:
                if not is_ignored(number):
                    self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.received is not None:
            if number == signal.SIGHUP:
                return
            os._exit(128 + number)
        self.received = number
        if self._leavable:
            raise StopNow

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
