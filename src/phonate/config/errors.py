"""Errors a person can act on. Each says in one line what went wrong, where, and how to fix it."""

from __future__ import annotations

from pathlib import Path


class PhonateError(Exception):
    """Base of all errors that phonate raises deliberately. Exit code 1 unless a subclass sets another."""

    exit_code = 1


class InputError(PhonateError, ValueError):
    """Invalid input: a recipe, a recording, an option. Exit code 2."""

    exit_code = 2


class RecipeError(InputError):
    """A mistake in a recipe or an override; the message begins with `file:line:column key`."""


class DataError(InputError):
    """A corpus, a manifest or a recording can't be used; the message names the file or the row."""


class MissingPackageError(InputError):
    """An optional package is missing; the message has the command that installs it."""


class CheckpointError(PhonateError):
    """A checkpoint can't be written, found, verified or loaded."""


class WrongTaskError(InputError, CheckpointError):
    """A checkpoint holds a model of another task than the one that was asked for."""


class TrainingError(PhonateError):
    """Training can't continue (a loss that is not finite, a full disk, ...)."""


class Interrupted(PhonateError):
    """A signal ended the work, after saving where there was anything to save.

    Args:
        message: For people.
        signal_number: 1 (SIGHUP), 2 (Ctrl-C) or 15 (SIGTERM).
        step: The optimizer step at which training stopped. None: it had not begun.
        checkpoint: The checkpoint of that step. None: nothing was saved.
        command: The command line that resumes the run. None: there is no recipe to resume it from.
    """

    def __init__(
        self,
        message: str,
        signal_number: int,
        *,
        step: int | None = None,
        checkpoint: Path | None = None,
        command: str | None = None,
    ) -> None:
        super().__init__(message)
        self.signal_number = signal_number
        self.step = step
        self.checkpoint = checkpoint
        self.command = command
        self.exit_code = 128 + signal_number


def plain_file(path: Path) -> Path:
    """`path`, where a file can be put in place whole: nothing is there, or a plain file. Raises InputError for a pipe
    or a device, which would be replaced, and what reads it would wait for ever."""
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: is a folder, a pipe or a device; give the name of a file")
    return path
