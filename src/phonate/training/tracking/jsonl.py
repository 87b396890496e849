"""RUN/metrics.jsonl: one JSON object a line."""

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
    (step, split); what comes later for the same one joins its line. Events are lines of their own, such as
    `{"step": 50, "split": "event", "event": "resumed", ...}`; their split keeps them out of every curve.

    Every line reaches the operating system as it is written. Numbers that are not finite are written as null,
    because JSON has no others. On resume the lines of later steps, which will come again, and a half-written
    last line are dropped in one atomic replacement of the file.

    Args:
        path: The file.
        resume_step: The step that a resumed run goes on from; lines up to it are kept. None: a fresh file.
    """

    keeps_all = True

    def __init__(self, path: Path, resume_step: int | None = None) -> None:
        self.path = path
        kept = [] if resume_step is None else [line for line in _lines(path) if line["step"] <= resume_step]
        self._repeatable = {(line["step"], line["split"]) for line in kept if line["step"] == resume_step}
        self._guard(lambda: self._replace(kept))

    def _guard(self, action: Callable[[], None]) -> None:
        try:
            action()
        except OSError as error:
            raise TrainingError(
                f"{self.path}: can't write metrics: {error.strerror}; mend that and --resume"
            ) from error

    def _replace(self, lines: list[dict[str, Any]]) -> None:
        """Put a file of `lines` in place of the old one, and go on behind its last line."""
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
        """Write a line, or rewrite the last one with more in it."""
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
        """Drop the line of a step that a resumed run reports again, such as a validation after the save."""
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

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The metrics in a metrics file, one dictionary per (step, split). A half-written last line is left out, and a
    missing file has none."""
    return [line for line in _lines(path) if line["split"] != "event"]


def read_events(path: Path, name: str | None = None) -> list[dict[str, Any]]:
    """The events in a metrics file, oldest first; only those called `name` where it is given.

    Each has `event` (its name), `step`, and its own facts. `resumed` has `epoch` and `checkpoint`, a path.
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
            if number < len(lines):  # a last line without its newline may be a shorter number than was meant
                yield value
        elif number < len(lines):
            log.warning("%s:%d: not a line of metrics; it is left out", path, number)


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
