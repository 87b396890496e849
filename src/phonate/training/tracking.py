"""The stream of metrics, and what every run writes of it: RUN/metrics.jsonl, the console, and log files in RUN/logs."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, TypeGuard

from phonate.config.errors import TrainingError
from phonate.config.metrics import Metric, plain, told
from phonate.config.registry import listed
from phonate.training.ledger import UNKNOWN, TimeLeft
from phonate.training.signals import on_quit

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from phonate.compute.distributed import Ranks
    from phonate.training.task import Preview

logger = logging.getLogger("phonate")


log = logging.getLogger(__name__)


# ------------------------------------------- Metric stream: sends the metrics of training to all sinks


class Sink:
    """A destination of metrics. Override the methods it supports."""

    keeps_all = False
    """Whether it receives every metric, regardless of `logging.log_metrics`."""

    def write(self, step: int, split: str, values: Mapping[str, float], epoch: int | None) -> None:
        """Write the metrics of a step. May be called again for the same step and split with other names."""

    def event(self, step: int, name: str, facts: Mapping[str, Any]) -> None:
        """Record an event at a step, such as a resume."""

    def media(self, step: int, previews: Mapping[str, Preview]) -> None:
        """Write audio and images."""

    def artifact(self, path: Path) -> None:
        """Handle a saved checkpoint."""

    def tick(self, step: int) -> None:
        """Called after every optimizer step with the number of steps done. Must be fast."""

    def sync(self) -> None:
        """Called at each checkpoint: what was written up to there must be on the disk, where it is read at a resume."""

    def close(self) -> None:
        """Flush pending data and close files."""


class MetricStream:
    """Sends metrics to every sink. Without sinks (ranks other than the first) it does nothing.

    Args:
        sinks: Where metrics go.
        only: Names or wildcards (`logging.log_metrics`); only matching metrics are sent, except to sinks that keep all.
            "loss" is the loss of every split, "val_loss" that of validations. None: all metrics.
        system: System monitor, read with the training metrics of a step.
    """

    def __init__(
        self,
        sinks: Iterable[Sink] = (),
        only: Iterable[str] | None = None,
        system: SystemMonitor | None = None,
    ) -> None:
        self.sinks = list(sinks)
        self._ticking = [sink.tick for sink in self.sinks if type(sink).tick is not Sink.tick]
        self._only = None if only is None else tuple(only)
        self._wanted: dict[str, bool] = {}
        self._silent: set[str] = set()
        """Splits without a selected metric."""
        self._system = system
        self._system_step: int | None = None

    def emit(self, step: int, split: str, values: Mapping[str, float], epoch: int | None = None) -> None:
        """Send metrics of optimizer step `step` (steps taken so far); `split` is "train" or "validation"."""
        if not self.sinks:
            return
        if self._system is not None and split == "train" and step != self._system_step:
            self._system_step = step
            values = {**values, **self._system.read()}
        selected = values
        if self._only is not None:
            selected = {name: value for name, value in values.items() if self._keeps(name, split)}
            here = split == "validation" or not all(pattern.startswith("val_") for pattern in self._only)
            if values and not selected and here and split not in self._silent:
                self._silent.add(split)
                log.warning(
                    "training.logging.log_metrics: %s matches none of the %s metrics, so none is shown; available: %s",
                    ", ".join(self._only),
                    split,
                    listed(sorted(values)),
                )
        for sink in self.sinks:
            if shown := values if sink.keeps_all else selected:
                sink.write(step, split, shown, epoch)

    def _keeps(self, name: str, split: str) -> bool:
        full = f"val_{name.removeprefix('val_')}" if split == "validation" else name
        shown = self._wanted.get(full)
        if shown is None:
            shown = any(_means(pattern, full) for pattern in self._only or ())
            self._wanted[full] = shown
        return shown

    def event(self, step: int, name: str, **facts: Any) -> None:
        """Send an event with its fields (JSON values), e.g. `event(20, "resumed", checkpoint="...")`."""
        for sink in self.sinks:
            sink.event(step, name, facts)

    def media(self, step: int, previews: Mapping[str, Preview]) -> None:
        """Send audio and images."""
        for sink in self.sinks:
            sink.media(step, previews)

    def artifact(self, path: Path) -> None:
        """Pass a saved checkpoint to the sinks that upload it."""
        for sink in self.sinks:
            sink.artifact(path)

    def tick(self, step: int) -> None:
        """Called after every optimizer step: updates the progress bar, in about a microsecond."""
        for tick in self._ticking:
            tick(step)

    def sync(self) -> None:
        """Have every sink that is read at a resume on the disk."""
        for sink in self.sinks:
            sink.sync()

    def close(self) -> None:
        """Close every sink. Warns about names in `log_metrics` that matched no metric."""
        for sink in self.sinks:
            sink.close()
        for pattern in self._only or ():
            names = self._wanted
            if names and not any(_means(pattern, name) for name in names):
                log.warning(
                    "training.logging.log_metrics: no metric matched %s; available: %s",
                    pattern,
                    listed(sorted(names)),
                )
        self.sinks = []
        self._ticking = []


def _means(pattern: str, name: str) -> bool:
    """Whether a name or wildcard of `log_metrics` means a metric, which begins with `val_` if it is a validation's."""
    return fnmatchcase(name, pattern) or fnmatchcase(name.removeprefix("val_"), pattern)


