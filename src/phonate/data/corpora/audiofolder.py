"""Hugging Face's AudioFolder: recordings beside a metadata.csv or metadata.jsonl with `file_name`, once or in each of
several folders (train/, test/)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from phonate.config.errors import DataError
from phonate.data.corpora._lists import read_lines, speaker_of
from phonate.data.corpora.csv import csv_rows, header_of
from phonate.data.corpora.json import json_rows
from phonate.data.manifests.rows import Problem, Row, corpus_format, official_split, printable

_NAMES = ("metadata.csv", "metadata.jsonl")
_DEPTH = 2


def is_audiofolder(path: Path) -> bool:
    """A folder with metadata files that have a column or key `file_name`."""
    return path.is_dir() and bool(metadata_files(path))


@corpus_format(is_audiofolder, priority=50)
def audiofolder_rows(path: Path) -> Iterator[Row | Problem]:
    """Rows of every metadata file; ids begin with the folder that the file is in."""
    root = path if path.is_dir() else path.parent
    files = metadata_files(root) if path.is_dir() else [path]
    if not files:
        raise DataError(f"{path}: no metadata.csv or metadata.jsonl with a file_name column in it")
    for file in files:
        inside = printable(file.parent.relative_to(root).as_posix())
        alone, named = speaker_of(file), speaker_of(root / "metadata.csv")
        try:
            for row in json_rows(file) if file.suffix.lower() == ".jsonl" else csv_rows(file):
                if isinstance(row, Problem) or inside == ".":
                    yield row
                    continue
                # Without a column of speakers it is one and the same in train/ and in test/.
                row = replace(row, id=f"{inside}/{row.id}", split=row.split or _official(inside))
                yield row.with_speaker(named) if row.speaker == alone else row
        except DataError as error:
            if len(files) == 1:
                raise
            yield Problem("", printable(str(file)), "unreadable", printable(str(error)))


def _official(inside: str) -> str | None:
    """The folder that names an official split."""
    return next((part for part in inside.split("/") if official_split(part)), None)


def metadata_files(root: Path) -> list[Path]:
    """The metadata files with `file_name` in `root` or, if there is none, in its folders."""
    for depth in range(_DEPTH + 1):
        folders = [folder for folder in sorted(root.glob("*/" * depth)) if folder.is_dir()] if depth else [root]
        found = [file for folder in folders for name in _NAMES if _has_file_name(file := folder / name)]
        if found:
            return found
    return []


def _has_file_name(file: Path) -> bool:
    if not file.is_file():
        return False
    first = next(iter(read_lines(file)), "")
    if file.suffix == ".csv":
        return header_of(first) is not None and "file_name" in first.lower()
    return '"file_name"' in first
