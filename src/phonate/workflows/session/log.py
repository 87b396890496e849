"""What a session leaves to be read and to be resumed: its log, one JSON document that is complete at every moment, and
its state."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from phonate.compute.system import LockTaken, ProcessLock, write_whole
from phonate.config.errors import InputError, option, unreadable

Level = Literal["INFO", "SUCCESS", "WARNING", "ERROR"]
Say = Callable[[str], None]

EMOJI: dict[Level, str] = {"INFO": "ℹ️ ", "SUCCESS": "✅", "WARNING": "⚠️ ", "ERROR": "❌"}
SHOWN = 20
"""Entries of one call that the console shows; the file has all of them."""

_TRAINING = "phonate"
_METRICS = "phonate.metrics"
_METRIC_SECONDS = 60.0
"""Shortest time between training metrics in the file; those of validations are all logged."""


def to_console(line: str) -> None:
    """Print a line to standard output, looked up anew each time, as a progress bar may replace it."""
    if sys.stdout is None:  # it was closed before Python started
        return
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(line.encode(encoding, "backslashreplace").decode(encoding) + "\n")
    sys.stdout.flush()


class SessionLog:
    """OUTPUT/logs/session_YYYYmmdd_HHMMSS.json: {session_id, mode, voice_mode, device, log}, whose `log` is a list of
    {timestamp, level, message}.

    Each entry replaces the file atomically, so that it is a complete document whenever and however the process ends.

    Args:
        output: the output directory, in which the folders `logs` and `session_YYYYmmdd_HHMMSS` are created.
        facts: mode, voice_mode and device, as requested.
        say: gets each entry as a line with an emoji, until it raises OSError (a closed console).
        folder: the folder of an earlier session whose log is continued.

    Raises:
        InputError: nothing can be written there.
    """

    def __init__(
        self, output: Path, facts: dict[str, str | None], say: Say = to_console, folder: Path | None = None
    ) -> None:
        self._say: Say | None = say
        self._entries: list[dict[str, str]] = []
        self._lock = threading.RLock()
        self._unwritable = False
        try:
            (output / "logs").mkdir(parents=True, exist_ok=True)
            if folder is None:
                self.session_id, self.folder = _take_name(output)
            else:
                self.session_id, self.folder = folder.name.removeprefix("session_"), folder
        except OSError as error:
            elsewhere = f"choose another {option('output_dir')}"
            raise InputError(f"{output}: can't be written to ({error.strerror}); {elsewhere}") from None
        self.path = _log_of(output, self.session_id)
        if folder is not None:
            self._entries.extend(_entries_of(self.path))
        self._document: dict[str, Any] = {"session_id": self.session_id, **facts, "log": self._entries}
        self._write()

    def set(self, name: str, value: str) -> None:
        """Set a fact, such as the device that was chosen. It is written with the next entry."""
        assert name in self._document
        self._document[name] = value

    def info(self, message: str) -> None:
        """Log progress."""
        self.add("INFO", [message])

    def success(self, message: str) -> None:
        """Log a completed stage."""
        self.add("SUCCESS", [message])

    def warning(self, *messages: str) -> None:
        """Log what went wrong without ending the session, such as files that can't be used."""
        self.add("WARNING", messages)

    def add(self, level: Level, messages: Iterable[str], mirrored: bool = True) -> None:
        """Add entries of one level in a single write."""
        with self._lock:
            listed = list(messages)
            now = datetime.now().isoformat(timespec="microseconds")
            self._entries += [{"timestamp": now, "level": level, "message": message} for message in listed]
            self._write()
            for message in listed[:SHOWN] if mirrored else ():
                self._mirror(level, message)
            if mirrored and len(listed) > SHOWN:
                self._mirror(level, f"... and {len(listed) - SHOWN} more; {self.path} has all")

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Within, add what phonate logs."""
        logger = logging.getLogger(_TRAINING)
        listener = _Listener(self)
        level = logger.level
        logger.addHandler(listener)
        logger.setLevel(min(level or logging.INFO, logging.INFO))
        try:
            yield
        finally:
            logger.removeHandler(listener)
            logger.setLevel(level)

    def _write(self) -> None:
        """Replace the file. A full disk does not end the session."""
        beside = self.path.with_name(f".{self.path.name}.tmp")
        try:
            with beside.open("w", encoding="utf-8", errors="backslashreplace") as file:
                json.dump(self._document, file, indent=2, ensure_ascii=False)
                file.write("\n")
                file.flush()
                os.fsync(file.fileno())
            beside.replace(self.path)
        except OSError as error:
            if not self._unwritable:
                self._unwritable = True
                self._mirror("WARNING", f"{self.path}: can't be written ({error.strerror}); the session goes on")

    def _mirror(self, level: Level, message: str) -> None:
        """Show an entry. A closed console (a closed terminal, `| head`) does not end the session."""
        if self._say is None:
            return
        try:
            self._say(f"{EMOJI[level]} {message}")
        except OSError:
            self._say = None


class _Listener(logging.Handler):
    """Turns log records into entries. Metrics, which training prints itself, only go to the file."""

    def __init__(self, log: SessionLog) -> None:
        super().__init__(logging.INFO)
        self._log = log
        self._next_metrics = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if record.name == _METRICS:
            if getattr(record, "split", None) == "train":
                if time.monotonic() < self._next_metrics:
                    return
                self._next_metrics = time.monotonic() + _METRIC_SECONDS
            self._log.add("INFO", [message], mirrored=False)
        else:
            self._log.add(_level(record), message.splitlines())


def _level(record: logging.LogRecord) -> Level:
    if record.levelno < logging.WARNING:
        return "INFO"
    return "WARNING" if record.levelno < logging.ERROR else "ERROR"


def _take_name(output: Path) -> tuple[str, Path]:
    """A unique id from the current time, and the session's folder, created here."""
    moment = datetime.now()
    while True:
        name = moment.strftime("%Y%m%d_%H%M%S")
        folder = output / f"session_{name}"
        moment += timedelta(seconds=1)
        try:
            folder.mkdir()
        except FileExistsError:  # another session began in the same second
            continue
        if not _log_of(output, name).exists():
            return name, folder
        folder.rmdir()  # an earlier session failed and left only its log


