"""Text and JSON files -> dialogues. Rows that can't be used are refused, counted and named with file and line."""

from __future__ import annotations

import codecs
import json
import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phonate.config.errors import DataError
from phonate.data.dialogues.columns import TABLES, Columns, table_rows
from phonate.data.dialogues.dialogue import Dialogue
from phonate.data.dialogues.rows import dialogue_of
from phonate.data.manifests.rows import audio_files, printable

logger = logging.getLogger("phonate")

PLAIN_SUFFIXES = (".txt", ".md")
SUFFIXES = (*PLAIN_SUFFIXES, ".jsonl", ".json")
REPORTED = 5
"""Refused rows that are named in the log; the rest are counted."""
Convert = Callable[[str, Any], Dialogue]
"""Makes the dialogue of a JSON row read at a place (file:line). Raises DataError."""
_BLANK_LINES = re.compile(r"\n[ \t]*\n\s*")


@dataclass(frozen=True)
class Refused:
    """A row that can't be used."""

    place: str
    """file:line, or file:row of a .json file."""
    reason: str


@dataclass(frozen=True)
class Read:
    """What was read at a path."""

    dialogues: list[Dialogue]
    refused: list[Refused]


def text_files(path: str | Path) -> list[Path]:
    """The text and JSON files at `path`, a file or a folder including its sub-folders. Hidden ones are skipped, and so
    are .json files that hold no list (settings of other programs, say) and what phonate wrote itself (runs, models,
    sessions).

    Raises DataError if there are none.
    """
    return _scan(Path(path))[0]


def _scan(root: Path, suffixes: tuple[str, ...] = SUFFIXES) -> tuple[list[Path], list[Refused]]:
    """`text_files` of these suffixes, and folders and files that can't be read."""
    if root.is_file():
        if root.suffix.lower() not in suffixes:
            raise DataError(f"{root}: not a text file; give one of {', '.join(suffixes)}, or a folder of them")
        return [root], []
    if not root.is_dir():
        raise DataError(f"{root}: no such file or folder")
    files: list[Path] = []
    refused: list[Refused] = []

    def refuse(path: Path, reason: str) -> None:
        refused.append(Refused(printable(path.relative_to(root).as_posix()), reason))

    for file in audio_files(root, suffixes, lambda folder, error: refuse(folder, str(error.strerror))):
        if not file.is_file():
            refuse(file, "not a file (a broken link, or a pipe)")
        elif file.suffix.lower() != ".json" or _may_hold_rows(file):
            files.append(file)
    if not files:
        why = f" ({refused[0].place}: {refused[0].reason})" if refused else ""
        raise DataError(f"{root}: no text files in this folder{why}; put {', '.join(suffixes)} files there")
    return files, refused


def _may_hold_rows(file: Path) -> bool:
    """Whether a .json file starts as a list does. One that can't be read is left to who reads it, and reported then."""
    try:
        with file.open("rb") as stream:
            return stream.read(256).removeprefix(codecs.BOM_UTF8).lstrip()[:1] in (b"[", b"")
    except OSError:
        return True


def read_dialogues(path: str | Path, documents: str = "auto", columns: Columns | None = None) -> Read:
    """All dialogues at `path`. A warning counts and names the rows that are refused.

    Args:
        path: A file, or a folder that is searched for files.
        documents: What a document of a .txt or .md file is: "line", "paragraph", "file", or "auto" (paragraphs if the
            file has blank lines, else lines).
        columns: Read .tsv and .csv files too, and JSON rows with a source and a target under these names. None: don't.

    Raises DataError if nothing can be used.
    """
    root = Path(path)
    dialogues: list[Dialogue] = []
    files, refused = _scan(root, SUFFIXES if columns is None else (*SUFFIXES, *TABLES))
    for file in files:
        name = printable(file.relative_to(root).as_posix() if root.is_dir() else file.name)
        for one in _read_file(file, name, documents, columns):
            if isinstance(one, Refused):
                refused.append(one)
            else:
                dialogues.append(one)
    warn_refused(root, refused)
    if not dialogues:
        first = f"{refused[0].place}: {refused[0].reason}" if refused else "the files are empty"
        raise DataError(f"{root}: no document can be used ({len(refused)} refused; {first})")
    return Read(dialogues, refused)


def warn_refused(root: Path, refused: list[Refused]) -> None:
    """Log how many rows were refused, and the first of them."""
    if refused:
        logger.warning("%s: %d rows can't be used", root, len(refused))
    for row in refused[:REPORTED]:
        logger.warning("%s: %s", row.place, row.reason)
    if len(refused) > REPORTED:
        logger.warning("... and %d more", len(refused) - REPORTED)


def _read_file(file: Path, name: str, documents: str, columns: Columns | None) -> Iterator[Dialogue | Refused]:
    suffix = file.suffix.lower()
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        yield Refused(f"{name}:1", f"not UTF-8 (byte {error.start}); save it as UTF-8")
    except OSError as error:
        yield Refused(f"{name}:1", str(error.strerror))
    else:
        if suffix in PLAIN_SUFFIXES:
            yield from _plain(name, text, documents)
        elif suffix in TABLES:
            for place, row in table_rows(name, text, TABLES[suffix], columns or Columns()):
                yield Refused(place, str(row)) if isinstance(row, DataError) else row
        else:
            convert = dialogue_of if columns is None else columns.dialogue
            yield from (_json_lines if suffix == ".jsonl" else _json_list)(name, text, convert)


def _plain(name: str, text: str, documents: str) -> Iterator[Dialogue]:
    unit = documents
    if unit == "auto":
        unit = "paragraph" if _BLANK_LINES.search(text.strip()) else "line"
    separator = {"line": re.compile(r"\n"), "paragraph": _BLANK_LINES, "file": None}[unit]
    line, counted = 1, 0
    for start, piece in _split(text, separator):
        if piece.strip():
            first = start + len(piece) - len(piece.lstrip())
            line, counted = line + text.count("\n", counted, first), first
            yield Dialogue.plain(f"{name}:{line}", piece.strip())


def _split(text: str, separator: re.Pattern[str] | None) -> Iterator[tuple[int, str]]:
    """The pieces of `text` between matches of `separator`, with their offsets."""
    start = 0
    for found in separator.finditer(text) if separator else ():
        yield start, text[start : found.start()]
        start = found.end()
    yield start, text[start:]


def _json_lines(name: str, text: str, convert: Convert) -> Iterator[Dialogue | Refused]:
    # Not splitlines: a JSON text may hold U+2028 and the like, which end no row.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        place = f"{name}:{number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            yield Refused(place, f"not JSON ({error})")
        else:
            yield _row(place, row, convert)


def _json_list(name: str, text: str, convert: Convert) -> Iterator[Dialogue | Refused]:
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        yield Refused(f"{name}:1", f"not JSON ({error})")
        return
    if not isinstance(rows, list):
        yield Refused(f"{name}:1", "not a list of rows")
        return
    for number, row in enumerate(rows, start=1):
        yield _row(f"{name}:{number}", row, convert)


def _row(place: str, row: Any, convert: Convert) -> Dialogue | Refused:
    try:
        return convert(place, row)
    except DataError as error:
        return Refused(place, str(error))