def tag(names: Mapping[str, str], split: str, name: str) -> str:
    """The name of a metric in a sink: its entry in `names` under "split/name" or "name", else "split/name"."""
    full = name if "/" in name else f"{split}/{name}"
    return names.get(full) or names.get(name) or full


# --------------------------------------------------------- RUN/metrics.jsonl: one JSON object per line


class JsonLines(Sink):
    """Writes `{"step": 50, "split": "train", "since": 40, "epoch": 0, "loss": 0.31, ...}` to a file, one line for each
    (step, split). Later values for the same (step, split) are added to its line. `since` is the step of the line of
    that split before it, by which it is seen that lines are missing. Events have lines of their own, like
    `{"step": 50, "split": "event", "event": "resumed", ...}`; their split keeps them out of the curves.

    Every line is flushed as it is written. Non-finite numbers are written as null, because JSON does not have them. On
    resume, the lines of later steps, which will be written again, and an incomplete last line are removed by replacing
    the file atomically.

    Args:
        path: The file.
        resume_step: The step from which a resumed run continues; lines up to it are kept. None: start a new file.
        logged: The last step up to there whose training metrics were written; it is said where they are missing.
    """

    keeps_all = True

    def __init__(self, path: Path, resume_step: int | None = None, logged: int = 0) -> None:
        self.path = path
        rows = [] if resume_step is None else [line for line in _lines(path) if line["step"] <= resume_step]
        self._repeatable = {(line["step"], line["split"]) for line in rows if line["step"] == resume_step}
        self._latest: dict[str, int] = {line["split"]: line["step"] for line in rows}
        missing = _missing(rows)
        if (latest := self._latest.get("train", 0)) < logged:
            missing.append(("train", latest + 1, logged))
            self._latest["train"] = logged
        if missing:
            log.warning("%s: %s missing; the run goes on without them", path, _in_words(missing))
        self._guard(lambda: self._replace(rows))

    def _guard(self, action: Callable[[], None]) -> None:
        try:
            action()
        except OSError as error:
            raise TrainingError(f"{self.path}: can't write metrics: {error.strerror}; fix this, then resume") from error

    def _replace(self, lines: list[dict[str, Any]]) -> None:
        """Replace the file by one with `lines`, and open it for appending."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_name(self.path.name + ".new")
        try:
            with new.open("w", encoding="utf-8") as file:
                file.writelines(map(_text, lines))
                file.flush()
                os.fsync(file.fileno())
            new.replace(self.path)
        except OSError:
            new.unlink(missing_ok=True)
            raise
        self._file = self.path.open("r+", encoding="utf-8", newline="\n")
        self._file.seek(0, os.SEEK_END)
        self._last: dict[str, Any] = {}
        self._last_start = self._file.tell()

    def write(self, step: int, split: str, values: Mapping[str, float], epoch: int | None) -> None:
        """Write a line, or add the values to the last one."""
        self._guard(lambda: self._write(step, split, values, epoch))

    def _write(self, step: int, split: str, values: Mapping[str, float], epoch: int | None) -> None:
        since = self._latest.get(split, 0)
        if (step, split) in self._repeatable:
            since = self._forget(step, split)
        if self._last.get("step") == step and self._last.get("split") == split:
            self._file.seek(self._last_start)
            self._file.truncate()
        else:
            self._last = {"step": step, "split": split, "since": since}
            self._last_start = self._file.tell()
            self._latest[split] = step
        if epoch is not None:
            self._last["epoch"] = epoch
        self._last.update(values)
        self._file.write(_text(self._last))
        self._file.flush()

    def _forget(self, step: int, split: str) -> int:
        """Remove the line of a step that a resumed run reports again, such as a validation after the save; returns its
        `since`."""
        others, since = [], 0
        for line in _lines(self.path):
            if (line["step"], line["split"]) == (step, split):
                since = line.get("since", since)
                continue
            others.append(line)
            if line["split"] == split:
                since = line["step"]
        self._file.close()
        self._replace(others)
        self._repeatable.discard((step, split))
        return since

    def event(self, step: int, name: str, facts: Mapping[str, Any]) -> None:
        """Write the line of an event."""
        self._guard(lambda: self._write_event({"step": step, "split": "event", "event": name, **facts}))

    def _write_event(self, line: Mapping[str, Any]) -> None:
        self._last = {}
        self._file.write(_text(line))
        self._file.flush()

    def sync(self) -> None:
        """Wait until the disk has every line."""
        self._guard(lambda: os.fsync(self._file.fileno()))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The metrics in a metrics file, one dictionary per (step, split). An incomplete last line is
    skipped; a missing file has no metrics."""
    lines = (line for line in _lines(path) if line["split"] != "event")
    return [{name: value for name, value in line.items() if name != "since"} for line in lines]


