"""The metric stream and its first sink, RUN/metrics.jsonl."""

from __future__ import annotations

import json
import logging
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from phonate.config.errors import TrainingError

if TYPE_CHECKING:
    from phonate.training.task import Preview


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
            here = split == "validation" or not all(wanted.startswith("val_") for wanted in self._only)
            if values and not selected and here and split not in self._silent:
                self._silent.add(split)
                log.warning(
                    "training.logging.log_metrics: %s matches none of the %s metrics, so none is shown; available: %s",
                    ", ".join(self._only),
                    split,
                    ", ".join(sorted(values)),
                )
        for sink in self.sinks:
            if shown := values if sink.keeps_all else selected:
                sink.write(step, split, shown, epoch)

    def _keeps(self, name: str, split: str) -> bool:
        full = f"val_{name.removeprefix('val_')}" if split == "validation" else name
        kept = self._wanted.get(full)
        if kept is None:
            kept = any(_means(wanted, full) for wanted in self._only or ())
            self._wanted[full] = kept
        return kept

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
        for wanted in self._only or ():
            names = self._wanted
            if names and not any(_means(wanted, name) for name in names):
                log.warning(
                    "training.logging.log_metrics: no metric matched %s; available: %s",
                    wanted,
                    ", ".join(sorted(names)),
                )
        self.sinks = []
        self._ticking = []


def _means(wanted: str, name: str) -> bool:
    """Whether a name or wildcard of `log_metrics` means a metric, which begins with `val_` if it is a validation's."""
    return fnmatchcase(name, wanted) or fnmatchcase(name.removeprefix("val_"), wanted)


def tag(names: Mapping[str, str], split: str, name: str) -> str:
    """The name of a metric in a sink: its entry in `names` under "split/name" or "name", else "split/name"."""
    full = name if "/" in name else f"{split}/{name}"
    return names.get(full) or names.get(name) or full


# --------------------------------------------------------- RUN/metrics.jsonl: one JSON object per line


class JsonLines(Sink):
    """Writes `{"step": 50, "split": "train", "epoch": 0, "loss": 0.31, ...}` to a file, one line for each
    (step, split). Later values for the same (step, split) are added to its line. Events have lines of their own, like
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
        kept = [] if resume_step is None else [line for line in _lines(path) if line["step"] <= resume_step]
        self._repeatable = {(line["step"], line["split"]) for line in kept if line["step"] == resume_step}
        latest = max((line["step"] for line in kept if line["split"] == "train"), default=0)
        if latest < logged:
            log.warning(
                "%s: the training metrics of steps %d to %d are missing; the run goes on without them",
                path,
                latest + 1,
                logged,
            )
        self._guard(lambda: self._replace(kept))

    def _guard(self, action: Callable[[], None]) -> None:
        try:
            action()
        except OSError as error:
            raise TrainingError(
                f"{self.path}: can't write metrics: {error.strerror}; fix this, then --resume"
            ) from error

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
        if (step, split) in self._repeatable:
            self._forget(step, split)
        if self._last.get("step") == step and self._last.get("split") == split:
            self._file.seek(self._last_start)
            self._file.truncate()
        else:
            self._last = {"step": step, "split": split}
            self._last_start = self._file.tell()
        if epoch is not None:
            self._last["epoch"] = epoch
        self._last.update(values)
        self._file.write(_text(self._last))
        self._file.flush()

    def _forget(self, step: int, split: str) -> None:
        """Remove the line of a step that a resumed run reports again, such as a validation after the save."""
        others = [line for line in _lines(self.path) if (line["step"], line["split"]) != (step, split)]
        self._file.close()
        self._replace(others)
        self._repeatable.discard((step, split))

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
    return [line for line in _lines(path) if line["split"] != "event"]


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
