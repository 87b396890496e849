"""What a session needs in order to be resumed: how it was started, and what it has done. Kept in its folder."""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from phonate.config.errors import InputError

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
        beside = folder / f".{STATE}.{os.getpid()}"
        beside.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8", errors="surrogateescape")
        beside.replace(folder / STATE)


def read_state(folder: Path) -> SessionState:
    """The state in a session's folder. Raises InputError where it is missing or damaged."""
    try:
        document = json.loads((folder / STATE).read_text(encoding="utf-8", errors="surrogateescape"))
        known = {one.name for one in fields(SessionState)}
        return SessionState(**{name: value for name, value in document.items() if name in known})
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise InputError(f"{folder / STATE}: can't be read ({error}); start a new session without --resume") from None


def newest_unfinished(output: Path) -> Path:
    """The folder of the newest session in `output` that has not saved its model. Raises InputError."""
    folders = sorted((file.parent for file in output.glob(f"session_*/{STATE}")), reverse=True)
    for folder in folders:
        if not read_state(folder).done:
            return folder
    raise InputError(f"{output}: no unfinished session to resume; start one without --resume")


class SessionLock:
    """A lock on a session's folder, released by the system when the process ends. Raises InputError if it is taken."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / _LOCK
        self._descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (PermissionError, BlockingIOError):  # POSIX allows either
            owner = os.pread(self._descriptor, 20, 0).decode(errors="replace")
            os.close(self._descriptor)
            raise InputError(f"{folder}: the session is still running (process {owner}); stop it first") from None
        except OSError:  # a file system without locks
            return
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, str(os.getpid()).encode(), 0)

    def release(self) -> None:
        """Remove the lock."""
        self._file.unlink(missing_ok=True)
        os.close(self._descriptor)