def missing_metrics(path: Path) -> str:
    """Which lines were deleted or damaged in a metrics file, as in `train metrics of steps 21 to 30 are`; empty where
    none were. (Files of earlier versions do not tell.)"""
    missing = _missing(_lines(path))
    return _in_words(missing) if missing else ""


_Missing = tuple[str, int, int]
"""A split, and the first and last step of which its line or lines are missing."""
_HOLES_IN_WORDS = 4


def _missing(lines: Iterable[Mapping[str, Any]]) -> list[_Missing]:
    missing: list[_Missing] = []
    latest: dict[str, int] = {}
    for line in lines:
        split, since, before = line["split"], line.get("since"), latest.get(line["split"], 0)
        if isinstance(since, int) and since > before:
            missing.append((split, before + 1, since))
        latest[split] = line["step"]
    return missing


def _in_words(missing: Sequence[_Missing]) -> str:
    parts = []
    for split in dict.fromkeys(split for split, _, _ in missing):
        holes = [f"{first} to {last}" for own, first, last in missing if own == split]
        more = f" and {len(holes) - _HOLES_IN_WORDS} other stretches" if len(holes) > _HOLES_IN_WORDS else ""
        parts.append(f"{split} metrics of steps {', '.join(holes[:_HOLES_IN_WORDS])}{more}")
    return f"{' and '.join(parts)} are"


def read_events(path: Path, name: str | None = None) -> list[dict[str, Any]]:
    """The events in a metrics file, oldest first; only those called `name` if given.

    Each has `event` (its name), `step`, and further fields. `resumed` has `epoch` and `checkpoint`, a path.
    """
    return [line for line in _lines(path) if line["split"] == "event" and name in (None, line["event"])]


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    if not path.exists():
        return
    text = path.read_bytes().decode("utf-8", errors="replace")
    lines = text.split("\n")
    for number, line in enumerate(lines, start=1):
        try:
            value = json.loads(line) if line else None
        except (ValueError, RecursionError):
            value = None
        if _is_row(value):
            if number < len(lines):  # a last line without a newline may end in a truncated number
                yield value
        elif number < len(lines):
            log.warning("%s:%d: not a line of metrics; skipped", path, number)


