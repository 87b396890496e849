"""Metrics on the console, and log files in RUN/logs."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Literal

from phonate.training.signals import on_quit
from phonate.training.tracking.stream import Sink

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from phonate.compute.distributed import Ranks


log = logging.getLogger("phonate.metrics")

# ---------------------------------------------------------------------- Console output during training

_ASIDE = frozenset({"data_wait", "grad_norm", "grad_scale", "samples_per_second"})
"""Shown only with `verbosity: debug`, like metrics in a group (`system/memory_gb`)."""
REFRESH = 0.5
"""Seconds between redraws of the bar. A redraw takes milliseconds, so it must be rare."""


class ConsoleSink(Sink):
    """A progress bar with the remaining time, and a line for each report of metrics.

    Without a terminal there is no bar, only the lines. They also go to the logger `phonate.metrics`, and so to the
    log files. "quiet" shows nothing. "normal" shows the main metrics (on a terminal, as many as fit its width; a term
    that is the whole loss is not shown again), and the means of an epoch only if no other training metrics were shown
    in it, or in the last `interval` steps. "debug" shows everything.

    Args:
        total_steps: Optimizer steps of the whole run.
        verbosity: quiet, normal or debug.
        interval: Steps between reports of training metrics.
        console: Where to write. None: standard error, with rich, whose import takes a while, only on a terminal.
    """

    def __init__(
        self,
        total_steps: int,
        verbosity: Literal["quiet", "normal", "debug"] = "normal",
        console: Console | None = None,
        interval: int = 1,
    ) -> None:
        if console is None and sys.stderr.isatty():
            from rich.console import Console

            # soft_wrap: log lines are not broken, so that commands in them can be copied
            console = Console(stderr=True, highlight=False, soft_wrap=True)
        self.total_steps = total_steps
        self.verbosity: Literal["quiet", "normal", "debug"] = verbosity
        self.console = console
        self._has_terminal = console is not None and console.is_terminal
        self._shows_bar = self._has_terminal and verbosity != "quiet"
        self._progress: Progress | None = None
        """Created at the first step, because data preparation may show its own bar before."""
        self._next_refresh = 0.0
        self._step = 0
        self._interval = interval
        self._trained = False
        """Whether training metrics were shown since the end of the last epoch."""
        self._shown_at: int | None = None
        """The step at which training metrics or those of an epoch were shown last."""

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
            redirect_stdout=sys.stdout.isatty(),  # otherwise it is a file or a pipe
        )
        progress.add_task("training", total=self.total_steps, completed=step)
        progress.start()
        return progress

    def tick(self, step: int) -> None:
        """Update the bar, at most twice a second."""
        self._step = step
        if self._shows_bar and (now := perf_counter()) >= self._next_refresh:
            self._next_refresh = now + REFRESH
            with self._while_there():
                if self._progress is None:
                    self._progress = self._bar(step)
                self._progress.update(self._progress.task_ids[0], completed=step)
                self._progress.refresh()

    def write(self, step: int, split: str, values: Mapping[str, float], epoch: int | None) -> None:
        """Print a line like `step 50/500  epoch 0  train  loss 0.3121  learning_rate 1e-04`."""
        recent = self._shown_at is not None and step - self._shown_at < self._interval
        repeats = split == "epoch" and (self._trained or recent)
        self._trained = split == "train" or (self._trained and split != "epoch")
        if split in ("train", "epoch") and not repeats:
            self._shown_at = step
        if self.verbosity != "debug":
            loss = values.get("loss")
            values = {name: one for name, one in values.items() if _is_main(name) and (one != loss or name == "loss")}
        if not values:
            return
        place = f"step {step}/{self.total_steps}" + ("" if epoch is None else f"  epoch {epoch}")
        parts = [f"{place}  {split}", *(f"{name} {number(value)}" for name, value in values.items())]
        log.info("  ".join(parts), extra={"split": split})
        if self.verbosity == "debug" or (self.verbosity == "normal" and not repeats):
            with self._while_there():
                if self.console is None:
                    print("  ".join(parts), file=sys.stderr)
                    return
                if self._has_terminal and self.verbosity != "debug":
                    parts = _fitting(parts, self.console.width)
                self.console.print("  ".join(parts), markup=False, soft_wrap=True)

    def close(self) -> None:
        """Stop the bar."""
        if self._progress is not None:
            with self._while_there():
                self._progress.update(self._progress.task_ids[0], completed=self._step)
                self._progress.stop()

    @contextlib.contextmanager
    def _while_there(self) -> Iterator[None]:
        """Stop all output once the terminal is closed, instead of ending training."""
        try:
            yield
        except OSError:
            self._progress, self._shows_bar, self.verbosity = None, False, "quiet"


def _is_main(name: str) -> bool:
    return name == "system/gpu_memory_gb" or ("/" not in name and name not in _ASIDE)


def _fitting(parts: list[str], width: int) -> list[str]:
    """The first `parts` that fit in a line of `width` characters, followed by `...` if some do not fit."""
    used = 0
    for count, part in enumerate(parts):
        used += len(part) + 2
        if used + 3 > width and (count < len(parts) - 1 or used - 2 > width):
            return [*parts[: max(count, 1)], "..."]
    return parts


def number(value: float) -> str:
    """Four significant digits: 0.3121, 1234, 1.5e-05."""
    return f"{value:.4g}"


logger = logging.getLogger("phonate")


# --------------------------------------------------------------------------------- RUN/logs: log files


class _LogFile(logging.FileHandler):
    """A log file. If the disk is full, one warning is printed instead of a traceback for each record."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Stop writing the file."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
            return
        logger.removeHandler(self)
        logger.warning("%s: can't be written (%s); no more is logged to this file", self.baseFilename, error.strerror)


def _append(path: Path, message: str) -> None:
    """Write the last line when the process is terminated. Bypasses the logger: runs in a signal handler."""
    with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
        file.write(f"{datetime.now().isoformat(' ', 'seconds')} ERROR {message}\n")


@contextlib.contextmanager
def log_file(path: Path, ranks: Ranks) -> Iterator[None]:
    """Context in which the first rank also appends phonate's log to `path`."""
    if not ranks.is_main:
        yield
        return
    handler = _LogFile(path, encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        with on_quit(partial(_append, path)):
            yield
    finally:
        logger.removeHandler(handler)
        with contextlib.suppress(OSError):  # a failed write was already reported
            handler.close()
