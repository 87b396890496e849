"""Tables of recordings: `csv` with any columns, LJSpeech's layout, Hugging Face's AudioFolder."""

from __future__ import annotations

import csv
import logging
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from itertools import islice
from pathlib import Path

from phonate.config.errors import DataError
from phonate.data.corpora.columns import (
    FILES_LOOKED_FOR,
    RecordingNames,
    Roles,
    are_alike,
    are_texts,
    like_a_name,
    may_be_speakers,
    roles_of,
    share_named,
)
from phonate.data.corpora.layout import Layout
from phonate.data.corpora.lists import (
    LANGUAGES,
    SEPARATORS,
    TABLES,
    cells_of,
    clip_of,
    column_name,
    column_names,
    in_windows_1252,
    listed_in,
    lists_in,
    of_lists,
    read_lines,
    report_language,
    report_texts,
    report_unread,
    speaker_of,
    unknown_columns,
)
from phonate.data.corpora.objects import json_rows
from phonate.data.corpora.places import Places
from phonate.data.corpora.rows import (
    Problem,
    Row,
    checked_row,
    corpus_format,
    malformed,
    official_split,
    printable,
    split_among,
)

logger = logging.getLogger("phonate")

# ------------------- csv: with a header, or lines such as id|speaker|text, told apart by their values

_LOOKED_AT = 1000
"""Lines by which separator and columns are decided, from all over the list."""


def is_table(path: Path) -> bool:
    """Tables, or a folder whose recordings one lists."""
    return bool(listed_in(path, TABLES))


@corpus_format(is_table, priority=40)
def csv_rows(path: Path, language: str | None = None) -> Iterator[Row | Problem]:
    """Rows of a table: columns by their names in any order (comma, tab, semicolon or bar between them), or, without a
    header, by their values: `id|speaker|text`, `path|text|speaker`, `path|speaker|language|text`. Paths are relative to
    the file, or to wavs/ beside it. Columns of starts and ends, in seconds, make a row a part of its file. Without a
    column of speakers there is one, who is called after the folder.

    Raises DataError where the values leave open which column is which.
    """
    yield from of_lists(_tables_in(path), partial(_rows_of_table, language=language))


def _tables_in(path: Path) -> tuple[Path, ...]:
    return (lists_in(path, TABLES) or (path / "metadata.csv",)) if path.is_dir() else (path,)


def _rows_of_table(path: Path, language: str | None) -> Iterator[Row | Problem]:
    table = table_in(path)
    if table.counts_samples:
        yield from _of_fairseq(table)
    elif table.header is None:
        yield from _without_header(table)
    else:
        report_language(path, _languages(table, table.header[2]), language)
        yield from _with_header(table, *table.header)


def _languages(table: Table, names: Sequence[str]) -> frozenset[str]:
    """What a table with a header says of the languages of its texts."""
    called = list(map(column_name, names))
    at = next((called.index(one) for one in LANGUAGES if one in called), None)
    if at is None:
        return frozenset()
    rows = (cells for _, cells in islice(table.rows(), 1, None) if not isinstance(cells, Problem))
    return frozenset(cells[at] for cells in rows if at < len(cells) and cells[at])


def header_of(line: str, separators: Sequence[str] = tuple(SEPARATORS)) -> Header | None:
    """The header that a line is, by whichever of the separators makes most sense of it; None for any other line."""
    headers = [header for one in separators if (header := _header(line, one)) is not None]
    return max(headers, key=lambda one: (len(one[1]), line.count(one[0])), default=None)


Header = tuple[str, dict[str, int], tuple[str, ...]]
"""The separator, where the known columns are, and how all are called."""


def _header(line: str, separator: str) -> Header | None:
    cells = cells_of(line, separator)
    columns = {meaning: cells.index(name) for meaning, name in column_names(cells).items()}
    if "audio_path" in columns or {"id", "text"} <= columns.keys():
        return separator, columns, tuple(cells)
    return None