def _is_row(value: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict) and type(value.get("step")) is int and isinstance(value.get("split"), str)


def _text(line: Mapping[str, Any]) -> str:
    try:
        return json.dumps(line, allow_nan=False) + "\n"
    except ValueError:
        finite = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in line.items()
        }
        return json.dumps(finite) + "\n"


# ----------------------------------------------------------- Memory, CPU and GPU usage of this process

GB = 1e9


class SystemMonitor:
    """Reads system metrics. A reading takes about 30 microseconds, so it is done once per logging interval."""

    def __init__(self) -> None:
        import psutil

        self._process = psutil.Process()
        self._process.cpu_percent()  # the first call only starts the measurement

    def read(self) -> dict[str, float]:
        """Memory in GB; CPU usage in percent of one core since the last reading; GPU memory if CUDA is in use."""
        values = {
            "system/memory_gb": self._process.memory_info().rss / GB,
            "system/cpu_percent": self._process.cpu_percent(),
        }
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            free, total = torch.cuda.mem_get_info()
            values["system/gpu_memory_gb"] = torch.cuda.memory_allocated() / GB
            values["system/gpu_memory_percent"] = 100 * (total - free) / total
        return values


metrics_log = logging.getLogger("phonate.metrics")

# ---------------------------------------------------------------------- Console output during training

_ASIDE = frozenset({"data_wait", "grad_norm", "grad_scale", "samples_per_second"})
"""Shown only with `verbosity: debug`, like metrics in a group (`system/memory_gb`)."""
_GPU_MEMORY = "system/gpu_memory_gb"
_ALWAYS = frozenset({"loss", "learning_rate", "steps_per_second", _GPU_MEMORY})
"""Shown of each report of training metrics."""
_TERMS = 2
"""Terms of the loss that are shown."""
REFRESH = 0.5
"""Seconds between redraws of the bar. A redraw takes milliseconds, so it must be rare."""
SOON, OFTEN = 15.0, 60.0
"""Seconds from the first step to a line that says how long it will take, and from that to the next."""


