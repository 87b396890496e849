"""What the terminal shows while a model trains."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator, Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Literal

from phonate.training.tracking.stream import Sink

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

log = logging.getLogger("phonate.metrics")

REFRESH = 0.5
"""Seconds between redraws of the bar. A redraw takes milliseconds, so it must be rare."""


class ConsoleSink(Sink):
    """A progress bar with the time left, and a line for each report of metrics.

    Where the output is no terminal there is no bar, only the lines. They go to the logger `phonate.metrics`
    too, and so into the session log. "quiet" shows nothing, "debug" also the system's metrics.

    Args:
        total_steps: Optimizer steps of the whole run.
        verbosity: quiet, normal or debug.
        console: Where to write. None: standard error.
    """

    def __init__(
        self,
        total_steps: int,
        verbosity: Literal["quiet", "normal", "debug"] = "normal",
        console: Console | None = None,
    ) -> None:
        from rich.console import Console

        self.total_steps = total_steps
        self.verbosity: Literal["quiet", "normal", "debug"] = verbosity
        # soft: what is logged beside the bar is not broken into lines, so that commands in it can be copied
        self.console = console or Console(stderr=True, highlight=False, soft_wrap=True)
        self._shows_bar = self.console.is_terminal and verbosity != "quiet"
        self._progress: Progress | None = None
        """Comes with the first step: before that others may show how far the preparation is."""
        self._next_refresh = 0.0
        self._step = 0

    def _bar(self, step: int) -> Progress:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        progress = Progress(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("steps, time left"),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=self.console,
            auto_refresh=False,
            redirect_stdout=sys.stdout.isatty(),  # else it is on its way to a file or another program
        )
        progress.add_task("training", total=self.total_steps, completed=step)
        progress.start()
        return progress

    def tick(self, step: int) -> None:
        """Move the bar, at most twice a second."""
        self._step = step
        if self._shows_bar and (now := perf_counter()) >= self._next_refresh:
            self._next_refresh = now + REFRESH
            with self._while_there():
                if self._progress is None:
                    self._progress = self._bar(step)
                self._progress.update(self._progress.task_ids[0], completed=step)
                self._progress.refresh()

    def write(self, step: int, split: str, values: Mapping[str, float], epoch: int | None) -> None:
        """Show a line such as `step 50/500  epoch 0  train  loss 0.3121  learning_rate 1e-04`."""
        shown = [
            f"{name} {number(value)}"
            for name, value in values.items()
            if self.verbosity == "debug" or not name.startswith("system/")
        ]
        if not shown:
            return
        place = f"step {step}/{self.total_steps}" + ("" if epoch is None else f"  epoch {epoch}")
        line = f"{place}  {split}  " + "  ".join(shown)
        log.info(line, extra={"split": split})
        if self.verbosity != "quiet":
            with self._while_there():
                self.console.print(line, markup=False, soft_wrap=True)

    def close(self) -> None:
        """Take the bar off the screen's last line."""
        if self._progress is not None:
            with self._while_there():
                self._progress.update(self._progress.task_ids[0], completed=self._step)
                self._progress.stop()

    @contextlib.contextmanager
    def _while_there(self) -> Iterator[None]:
        """Show it; a screen that has gone (its terminal was closed) is left alone, and ends no training."""
        try:
            yield
        except OSError:
            self._progress, self._shows_bar, self.verbosity = None, False, "quiet"


def number(value: float) -> str:
    """Four digits that matter: 0.3121, 1234, 1.5e-05."""
    return f"{value:.4g}"
