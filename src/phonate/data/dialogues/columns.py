"""Rows with a source and a target -> dialogues: tables (.tsv, .csv), and JSON rows with keys of those names.

A source with its target is a prompt with its response; a row with a source alone is plain text.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phonate.config.errors import DataError
from phonate.config.registry import nearest
from phonate.data.dialogues.dialogue import Dialogue
from phonate.data.dialogues.rows import dialogue_of, refuse_instructions, text_of

TABLES = {".tsv": "\t", ".csv": ","}
"""Suffix -> what separates the cells."""
SOURCES = ("source", "src", "prompt", "text", "input")
"""Names of the source's column, where no other is asked for."""
TARGETS = ("target", "tgt", "response", "label", "output")
"""Names of the target's column, where no other is asked for."""
_LONGEST_CELL = 2**31 - 1


@dataclass(frozen=True)
class Columns:
    """Which column, or key of a JSON row, holds the source and which the target; None: the usual names, or else the
    first two columns of a table."""

    source: str | None = None
    target: str | None = None

    def dialogue(self, place: str, row: Any) -> Dialogue:
        """The dialogue in a JSON row. Raises DataError for a row that can't be used."""
        if not isinstance(row, Mapping) or "messages" in row:
            return dialogue_of(place, row)
        source, target = _named(row, self.source, SOURCES), _named(row, self.target, TARGETS)
        if source is None:
            return dialogue_of(place, row)
        refuse_instructions({key: value for key, value in row.items() if key not in (source, target)})
        text = text_of(row, source)
        return Dialogue.plain(place, text) if target is None else Dialogue.pair(place, text, text_of(row, target))

    def in_table(self, header: Sequence[str]) -> tuple[int, int | None] | None:
        """Positions of source and target in a table whose first row is `header`; None: that row is no header.

        Raises DataError if a column that was asked for is not there.
        """
        names = [cell.strip() for cell in header]
        lower = [name.lower() for name in names]
        for asked in (self.source, self.target):
            if asked is not None and asked not in names:
                raise DataError(f"no column {asked!r}; {nearest(asked, names)}")
        source = names.index(self.source) if self.source else _first(lower, SOURCES)
        target = names.index(self.target) if self.target else _first(lower, TARGETS)
        if source is None and target is None:
            return None
        if source is None:
            raise DataError(f"a column {names[target or 0]!r}, but none of the source; name it in data.source")
        return source, target


def table_rows(name: str, text: str, separator: str, columns: Columns) -> Iterator[tuple[str, Dialogue | DataError]]:
    """The dialogues of a table's rows, or why a row can't be used, each with its place (file:line)."""
    rows = _cells(name, text, separator)
    positions: tuple[int, int | None] | None = None
    width = 0
    for number, (place, cells) in enumerate(rows):
        if isinstance(cells, DataError):
            yield place, cells
            continue
        try:
            if number == 0:
                width = len(cells)
                positions = columns.in_table(cells)
                if positions is not None:
                    continue
                positions = (0, 1 if len(cells) > 1 else None)
            assert positions is not None
            if len(cells) > width:
                # A separator in a text: what is behind it would be dropped in silence.
                mend = "take tabs out of texts" if separator == "\t" else "put quotes around texts that hold a comma"
                raise DataError(f"{len(cells)} columns, the first row has {width}; {mend}")
            yield place, _picked(place, cells, *positions)
        except DataError as error:
            yield place, error
            if positions is None:
                return


def _cells(name: str, text: str, separator: str) -> Iterator[tuple[str, list[str] | DataError]]:
    """The cells of each row that is not blank, with its place. In .tsv files a quote is a character like any other."""
    if separator == "\t":
        for number, line in enumerate(text.split("\n"), start=1):
            if line.strip():
                yield f"{name}:{number}", line.rstrip("\r").split("\t")
        return
    csv.field_size_limit(_LONGEST_CELL)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    while True:
        start = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield f"{name}:{start}", DataError(f"{error}; the rows from here on are not read")
            return
        if any(cell.strip() for cell in cells):
            yield f"{name}:{start}", cells


def _picked(place: str, cells: Sequence[str], source: int, target: int | None) -> Dialogue:
    most = max(source, target or 0)
    if len(cells) <= most:
        raise DataError(f"{len(cells)} columns, and column {most + 1} is needed")
    row = dict(enumerate(cells))
    text = text_of(row, source, f"column {source + 1}")
    if target is None:
        return Dialogue.plain(place, text)
    return Dialogue.pair(place, text, text_of(row, target, f"column {target + 1}"))


def _named(row: Mapping[str, Any], asked: str | None, usual: Sequence[str]) -> str | None:
    if asked is None:
        return next((name for name in usual if name in row), None)
    if asked not in row:
        raise DataError(f"no {asked!r}")
    return asked


def _first(names: Sequence[str], wanted: Sequence[str]) -> int | None:
    return next((names.index(name) for name in wanted if name in names), None)