class ConsoleSink(Sink):
    """A progress bar with the remaining time, and a line for each report of metrics.

    Without a terminal there is no bar, only the lines, and once a minute one with the time left. All lines go to the
    logger `phonate.metrics`, and so to the log files. "quiet" shows nothing. "normal" shows the loss, the first of
    its terms (in validation, after what else is measured), the learning rate, the speed and what else the task declares
    (on a terminal, as many as fit its width; a term that is the whole loss is not shown again), and the means of an
    epoch only if no other training metrics were shown in it, or in the last `interval` steps. "debug" shows everything.

    Args:
        total_steps: Optimizer steps of the whole run.
        verbosity: quiet, normal or debug.
        interval: Steps between reports of training metrics.
        metrics: What the task declares, the terms of its loss in the order of what they say. Empty: all is shown.
        selected: The metric that selects checkpoints, which is shown even if it is a later term of the loss.
        console: Where to write. None: standard error, with rich, whose import takes a while, only on a terminal.
        time_left: Its estimate. None: by the steps alone.
        running_epoch: Which epoch steps are in, counted from 1; None where that says nothing. None: the epochs done are
                shown as they are given.
    """

    def __init__(
        self,
        total_steps: int,
        verbosity: Literal["quiet", "normal", "debug"] = "normal",
        console: Console | None = None,
        interval: int = 1,
        metrics: Iterable[Metric] = (),
        selected: str = "",
        time_left: TimeLeft | None = None,
        running_epoch: Callable[[], int | None] | None = None,
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
        self._time_left = time_left or TimeLeft(total_steps)
        self._running_epoch = running_epoch
        self._due: float | None = None
        """When a line tells the time left next. None: no step is done yet."""
        self._step = 0
        self._interval = interval
        self._declared = declared = list(metrics)
        terms = [one.name for one in declared if one.is_term]
        self._measured = frozenset(one.name for one in declared if one.better and not one.is_term)
        # what has no better direction is for experts
        aside = {one.name for one in declared if not (one.better or one.is_term)}
        self._later_terms = frozenset({*terms[_TERMS:], *aside}) - {plain(selected)}
        self._shown_in_training = {one.name for one in declared} - self._later_terms | _ALWAYS if declared else None
        self._trained = False
        """Whether training metrics were shown since the end of the last epoch."""
        self._shown_at: int | None = None
        """The step at which training metrics or those of an epoch were shown last."""

    def _bar(self, step: int) -> Progress:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        progress = Progress(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("steps, time left {task.fields[left]}"),
            console=self.console,
            auto_refresh=False,
            redirect_stdout=sys.stdout.isatty(),  # otherwise it is a file or a pipe
        )
        progress.add_task("training", total=self.total_steps, completed=step, left=self._time_left)
        progress.start()
        return progress

    def tick(self, step: int) -> None:
        """Update the bar, at most twice a second; log once a minute how long it will take, and say it without a bar."""
        self._step, now = step, perf_counter()
        self._time_left.step(step, now)
        self._tell_time_left(step, now)
        if self._shows_bar and now >= self._next_refresh:
            self._next_refresh = now + REFRESH
            with self._while_there():
                if self._progress is None:
                    self._progress = self._bar(step)
                self._progress.update(self._progress.task_ids[0], completed=step)
                self._progress.refresh()

    def _tell_time_left(self, step: int, now: float) -> None:
        if self._due is None:
            self._due = now + SOON
        elif now >= self._due and (left := str(self._time_left)) != UNKNOWN:
            self._due = now + OFTEN
            line = f"step {step}/{self.total_steps}  time left {left}"
            metrics_log.info(line)
            if not self._shows_bar and self.verbosity != "quiet":
                with self._while_there():
                    sys.stderr.write(f"{line}\n")

    def write(self, step: int, split: str, values: Mapping[str, float], epoch: int | None) -> None:
        """Print a line like `step 50/500  epoch 1  train  loss 0.3121  learning_rate 1e-04`."""
        recent = self._shown_at is not None and step - self._shown_at < self._interval
        repeats = split == "epoch" and (self._trained or recent)
        self._trained = split == "train" or (self._trained and split != "epoch")
        if split in ("train", "epoch") and not repeats:
            self._shown_at = step
        if self.verbosity != "debug":
            loss = values.get("loss")
            values = {
                name: one
                for name, one in values.items()
                if self._is_main(name, split) and (one != loss or name == "loss")
            }
        if not values:
            return
        if split == "validation":
            # A narrow terminal cuts the end off, and the loss's terms say less than what is measured.
            values = dict(sorted(values.items(), key=lambda one: (one[0] != "loss", one[0] not in self._measured)))
        if epoch is not None and self._running_epoch is not None:
            epoch = self._running_epoch()
        place = f"step {step}/{self.total_steps}" + ("" if epoch is None else f"  epoch {epoch}")
        shown = "train (mean of the epoch)" if split == "epoch" else split
        told_values = [f"{name} {told(name, value, self._declared)}" for name, value in values.items()]
        parts = [f"{place}  {shown}", *told_values]
        metrics_log.info("  ".join(parts), extra={"split": split})
        if self.verbosity == "debug" or (self.verbosity == "normal" and not repeats):
            with self._while_there():
                if self.console is None:
                    sys.stderr.write("  ".join(parts) + "\n")
                    return
                if self._has_terminal and self.verbosity != "debug":
                    parts = _fitting(parts, self.console.width)
                self.console.print("  ".join(parts), markup=False, soft_wrap=True)

    def _is_main(self, name: str, split: str) -> bool:
        """Whether a metric is shown with the verbosity "normal"."""
        if name != _GPU_MEMORY and ("/" in name or name in _ASIDE):
            return False
        if split in ("train", "epoch") and self._shown_in_training is not None:
            return name in self._shown_in_training
        return name not in self._later_terms

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


def _fitting(parts: list[str], width: int) -> list[str]:
    """The first `parts` that fit in a line of `width` characters, followed by `...` if some do not fit."""
    used = 0
    for count, part in enumerate(parts):
        used += len(part) + 2
        if used + 3 > width and (count < len(parts) - 1 or used - 2 > width):
            return [*parts[: max(count, 1)], "..."]
    return parts


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
