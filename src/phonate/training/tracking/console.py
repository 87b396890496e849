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

_ASIDE = frozenset({"data_wait", "grad_norm", "grad_scale"})
"""Metrics that the console shows with `verbosity: debug` only, as it does those of a group (`system/memory_gb`)."""
REFRESH = 0.5
"""Seconds between redraws of the bar. A redraw takes milliseconds, so it must be rare."""


class ConsoleSink(Sink):
    """A progress bar with the time left, and a line for each report of metrics.

    Without a terminal there is no bar, only the lines. They also go to the logger `phonate.metrics`, and so into the
    log files. "quiet" shows nothing; "normal" the main metrics, on a terminal as many as fit its width, and the means
    of an epoch only where no other training metrics were shown in it; "debug" everything.

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
        """Made at the first step: before that, the preparation may show its own."""
        self._next_refresh = 0.0
        self._step = 0
        self._trained = False
        """Whether training metrics were shown since the last epoch ended."""

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
            redirect_stdout=sys.stdout.isatty(),  # else it goes to a file or another program
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
        repeats = split == "epoch" and self._trained
        self._trained = split == "train" or (self._trained and split != "epoch")
        if self.verbosity != "debug":
            values = {name: value for name, value in values.items() if _is_main(name)}
        if not values:
            return
        place = f"step {step}/{self.total_steps}" + ("" if epoch is None else f"  epoch {epoch}")
        parts = [f"{place}  {split}", *(f"{name} {number(value)}" for name, value in values.items())]
        log.info("  ".join(parts), extra={"split": split})
        if self.verbosity == "debug" or (self.verbosity == "normal" and not repeats):
            if self.console.is_terminal and self.verbosity != "debug":
                parts = _fitting(parts, self.console.width)
            with self._while_there():
                self.console.print("  ".join(parts), markup=False, soft_wrap=True)

    def close(self) -> None:
        """Stop the bar."""
        if self._progress is not None:
            with self._while_there():
                self._progress.update(self._progress.task_ids[0], completed=self._step)
                self._progress.stop()

    @contextlib.contextmanager
    def _while_there(self) -> Iterator[None]:
        """Show something; nothing more is shown once the terminal is closed, which must not end training."""
        try:
            yield
        except OSError:
            self._progress, self._shows_bar, self.verbosity = None, False, "quiet"


def _is_main(name: str) -> bool:
    return "/" not in name and name not in _ASIDE


def _fitting(parts: list[str], width: int) -> list[str]:
    """The first of `parts` that fit in a line of `width` characters, and `...` if some do not."""
    used = 0
    for count, part in enumerate(parts):
        used += len(part) + 2
        if used + 3 > width and (count < len(parts) - 1 or used - 2 > width):
            return [*parts[: max(count, 1)], "..."]
    return parts


def number(value: float) -> str:
    """Four digits that matter: 0.3121, 1234, 1.5e-05."""
    return f"{value:.4g}"
