"""CSV metadata with a header, and the headerless `id|speaker|text`."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from phonate.config.errors import DataError
from phonate.data.corpora._lists import (
    SEPARATORS,
    TABLES,
    clip_of,
    list_in,
    listed_in,
    read_lines,
    report_one_speaker,
    speaker_of,
    spelled,
)
from phonate.data.manifests.rows import Problem, Row, checked_row, listed_file, malformed

PRIORITY = 40


def recognises(path: Path) -> bool:
    """Tables, or a folder whose recordings one lists."""
    return listed_in(path, TABLES) is not None


def csv_rows(path: Path) -> Iterator[Row | Problem]:
    """Rows of a `metadata.csv`: columns by their names in any order (comma, tab, semicolon or bar between them), or,
    without a header, `id|speaker|text`. Paths are relative to the file, or to wavs/ beside it. Columns of starts and
    ends, in seconds, make a row a part of its file. Without a column of speakers there is one, who is called after the
    folder."""
    if path.is_dir():
        path = list_in(path, TABLES) or path / "metadata.csv"
    lines = read_lines(path)
    if not lines:
        raise DataError(f"{path}: empty")
    header = header_of(lines[0])
    if header is None:
        yield from _piped(path, lines)
    else:
        yield from _with_header(path, lines, *header)


def header_of(line: str) -> tuple[str, dict[str, int], tuple[str, ...]] | None:
    """The separator of a header, where its columns are, and how they are called; None for a line that is no header."""
    separator = max(SEPARATORS, key=line.count)
    try:
        cells = [cell.strip().lower() for cell in next(csv.reader([line], delimiter=separator))]
    except csv.Error:  # a cell of over 128 KiB, which no column is called
        return None
    columns = {meaning: cells.index(name) for meaning, name in spelled(cells).items()}
    if "audio_path" in columns or {"id", "text"} <= columns.keys():
        return separator, columns, tuple(cells)
    return None


def _with_header(
    path: Path, lines: list[str], separator: str, columns: dict[str, int], names: tuple[str, ...]
) -> Iterator[Row | Problem]:
    alone = None if "speaker_id" in columns else speaker_of(path)
    if alone is not None:
        report_one_speaker(path, names, alone)
    # Only commas and semicolons need quotes around a text; between tabs and bars a quote is a part of it.
    quoted = separator in ",;"
    reader = csv.reader(
        lines, delimiter=separator, quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE, strict=True
    )
    next(reader)
    while True:
        try:
            cells = next(reader, None)
        except csv.Error as error:
            yield malformed(f"{path}:{reader.line_num}", f"{error}; is a quote left open?")
            continue
        if cells is None:
            return
        place = f"{path}:{reader.line_num}"
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) > len(names):
            # A separator in the text: the cells that it makes would be dropped in silence.
            sign = SEPARATORS[separator]
            mend = f"put quotes around a text that holds a {sign}" if quoted else f"take the {sign} out of the text"
            yield malformed(place, f"{len(cells)} columns, the header has {len(names)}; {mend}")
            continue

        listed = {meaning: cells[at].strip() or None for meaning, at in columns.items() if at < len(cells)}
        name = listed.get("audio_path") or listed.get("id")
        if name is None:
            yield malformed(place, "no audio_path")
            continue
        yield clip_of(listed, name, listed_file(path.parent, name), listed.get("speaker_id") or alone, place)


def _piped(path: Path, lines: list[str]) -> Iterator[Row | Problem]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) != 3:
            wanted = "expected a header with audio_path, speaker_id and text, or lines of id|speaker|text"
            yield malformed(f"{path}:{number}", f"{len(cells)} columns; {wanted}")
            continue
        file = listed_file(path.parent, cells[0])
        yield checked_row(Row.clip(cells[0], file, cells[1] or None, cells[2] or None, f"{path}:{number}"))