def _log_of(output: Path, name: str) -> Path:
    return output / "logs" / f"session_{name}.json"


def _entries_of(path: Path) -> list[dict[str, str]]:
    """The entries of an earlier log; none where it is missing or damaged."""
    try:
        return list(json.loads(path.read_text(encoding="utf-8", errors="surrogateescape"))["log"])
    except (OSError, ValueError, KeyError, TypeError):
        return []


# --------------- What a session needs in order to be resumed: how it was started, and what it has done

STATE = "session.json"
_LOCK = ".lock"


@dataclass
class SessionState:
    """The progress of one session."""

    options: dict[str, Any]
    """What `TrainingSession` was called with, as JSON."""
    voice: bool | None = None
    """Whether it trains on recordings (True) or texts (False). None: not decided yet."""
    task: str | None = None
    """The task that is trained on recordings."""
    trained: list[str] = field(default_factory=list)
    """Names of the runs that are finished."""
    done: bool = False
    """Whether the model was saved."""

    def write(self, folder: Path) -> None:
        """Write the state into the session's folder, whole or not at all."""
        text = json.dumps(asdict(self), indent=2) + "\n"
        write_whole(folder / STATE, text.encode(errors="surrogateescape"))


def read_state(folder: Path) -> SessionState:
    """The state in a session's folder. Raises InputError where it is missing or damaged."""
    try:
        document = json.loads((folder / STATE).read_text(encoding="utf-8", errors="surrogateescape"))
        known = {one.name for one in fields(SessionState)}
        return SessionState(**{name: value for name, value in document.items() if name in known})
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise InputError(
            f"{folder / STATE}: can't be read ({unreadable(error)}); start a new session instead"
        ) from None


def newest_unfinished(output: Path) -> Path:
    """The folder of the newest session in `output` that has not saved its model. Raises InputError."""
    folders = sorted((file.parent for file in output.glob(f"session_*/{STATE}")), reverse=True)
    for folder in folders:
        if not read_state(folder).done:
            return folder
    raise InputError(f"{output}: no unfinished session to resume; start a new one")


def session_lock(folder: Path) -> ProcessLock:
    """A lock on a session's folder. Raises InputError if it is taken."""
    try:
        return ProcessLock(folder / _LOCK)
    except LockTaken as error:
        raise InputError(f"{folder}: the session is still running (process {error.owner}); stop it first") from None
