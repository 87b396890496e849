"""A step that does not end: where every thread is, and on which samples, is written, and the process ends."""

from __future__ import annotations

import faulthandler
import os
import threading
from collections.abc import Callable
from pathlib import Path

from phonate.compute.system import write_to_console
from phonate.config.errors import PhonateError

LOOKS = 20
"""How often to look within the time after which a step counts as stuck."""


class StuckWatch:
    """Ends a process whose step, or whose wait for data, takes too long. A thread looks; a step costs a few
    assignments.

    What waits for a stuck rank is stuck too, so every rank writes its stacks. Nothing can be saved then: the run goes
    on from its last checkpoint.

    Args:
        folder: RUN/logs, where stuck-rankN.txt is written.
        rank: N.
        seconds: After how long a step counts as stuck.
        describe: Says what was being done and where the run would go on.
        end: Ends the process.
    """

    def __init__(
        self,
        folder: Path,
        rank: int,
        seconds: float,
        describe: Callable[[], str],
        end: Callable[[int], object] = os._exit,
    ) -> None:
        self._path = folder / f"stuck-rank{rank}.txt"
        self._rank = rank
        self._seconds = seconds
        self._describe = describe
        self._end = end
        self._entered = 0
        self._within = False
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to look."""
        self._thread = threading.Thread(target=self._look, name="stuck", daemon=True)
        self._thread.start()

    def enter(self) -> None:
        """A step, or a wait for data, begins."""
        self._entered += 1
        self._within = True

    def leave(self) -> None:
        """It has ended. What comes then may take as long as it likes: a validation, a save."""
        self._within = False

    def close(self) -> None:
        """Stop looking."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    def _look(self) -> None:
        # looks are counted and no clock is asked: a process that was stopped for an hour (Ctrl-Z, a scheduler's
        # suspension) did not look meanwhile
        seen = looks = 0
        while not self._closed.wait(self._seconds / LOOKS):
            entered = self._entered
            looks = looks + 1 if self._within and entered == seen else 0
            seen = entered
            if looks >= LOOKS:
                try:
                    self._tell()
                finally:
                    self._end(1)
                return

    def _tell(self) -> None:
        try:
            where = self._describe()
        except (OSError, PhonateError) as error:
            where = f"(where is not known: {error})"
        message = f"rank {self._rank}: stuck for {self._seconds:g} s {where}"
        try:
            with self._path.open("w", encoding="utf-8") as file:
                file.write(f"{message}\n\n")
                file.flush()
                faulthandler.dump_traceback(file, all_threads=True)
            message += f"; the stacks of all threads are in {self._path}"
        except OSError as error:
            message += f"; {self._path} can't be written: {error.strerror}"
        write_to_console(message)  # the main thread may hold the locks of logging
