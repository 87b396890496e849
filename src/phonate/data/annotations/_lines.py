"""Shared parts of the annotation formats: lines of fields, and times in seconds."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path

from phonate.config.errors import DataError, InputError, plain_file

_LONGEST = 7 * 24 * 3600.0


def seconds(value: str) -> float:
    """Parse a time in seconds. Raises ValueError if it is not a number from 0 to a week."""
    found = float(value)
    if not 0.0 <= found <= _LONGEST:
        raise ValueError(f"{value!r} is not a time in seconds")
    return found


def written_seconds(value: float) -> str:
    """Format a time in seconds to the microsecond, without trailing zeros: 34.27."""
    return f"{value:.6f}".rstrip("0").rstrip(".")


def fields_of(path: str | Path) -> Iterator[tuple[str, list[str]]]:
    """`file:line` and the fields of each line that is neither empty nor a comment (`;` or `#`).

    Raises DataError for a file that can't be read or is not UTF-8 text.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text (byte {error.start}); save it as UTF-8") from error
    for number, line in enumerate(text.split("\n"), start=1):
        fields = line.split()
        if fields and not fields[0].startswith((";", "#")):
            yield f"{path}:{number}", fields


def require_field(value: str, what: str) -> str:
    """`value`, if it is valid as a field. Raises InputError if it is empty or contains spaces."""
    if not value or value.split() != [value]:
        raise InputError(f"{what} {value!r} can't be written: names must not be empty or contain spaces; rename it")
    return value


def write_lines(path: str | Path, lines: Iterable[str]) -> None:
    """Write a text file atomically. Raises InputError if it can't be written."""
    path = plain_file(Path(path))
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        try:
            temporary.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"{path}: can't be written ({error.strerror}); choose another path or free space") from error
