"""RUN/metrics.jsonl: one JSON object per line."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeGuard

from phonate.config.errors import TrainingError
from phonate.training.tracking.stream import Sink

log = logging.getLogger(__name__)


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