@dataclass(frozen=True)
class Table:
    """A list in lines of cells."""

    path: Path
    lines: list[str]
    separator: str
    header: Header | None
    places: RecordingNames
    columns: int | None = None
    """How many columns there are where the last is the rest of a line, with commas in it; None: as many as it says."""
    unknown_header: tuple[str, ...] = ()
    """How a first line that is left out calls the columns."""

    @classmethod
    def read(cls, path: Path, places: RecordingNames | None = None) -> Table:
        """The table in a file, whose recordings are in `places`, or where lists have them. Raises DataError where it is
        empty or can't be read."""
        lines = in_windows_1252(path, read_lines(path))
        if lines and re.fullmatch("sep=.", lines[0].strip()):  # as Excel writes
            lines[0] = ""  # so that the others keep their numbers
        head = next((line for line in lines if line.strip()), None)
        if head is None:
            raise DataError(f"{path}: empty")
        if places is None:
            some = lines[: FILES_LOOKED_FOR // 2]
            places = Places(path, [cell for line in some for one in SEPARATORS for cell in cells_of(line, one)])
        separator = _separator(places, lines)
        header = header_of(head, separator)
        first, behind = cells_of(head, separator), lines[lines.index(head) + 1 :]
        unknown_header: tuple[str, ...] = ()
        if header is None and len(behind) > 1 and _is_unknown_header(first, behind, separator, places):
            report_note(path, f"line 1 ({', '.join(first)}) is taken for a header; the values decide the columns")
            lines = [*[""] * (len(lines) - len(behind)), *behind]  # so that the others keep their numbers
            unknown_header = tuple(first)
        return cls(path, lines, separator, header, places, unknown_header=unknown_header)

    @cached_property
    def width(self) -> int:
        """The number of columns that most lines have."""
        return _width([self._cells(line) for line in _some(self.lines)])

    @cached_property
    def roles(self) -> Roles:
        """Which column is what in a table without a header, as its values say."""
        rows = [self._cells(line) for line in _some(self.lines)]
        rows = [row for row in rows if len(row) == self.width]
        return roles_of(rows, self.places, self.separator, self.unknown_header)

    def values(self, column: int) -> list[str]:
        """Those of a column of a table with a header, in lines from all over the list."""
        return [row[column] for line in _some(self.lines)[1:] if column < len(row := self._cells(line))]

    def _cells(self, line: str) -> list[str]:
        if self.columns is None or '"' in line:
            return cells_of(line, self.separator)
        return [cell.strip() for cell in line.split(self.separator, self.columns - 1)]

    @cached_property
    def counts_samples(self) -> bool:
        """Whether it is a manifest of fairseq: a folder, and lines of a file in it and its number of samples."""
        head, *others = (cells_of(line, self.separator) for line in _some(self.lines))
        return len(head) == 1 and bool(others) and all(len(row) == 2 and row[1].isdecimal() for row in others)

    @property
    def of_one_speaker(self) -> bool:
        """Whether it has no header, and a column of texts but none of speakers."""
        if self.header is not None or self.width < 2 or self.counts_samples:
            return False
        return self.roles.text is not None and self.roles.speaker is None

    def rows(self) -> Iterator[tuple[str, list[str] | Problem]]:
        """Place and cells of each line that holds something. Rows that a quote left open swallows are a Problem."""
        if self.separator not in ",;":
            for number, line in enumerate(self.lines, start=1):
                if line.strip():
                    yield f"{self.path}:{number}", cells_of(line, self.separator)
            return
        reader = csv.reader((f"{line}\n" for line in self.lines), delimiter=self.separator, strict=True)
        while True:
            first = reader.line_num + 1
            try:
                cells = next(reader, None)
            except csv.Error as error:
                yield f"{self.path}:{first}", self._unreadable(first, reader.line_num, str(error))
                continue
            if cells is None:
                return
            if any(map(self._is_row, self.lines[first : reader.line_num])):
                yield f"{self.path}:{first}", self._unreadable(first, reader.line_num, "other rows within a cell")
            elif any(cell.strip() for cell in cells):
                cells = [re.sub(r"\s*\n\s*", " ", cell.strip()) for cell in cells]
                whole = self.columns is None or not any(cells[self.columns :]) or first < reader.line_num
                yield f"{self.path}:{reader.line_num}", cells if whole else self._cells(self.lines[first - 1])

    def _unreadable(self, first: int, last: int, why: str) -> Problem:
        swallowed = f"lines {first} to {last}, {last - first + 1} rows, are not read; " if last > first else ""
        return malformed(f"{self.path}:{first}", f"{why}; {swallowed}is a quote left open? close it")

    def _is_row(self, line: str) -> bool:
        """Whether a line behind an opening quote looks like another row of the table."""
        cells = cells_of(line, self.separator)
        return len(cells) == self.width and any(map(self.places.has, cells))


def _is_unknown_header(first: Sequence[str], lines: Sequence[str], separator: str, places: RecordingNames) -> bool:
    """Whether a first line names no recording, where the others do, and has a word in each column that no other has."""
    rows = [cells for line in _some(lines) if len(cells := cells_of(line, separator)) == len(first)]
    if len(first) < 2 or not rows or not all(re.fullmatch(r"[^\W\d][\w .-]{,30}", cell) for cell in first):
        return False
    path = max(range(len(first)), key=lambda column: share_named(places, rows, column))
    others = [{row[column] for row in rows} for column in range(len(first))]
    unlike = all(cell not in values for cell, values in zip(first, others, strict=True))
    return share_named(places, rows, path) >= 0.5 and unlike and not any(map(places.has, first))


def _some(lines: Sequence[str]) -> list[str]:
    """At most _LOOKED_AT of the lines that hold something, from all over the list."""
    filled = [line for line in lines if line.strip()]
    return filled[:: -(-len(filled) // _LOOKED_AT) or 1]


def _width(rows: Sequence[Sequence[str]]) -> int:
    return Counter(map(len, rows)).most_common(1)[0][0] if rows else 0


def _separator(places: RecordingNames, lines: Sequence[str]) -> str:
    """What is between the columns: what makes cells that name recordings, or else a header; of several, what gives most
    lines the same number of columns."""
    some = _some(lines)
    facts = {}
    for order, separator in enumerate(("|", "\t", ";", ",")):
        rows = [cells_of(line, separator) for line in some]
        width = _width(rows)
        header = _header(some[0], separator)
        headed = len(header[1]) if header is not None else 0
        named = width > 1 and max(share_named(places, rows, column) for column in range(width)) >= 0.5
        consistent = sum(len(row) == width for row in rows) / max(1, len(rows))
        facts[separator] = (named, headed, width > 1, round(consistent, 2), -order)
    return max(facts, key=lambda separator: facts[separator])


@cache
def report_note(path: Path, note: str) -> None:
    """Warns, once, of how a list without a header is read."""
    logger.warning("%s: %s", printable(str(path)), printable(note))


def _with_header(
    table: Table, separator: str, columns: dict[str, int], names: tuple[str, ...]
) -> Iterator[Row | Problem]:
    path = table.path
    alone = None if "speaker_id" in columns else speaker_of(path)
    labels = {name for name in unknown_columns(names) if may_be_speakers(table.values(names.index(name)))}
    called = [name for at, name in enumerate(names) if at != columns.get("text")]
    report_unread(path, called, alone, "text" in columns, labels)
    report_texts(path, names)
    rows = table.rows()
    next(rows)
    for place, cells in rows:
        if isinstance(cells, Problem):
            yield cells
            continue
        cells = _filled(cells, len(names))
        if len(cells) > len(names):
            # A separator in the text: the cells that it makes would be dropped in silence.
            sign = SEPARATORS[separator]
            mend = f"put quotes around a text that holds a {sign}" if separator in ",;" else f"take the {sign} out"
            mend += "" if separator in ",;" else " of the text"
            yield malformed(place, f"{len(cells)} columns, the header has {len(names)}; {mend}")
            continue
        listed = {meaning: cells[at] or None for meaning, at in columns.items() if at < len(cells)}
        name = listed.get("audio_path") or listed.get("id")
        if name is None:
            yield malformed(place, "no audio_path")
            continue
        yield clip_of(listed, name, table.places.find(name), listed.get("speaker_id") or alone, place)


def _filled(cells: list[str], width: int) -> list[str]:
    """The cells without empty ones behind the last column."""
    return cells if any(cells[width:]) else cells[:width]


_MOST_WIDTHS = 0.9
"""Share of the lines that have as many columns as most; where it is smaller, commas may be those of the texts."""


def table_in(path: Path, places: RecordingNames | None = None) -> Table:
    """The table in a file; `places` as for `Table.read`. Commas or semicolons behind the column before the last are
    those of the texts, if nothing speaks for another reading. Raises DataError where lines differ, and no columns can
    be told."""
    table = Table.read(path, places)
    if table.header is not None:
        return _with_text_column(_with_whole_texts(table, *table.header), *table.header)
    if table.separator not in ",;":
        return table
    whole = _by_spaces(table)
    if whole is not None:
        return whole
    rows = [_filled(cells, table.width) for _, cells in table.rows() if not isinstance(cells, Problem)]
    widths = Counter(map(len, rows))
    most = _MOST_WIDTHS * len(rows)
    sign = SEPARATORS[table.separator]
    if widths[table.width] < most or max(widths, default=0) > table.width:
        for columns in range(2, table.width + 1):
            whole = replace(table, columns=columns)
            of_each = columns == 2 and len(rows) > 3 and share_named(table.places, rows, 0) >= 0.5
            if (of_each or widths[columns] > len(rows) - most) and _is_of_whole_texts(whole, rows):
                _report_whole_texts(whole)
                return whole
    plain = [row for row in rows if len(row) == table.width]
    if len(plain) < most and table.width != 2 and not _are_labels(plain, table.roles.speaker):
        mend = f"put quotes around texts that hold a {sign}, or write a header"
        raise DataError(f"{path}: its lines have {min(widths)} to {max(widths)} columns; {mend}")
    _require_certain_labels(table, plain)
    return table


def _by_spaces(table: Table) -> Table | None:
    """A table whose separators are followed by spaces in the texts alone, as in `a.wav,hello, there`; None for another.
    Raises DataError where what is before the first of them may be speakers."""
    begin = _texts_begin(table.lines, table.separator)
    if not 2 <= begin < table.width:
        return None
    whole = replace(table, columns=begin)
    if whole.roles.refusal is not None or whole.roles.path != 0 or whole.roles.text != begin - 1:
        return None
    rows = [row for line in _some(table.lines) if len(row := cells_of(line, table.separator)) > 2]
    if begin == 2:
        if _are_labels(rows, 1) or (len(rows) < 4 and all(like_a_name(row[1]) for row in rows)):
            raise _uncertain(table, 1)
        if table.width == 3 and _are_labels(rows, 2):
            raise _uncertain(table, 2)
    _report_whole_texts(whole)
    return whole


def _texts_begin(lines: Sequence[str], separator: str) -> int:
    """The number of columns of which only the last has spaces behind its separators, and has them behind all; 0 where
    lines differ, or hold quotes."""
    begins = Counter[int]()
    some = _some(lines)
    for line in some:
        spaces = [cell[:1].isspace() for cell in line.split(separator)[1:]]
        first = spaces.index(True) if True in spaces else len(spaces)
        begins[first + 1 if all(spaces[first:]) and first < len(spaces) and '"' not in line else 0] += 1
    begin, count = max(begins.items(), key=lambda one: one[1], default=(0, 0))
    return begin if count >= _MOST_WIDTHS * len(some) else 0


def _require_certain_labels(table: Table, rows: Sequence[Sequence[str]]) -> None:
    """Raises DataError where in lines of three columns without quotes nearly all speakers differ, and are words: they
    may be a part of texts with a separator in them."""
    speaker = table.roles.speaker
    if table.roles.note is None or speaker is None or table.width != 3 or any('"' in line for line in table.lines):
        return
    cells = [row[speaker] for row in rows]
    words = not any(character.isdigit() for cell in cells for character in cell)
    if words and len({*cells}) >= 0.9 * len(cells):
        raise _uncertain(table, speaker)


def _uncertain(table: Table, speaker: int) -> DataError:
    """What to write where a column may be the speakers or a part of the texts."""
    columns = ["audio_path", "text"]
    columns.insert(speaker, "speaker_id")
    example = next(cells_of(line, table.separator)[speaker] for line in table.lines if line.strip())
    sign, header = SEPARATORS[table.separator], table.separator.join(columns)
    return DataError(
        f"{table.path}: column {speaker + 1}, such as {printable(example)}, may be the speakers, or a part of texts "
        f"with {sign}s in them; write {header} as the first line, or audio_path{table.separator}text"
    )


def _report_whole_texts(table: Table) -> None:
    where = f"behind column {(table.columns or 0) - 1}"
    report_note(table.path, f"{SEPARATORS[table.separator]}s {where} are taken for those of the texts")


def _with_whole_texts(table: Table, separator: str, columns: dict[str, int], names: tuple[str, ...]) -> Table:
    """A table with a header: where texts are in the last column, and lines without quotes have more, what is behind it
    belongs to the texts, unless it is of labels."""
    last = len(names) - 1
    if separator not in ",;" or columns.get("text") != last or last == 0:
        return table
    longer = [
        cells
        for line in table.lines
        if line.count(separator) > last and '"' not in line and any((cells := cells_of(line, separator))[last + 1 :])
    ]
    begin = _texts_begin([line for line in table.lines if line.count(separator) > last], separator)
    by_spaces = 0 < begin <= len(names)
    if not longer or (not by_spaces and (_are_labels(longer, last) or _are_labels(longer, -1))):
        return table
    whole = replace(table, columns=len(names))
    _report_whole_texts(whole)
    return whole


def _with_text_column(table: Table, separator: str, columns: dict[str, int], names: tuple[str, ...]) -> Table:
    """A table with a header: where no column is called as texts are, the only one of sentences is the texts."""
    if "text" in columns:
        return table
    sentences = [name for name in unknown_columns(names) if are_texts(table.values(names.index(name)))]
    if len(sentences) != 1:
        return table
    report_note(table.path, f"texts are read from {sentences[0]}, the only column of sentences")
    return replace(table, header=(separator, columns | {"text": names.index(sentences[0])}, names))


def _is_of_whole_texts(table: Table, rows: Sequence[Sequence[str]]) -> bool:
    """Whether the last column is the texts, behind a path and speakers, or a path alone. `rows`: the lines with all of
    their cells."""
    roles, columns = table.roles, table.width
    if roles.refusal is not None or roles.path != 0 or roles.text != columns - 1 or columns != table.columns:
        return False
    if columns == 2:
        longer = [row for row in rows if len(row) > 2]
        return not _are_labels(longer, 1) and not _are_labels(longer, -1)
    return _are_labels(rows, roles.speaker)


def _are_labels(rows: Sequence[Sequence[str]], column: int | None) -> bool:
    """Whether the values of a column are like names, each in two lines in the mean, or mostly numbers."""
    cells = [row[column] for row in rows if column is not None and column < len(row)]
    names = 2 * len({*cells}) <= len(cells) and all(map(like_a_name, cells))
    return len(cells) > 3 and (names or 2 * sum(any(map(str.isalpha, cell)) for cell in cells) < len(cells))


def _without_header(table: Table) -> Iterator[Row | Problem]:
    roles, width = table.roles, table.width
    if width < 2:
        roles, width = Roles(0, 1, 2), 3
    elif roles.refusal is not None:
        raise DataError(f"{table.path}: {roles.refusal}")
    elif roles.speaker is None and width == 3:  # by data.format: such lists are recognised as ljspeech
        roles = Roles(0, 1, 2)
    elif roles.note is not None:
        report_note(table.path, roles.note)
    alone = speaker_of(table.path) if roles.speaker is None else None
    for place, cells in table.rows():
        if isinstance(cells, Problem):
            yield cells
            continue
        cells = _filled(cells, width)
        if len(cells) != width:
            expected = "expected a header with audio_path, speaker_id and text, or lines of id|speaker|text"
            if width != 3 or table.separator != "|":
                expected = f"most lines have {width}"
            yield malformed(place, f"{len(cells)} columns; {expected}")
            continue
        name = cells[roles.path]
        speaker = alone if roles.speaker is None else cells[roles.speaker] or None
        text = None if roles.text is None else cells[roles.text] or None
        yield checked_row(Row.clip(name, table.places.find(name), speaker, text, place))


def _of_fairseq(table: Table) -> Iterator[Row | Problem]:
    """The rows of a manifest of fairseq, with the texts of the lines of a file beside it: words (.wrd), or letters
    (.ltr)."""
    path, ((_, root), *rows) = table.path, table.rows()
    beside = next((file for end in (".wrd", ".ltr") if (file := path.with_suffix(end)).is_file()), None)
    texts = read_lines(beside) if beside is not None else []
    if beside is None:
        report_note(path, f"names and numbers of samples; no texts in {path.stem}.wrd or {path.stem}.ltr beside it")
    elif beside.suffix == ".ltr":
        texts = [line.replace(" ", "").replace("|", " ") for line in texts]
    texts = [line.strip() for line in texts]
    while len(texts) > len(rows) and not texts[-1]:  # others are of silence
        texts.pop()
    if beside is not None and len(texts) != len(rows):
        raise DataError(f"{beside}: {len(texts)} texts, {path.name} lists {len(rows)} recordings; give each a line")
    speakers = _speakers_of(path, [cells[0] for _, cells in rows if not isinstance(cells, Problem)])
    for number, (place, cells) in enumerate(rows):
        if isinstance(cells, Problem):
            yield cells
            continue
        within = Path(root[0], cells[0]) if isinstance(root, list) else Path(cells[0])
        file = within if within.is_file() else table.places.find(cells[0])
        text = (texts[number] or None) if texts else None
        yield checked_row(Row.clip(cells[0], file, speakers[cells[0]], text, place))


def _speakers_of(path: Path, names: Sequence[str]) -> dict[str, str]:
    """Name -> speaker of recordings that a list calls by paths alone: as their folders say (`Layout`), else the one of
    the list."""
    alone = speaker_of(path)
    layout = Layout(path.parent, [path.parent / name.lstrip("/") for name in names], None)
    said = (layout.speaker(inside) for inside in layout.inside)
    speakers = {
        name: printable(one) if official_split(one) is None else alone for name, one in zip(names, said, strict=True)
    }
    if others := sorted({*speakers.values()} - {alone}):
        report_note(path, f"the folders of its recordings name their speakers ({', '.join(others[:3])})")
    return speakers


# ---------------------- LJSpeech: wavs/ beside a metadata.csv of id|text|normalised text, one speaker


def is_ljspeech(path: Path) -> bool:
    """Tables without a header or a column of speakers: `id|text`, `id|text|normalised text` (the same twice),
    `path|text|phones`."""
    files = listed_in(path, TABLES)
    try:
        return bool(files) and all(table_in(file).of_one_speaker for file in files)
    except DataError:  # an empty list, of which the csv format says so
        return False


@corpus_format(is_ljspeech, priority=45)
def ljspeech_rows(path: Path) -> Iterator[Row | Problem]:
    """Rows of a corpus of one speaker, who is called after the folder: `id|text`, where an id may as well be the path
    of its recording (as in Piper's tables), or `id|text|normalised text`, of which the normalised one is taken. A third
    column that is empty or holds phones is not taken for a text."""
    yield from of_lists(_tables_in(path), _rows_of_one_speaker)


def _rows_of_one_speaker(path: Path) -> Iterator[Row | Problem]:
    table = table_in(path)
    roles, speaker = table.roles, speaker_of(path)
    if roles.note is not None:
        report_note(path, roles.note)
    widths = {2, 3} if table.width in (1, 3) else {table.width}
    for place, cells in table.rows():
        if isinstance(cells, Problem):
            yield cells
            continue
        cells = _filled(cells, max(widths))
        if table.width == 2 and len(cells) == 3 and are_alike(cells[1], cells[2]):
            report_note(path, "most lines have 2 columns; of those with a normalised text, too, the second is read")
        elif len(cells) not in widths:
            yield malformed(
                place, f"{len(cells)} columns, most lines have {table.width}; is there a separator in a text?"
            )
            continue
        # Where a row has a column less, it is the normalised text.
        chosen = table.of_one_speaker and roles.text is not None and roles.text < len(cells)
        text = cells[roles.text] if chosen and roles.text is not None else cells[-1]
        name = cells[roles.path] if table.of_one_speaker else cells[0]
        yield checked_row(Row.clip(name, table.places.find(name), speaker, text or None, place))


# ----------- AudioFolder: metadata.csv or metadata.jsonl with `file_name`, once or in several folders

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
                # Without a column of speakers it is one and the same in train/ and in test/, not in ann/ and in bob/.
                split = split_among(inside.split("/"))
                row = replace(row, id=f"{inside}/{row.id}", split=row.split or split)
                yield row.with_speaker(named) if row.speaker == alone and split else row
        except DataError as error:
            if len(files) == 1:
                raise
            yield Problem("", printable(str(file)), "unreadable", printable(str(error)))


def metadata_files(root: Path) -> list[Path]:
    """The metadata files with `file_name` in `root` or, if there is none, in its folders."""
    for depth in range(_DEPTH + 1):
        folders = [folder for folder in sorted(root.glob("*/" * depth)) if folder.is_dir()] if depth else [root]
        files = [file for folder in folders for name in _NAMES if _has_file_name(file := folder / name)]
        if files:
            return files
    return []


def _has_file_name(file: Path) -> bool:
    if not file.is_file():
        return False
    first = next(iter(read_lines(file)), "")
    if file.suffix == ".csv":
        return header_of(first) is not None and "file_name" in first.lower()
    return '"file_name"' in first
