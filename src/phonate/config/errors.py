"""Errors a person can act on. Each says what went wrong, where, and the mend, in one line."""

from __future__ import annotations


class PhonateError(Exception):
    """Base of every error that phonate raises on purpose. Exit code 1 unless a subclass says otherwise."""

    exit_code = 1


class InputError(PhonateError, ValueError):
    """What a person gave (a recipe, a recording, a flag) can't be used. Exit code 2."""

    exit_code = 2


class RecipeError(InputError):
    """A mistake in a recipe or an override; the message begins with `file:line:column key`."""


class DataError(InputError):
    """A corpus, a manifest or a recording can't be used; the message names the file or the row."""


class MissingPackageError(InputError):
    """An optional package is needed and absent; the message holds the install command."""


class CheckpointError(PhonateError):
    """A checkpoint can't be written, found, verified or loaded."""


class TrainingError(PhonateError):
    """Training can't go on (a loss that is not finite, a full disk, ...)."""


class Interrupted(PhonateError):
    """Training was stopped by a signal after saving. `signal_number` is 1 (SIGHUP), 2 (Ctrl-C) or 15 (SIGTERM)."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.signal_number = signal_number
        self.exit_code = 128 + signal_number
