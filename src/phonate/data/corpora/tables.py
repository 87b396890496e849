"""Tables of recordings: `csv` with any columns, LJSpeech's layout, Hugging Face's AudioFolder."""

from __future__ import annotations

import csv
import logging
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Protocol

from phonate.config.errors import DataError
from phonate.data.corpora.lists import (
    SEPARATORS,
    TABLES,
    cells_of,
    clip_of,
    json_rows,
    listed_in,
    lists_in,
    of_lists,
    read_lines,
    report_no_text,
    report_one_speaker,
    speaker_of,
    spelled,
)
from phonate.data.corpora.places import Places
from phonate.data.corpora.rows import (
    Problem,
    Row,
    checked_row,
    corpus_format,
    malformed,
    printable,
    split_among,
)

logger = logging.getLogger("phonate")

# ------------------- csv: with a header, or lines such as id|speaker|text, told apart by their values

_LOOKED_AT = 1000
"""Lines by which separator and columns are decided, from all over the list."""
_FILES_LOOKED_FOR = 40
_ENDS = tuple('.,;:?!…。？！،؟।॥۔"”»')
_UNSPACED = re.compile("[\u0e00-\u0eff\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff]")
"""Letters of scripts without spaces between words."""
_OTHER_LETTERS = re.compile("[\u0370-\u1cff\u2e80-\ud7af\uf900-\ufaff\ufb1d-\ufefc]")
"""Letters of scripts other than Latin."""
_PHONES = re.compile(r"[ˈˌːɪʊɑʌɒɜɐɚɝɹɾʃʒɡʔʁ]|^\{.*\}$|\b[A-Z]{2}[012]\b")
"""Marks and letters of IPA that hardly any orthography has, and ARPAbet."""
_LANGUAGE = re.compile(r"[A-Za-z]{2,3}([-_][A-Za-z]{2,4})?|auto|all_[a-z]{2}")
_FRACTION = re.compile(r"\d+[.,]\d+")
_FILE = re.compile(r"\S+\.[A-Za-z]\w{1,4}")
_FEWEST_LETTERS = 2.5
"""Of a word, in the mean; phones with spaces between have fewer."""
_GENDER = re.compile(r"(fe)?male|[mfow]|other|unknown", re.IGNORECASE)
_INTEGER = re.compile(r"\d+")
_NUMBERS = re.compile(r"-?\d+([ .,]-?\d+)*")


def is_table(path: Path) -> bool:
    """Tables, or a folder whose recordings one lists."""
    return bool(listed_in(path, TABLES))


@corpus_format(is_table, priority=40)
def csv_rows(path: Path) -> Iterator[Row | Problem]:
    """Rows of a table: columns by their names in any order (comma, tab, semicolon or bar between them), or, without a
    header, by their values: `id|speaker|text`, `path|text|speaker`, `path|speaker|language|text`. Paths are relative to
    the file, or to wavs/ beside it. Columns of starts and ends, in seconds, make a row a part of its file. Without a
    column of speakers there is one, who is called after the folder.

    Raises DataError where the values leave open which column is which.
    """
    yield from of_lists(_tables_in(path), _rows_of_table)


def _tables_in(path: Path) -> tuple[Path, ...]:
    return (lists_in(path, TABLES) or (path / "metadata.csv",)) if path.is_dir() else (path,)


def _rows_of_table(path: Path) -> Iterator[Row | Problem]:
    table = Table.read(path)
    if table.header is None:
        yield from _without_header(table)
    else:
        yield from _with_header(table, *table.header)


def header_of(line: str, separators: Sequence[str] = tuple(SEPARATORS)) -> Header | None:
    """The header that a line is, by whichever of the separators makes most sense of it; None for any other line."""
    headers = [header for one in separators if (header := _header(line, one)) is not None]
    return max(headers, key=lambda one: (len(one[1]), line.count(one[0])), default=None)


Header = tuple[str, dict[str, int], tuple[str, ...]]
"""The separator, where the known columns are, and how all are called."""


def _header(line: str, separator: str) -> Header | None:
    cells = [re.sub(r"[\s-]+", "_", cell.lower()) for cell in cells_of(line, separator)]
    columns = {meaning: cells.index(name) for meaning, name in spelled(cells).items()}
    if "audio_path" in columns or {"id", "text"} <= columns.keys():
        return separator, columns, tuple(cells)
    return None


class Named(Protocol):
    """Recordings by the names of a list."""

    def has(self, name: str) -> bool:
        """Whether a recording has this name."""

    def find(self, name: str) -> Path:
        """The file that has this name, or would have."""


@dataclass(frozen=True)
class Roles:
    """Which columns of a table without a header are what, counted from 0."""

    path: int = 0
    speaker: int | None = None
    text: int | None = None
    note: str | None = None
    """What a person should know of this reading, where another is possible."""
    refusal: str | None = None
    """Why there is no reading."""


@dataclass(frozen=True)
class Table:
    """A list in lines of cells."""

    path: Path
    lines: list[str]
    separator: str
    header: Header | None
    places: Named

    @classmethod
    def read(cls, path: Path, places: Named | None = None) -> Table:
        """The table in a file, whose recordings are in `places`, or where lists have them. Raises DataError where it is
        empty or can't be read."""
        lines = read_lines(path)
        if lines and re.fullmatch("sep=.", lines[0].strip()):  # as Excel writes
            lines[0] = ""  # so that the others keep their numbers
        head = next((line for line in lines if line.strip()), None)
        if head is None:
            raise DataError(f"{path}: empty")
        if places is None:
            some = lines[: _FILES_LOOKED_FOR // 2]
            places = Places(path, [cell for line in some for one in SEPARATORS for cell in cells_of(line, one)])
        separator = _separator(places, lines)
        header = header_of(head, separator)
        first, behind = cells_of(head, separator), lines[lines.index(head) + 1 :]
        if header is None and len(behind) > 1 and _is_unknown_header(first, behind, separator, places):
            report_note(path, f"line 1 ({', '.join(first)}) is taken for a header; the values decide the columns")
            lines = [*[""] * (len(lines) - len(behind)), *behind]  # so that the others keep their numbers
        return cls(path, lines, separator, header, places)

    @cached_property
    def width(self) -> int:
        """The number of columns that most lines have."""
        return _width([cells_of(line, self.separator) for line in _some(self.lines)])

    @cached_property
    def roles(self) -> Roles:
        """Which column is what in a table without a header, as its values say."""
        rows = [cells_of(line, self.separator) for line in _some(self.lines)]
        return _roles([row for row in rows if len(row) == self.width], self.places, self.separator)

    @property
    def of_one_speaker(self) -> bool:
        """Whether it has no header, and a column of texts but none of speakers."""
        if self.header is not None or self.width < 2:
            return False
        return self.roles.text is not None and self.roles.speaker is None

    def rows(self) -> Iterator[tuple[str, list[str] | Problem]]:
        """Place and cells of each line that holds something. Rows that a quote left open swallows are a Problem."""
        if self.separator not in ",;":
            for number, line in enumerate(self.lines, start=1):
                if line.strip():
                    yield f"{self.path}:{number}", cells_of(line, self.separator)
            return
        reader = csv.reader(self.lines, delimiter=self.separator, strict=True)
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
                yield f"{self.path}:{reader.line_num}", [cell.strip() for cell in cells]

    def _unreadable(self, first: int, last: int, why: str) -> Problem:
        swallowed = f"lines {first} to {last}, {last - first + 1} rows, are not read; " if last > first else ""
        return malformed(f"{self.path}:{first}", f"{why}; {swallowed}is a quote left open? close it")

    def _is_row(self, line: str) -> bool:
        """Whether a line behind an opening quote looks like another row of the table."""
        cells = cells_of(line, self.separator)
        return len(cells) == self.width and any(map(self.places.has, cells))


def _is_unknown_header(first: Sequence[str], lines: Sequence[str], separator: str, places: Named) -> bool:
    """Whether a first line names no recording, where the others do, and has a word in each column that no other has."""
    rows = [cells for line in _some(lines) if len(cells := cells_of(line, separator)) == len(first)]
    if len(first) < 2 or not rows or not all(re.fullmatch(r"[^\W\d][\w .-]{,30}", cell) for cell in first):
        return False
    path = max(range(len(first)), key=lambda column: _named(places, rows, column))
    others = [{row[column] for row in rows} for column in range(len(first))]
    unlike = all(cell not in values for cell, values in zip(first, others, strict=True))
    return _named(places, rows, path) >= 0.5 and unlike and not any(map(places.has, first))


def _some(lines: Sequence[str]) -> list[str]:
    """At most _LOOKED_AT of the lines that hold something, from all over the list."""
    filled = [line for line in lines if line.strip()]
    return filled[:: -(-len(filled) // _LOOKED_AT) or 1]


def _width(rows: Sequence[Sequence[str]]) -> int:
    return Counter(map(len, rows)).most_common(1)[0][0] if rows else 0


def _separator(places: Named, lines: Sequence[str]) -> str:
    """What is between the columns: what makes cells that name recordings, or else a header; of several, what gives most
    lines the same number of columns."""
    some = _some(lines)
    facts = {}
    for order, separator in enumerate(("|", "\t", ";", ",")):
        rows = [cells_of(line, separator) for line in some]
        width = _width(rows)
        header = _header(some[0], separator)
        headed = len(header[1]) if header is not None else 0
        named = width > 1 and max(_named(places, rows, column) for column in range(width)) >= 0.5
        consistent = sum(len(row) == width for row in rows) / max(1, len(rows))
        facts[separator] = (named, headed, width > 1, round(consistent, 2), -order)
    return max(facts, key=lambda separator: facts[separator])


def _named(places: Named, rows: Sequence[Sequence[str]], column: int) -> float:
    """The share of rows of which a column names a recording that is there."""
    some = rows[:: -(-len(rows) // _FILES_LOOKED_FOR) or 1]
    return sum(column < len(row) and places.has(row[column]) for row in some) / max(1, len(some))


class _Column:
    """What the values of a column are like."""

    def __init__(self, at: int, cells: Sequence[str]) -> None:
        self.at = at
        self.cells = cells
        self.filled = [cell for cell in cells if cell]
        count = max(1, len(self.filled))
        self.distinct = len(set(self.filled)) / count
        """1 where each row has another value."""
        self.words = sum(map(_words, self.filled)) / count
        """In a cell."""
        self.numbers = bool(self.filled) and all(map(_NUMBERS.fullmatch, self.filled))
        self.numbered = sum(any(map(str.isdigit, cell)) and " " not in cell for cell in self.filled) > 0.9 * count
        """Whether its values are like p225 or spk-3."""
        self.short = sum(map(_like_a_name, self.filled)) >= 0.9 * count
        """Whether its values are no longer than names are."""
        self.varied = self.distinct >= 0.9
        """Whether nearly every row has a value of its own."""
        several = len(self.filled) > 1
        self.is_measured = several and (self.all_are(_FRACTION) or (self.varied and self.all_are(_FILE)))
        """Whether it holds durations, or names of files, one a row."""

    @property
    def letters(self) -> float:
        """Letters of a word, of scripts with spaces between words."""
        if self.holds(_UNSPACED):
            return float("inf")
        return sum(len(cell) for cell in self.filled) / max(1.0, self.words * len(self.filled)) - 1

    def holds(self, pattern: re.Pattern[str]) -> bool:
        """Whether at least half of the cells hold a match."""
        return bool(self.filled) and 2 * sum(bool(pattern.search(cell)) for cell in self.filled) >= len(self.filled)

    def all_are(self, pattern: re.Pattern[str]) -> bool:
        """Whether each cell is a match."""
        return bool(self.filled) and all(map(pattern.fullmatch, self.filled))


def _words(cell: str) -> float:
    unspaced = len(_UNSPACED.findall(cell))
    return len(_UNSPACED.sub(" ", cell).split()) + unspaced / 2


def _like_a_name(cell: str) -> bool:
    return len(cell) <= 32 and _words(cell) <= 3 and not cell.endswith(_ENDS)


def _roles(rows: Sequence[Sequence[str]], places: Named, separator: str) -> Roles:
    width = len(rows[0]) if rows else 0
    named = [_named(places, rows, column) for column in range(width)]
    path = 0 if not named or named[0] >= 0.5 or max(named) < 0.5 else named.index(max(named))
    columns = [_Column(at, [row[at] for row in rows]) for at in range(width) if at != path]
    filled = [one for one in columns if one.filled]
    phones = [one for one in filled if one.holds(_PHONES)]
    plain = [one for one in filled if one not in phones and not one.is_measured]
    if width > 3:
        plain = _without_side_columns(plain)
    plain = _without_other_forms(plain)
    if not plain:
        if len(phones) == 1:
            return _of_phones(path, None, phones[0])
        return _unclear(path, separator, phones or columns) if phones or width > 3 else Roles(path)
    if len(plain) == 1:
        one = plain[0]
        label = one.short and (one.numbers or (not one.varied and len(columns) > 1))
        if label and len(phones) == 1:
            return _of_phones(path, one, phones[0])
        if label and len(columns) > 1 and not phones:  # a column of texts that is empty
            return Roles(path, one.at, next((other.at for other in columns if other not in filled), None))
        return Roles(path, None, one.at)
    if len(plain) == 2:
        return _of_two(path, separator, *plain)
    labels, texts = [one for one in plain if one.short], [one for one in plain if not one.short]
    if len(labels) <= 1:
        own = [one for one in texts if one.holds(_OTHER_LETTERS)] or texts
        if own and all(_said_twice(one, own[-1]) for one in own[:-1]):
            roles = Roles(path, labels[0].at if labels else None, own[-1].at)
            foreign = next((one for one in texts if one not in own), None)
            return roles if foreign is None else _noted(roles, replace(roles, text=foreign.at), separator)
    return _unclear(path, separator, plain)


def _without_side_columns(columns: list[_Column]) -> list[_Column]:
    """Without the language and the series of numbers that lists of more than three columns have."""
    short = [one for one in columns if one.short and not one.all_are(_LANGUAGE)]
    languages = [one for one in columns if one.all_are(_LANGUAGE)]
    if languages and (short or len(languages) > 1):
        rarest = min(languages, key=lambda one: (len(set(one.filled)), -one.at))
        columns = [one for one in columns if one is not rarest]
    columns = [one for one in columns if not (one.numbers and one.words > 1.5) and not one.all_are(_GENDER)]
    words = [one for one in columns if not one.short and one.letters >= _FEWEST_LETTERS]
    columns = [one for one in columns if one.short or one in words or not words]
    return [one for one in columns if not (words and one.all_are(_INTEGER) and _numbers_texts(one, words[0]))]


def _numbers_texts(numbers: _Column, texts: _Column) -> bool:
    """Whether each of some numbers is of one text: such numbers count texts or samples, and call no speaker."""
    pairs = set(zip(numbers.cells, texts.cells, strict=True))
    return len(numbers.cells) > 1 and len(pairs) == len(set(numbers.cells))


def _without_other_forms(columns: list[_Column]) -> list[_Column]:
    """Without texts that are those of another column in letters taken apart (NFD)."""
    texts = [one for one in columns if not one.short]
    apart = [one for one in texts if any(unicodedata.normalize("NFC", cell) != cell for cell in one.filled)]
    whole = [one for one in texts if one not in apart]
    return [one for one in columns if not (whole and one in apart and any(_said_twice(one, other) for other in whole))]


def _of_two(path: int, separator: str, one: _Column, other: _Column) -> Roles:
    """The roles of two columns beside the paths."""
    if _said_twice(one, other):
        return Roles(path, None, other.at)
    if one.short != other.short:
        label, text = (one, other) if one.short else (other, one)
        speakers, alone = Roles(path, label.at, text.at), Roles(path, None, text.at)
        if len(one.cells) < 4 or label.distinct < 1.0:
            return speakers
        # No value returns: so many words are no name, others may be one.
        if label.words > 2.0:
            return _noted(alone, speakers, separator)
        return _noted(speakers, alone, separator)
    if not one.short:
        own = [column for column in (one, other) if column.holds(_OTHER_LETTERS)]
        if len(own) == 1:  # beside a transcription in Latin letters, or a translation
            latin = other if own[0] is one else one
            return _noted(Roles(path, None, own[0].at), Roles(path, None, latin.at), separator)
        if min(one.distinct, other.distinct) <= 1 / 3 and max(one.distinct, other.distinct) > 0.5:
            few, many = sorted((one, other), key=lambda column: column.distinct)
            return Roles(path, few.at, many.at)
        return _unclear(path, separator, (one, other))
    several = len(one.cells) >= 4
    repeated = several and one.varied and other.distinct <= 0.5
    swapped = Roles(path, other.at, one.at)
    usual = Roles(path, one.at, other.at)
    if other.numbers and not one.numbers and (one.words > 1.5 or (repeated and not one.numbered)):
        return swapped
    if (repeated and not one.numbered) or (one.varied and one.words >= 2.5 and other.words <= 1.5):
        return _noted(swapped, usual, separator)
    unlikely = several and one.varied and (one.numbers or not one.numbered)
    return _noted(usual, swapped, separator) if unlikely else usual


def _said_twice(one: _Column, other: _Column) -> bool:
    """Whether two columns say the same, such as a text as written and normalised: most rows share words."""
    if one.distinct < 0.5 * other.distinct:
        return False
    pairs = list(zip(one.cells, other.cells, strict=True))
    return 2 * sum(_alike(*pair) for pair in pairs) >= len(pairs)


def _alike(one: str, other: str) -> bool:
    first, second = _spoken(one), _spoken(other)
    return bool(first and second) and len(first & second) >= 0.3 * min(len(first), len(second))


def _spoken(cell: str) -> set[str]:
    """The words of a cell, or its letters where there are no spaces between words."""
    spaced = _UNSPACED.sub(r" \g<0> ", unicodedata.normalize("NFKC", cell).casefold())
    return {word for part in spaced.split() if (word := "".join(filter(str.isalnum, part)))}


def _named_columns(roles: Roles, separator: str) -> str:
    """A header for the roles."""
    names = {roles.path: "audio_path", roles.speaker: "speaker_id", roles.text: "text"}
    last = max(column for column in names if column is not None)
    return separator.join(names.get(column, f"column{column + 1}") for column in range(last + 1))


def _noted(roles: Roles, other: Roles, separator: str) -> Roles:
    read, alternative = _named_columns(roles, separator), _named_columns(other, separator)
    note = f"read as {read}; if it is {alternative}, add that as the first line"
    return Roles(roles.path, roles.speaker, roles.text, note)


def _of_phones(path: int, speaker: _Column | None, phones: _Column) -> Roles:
    example = next(cell for cell in phones.filled if cell)[:40]
    note = f"its texts are phones ({printable(example)}), which are read like letters; list texts as they are written"
    return Roles(path, None if speaker is None else speaker.at, phones.at, note)


def _unclear(path: int, separator: str, columns: Sequence[_Column]) -> Roles:
    numbers = " and ".join(str(one.at + 1) for one in columns)
    first = Roles(path, None, columns[0].at)
    second = Roles(path, None, columns[-1].at)
    return Roles(
        path,
        refusal=f"columns {numbers} may each be the texts or the speakers; name the columns in a first line, such as "
        f"{_named_columns(first, separator)} or {_named_columns(second, separator)}, and speakers speaker_id",
    )


@cache
def report_note(path: Path, note: str) -> None:
    """Warns, once, of how a list without a header is read."""
    logger.warning("%s: %s", printable(str(path)), printable(note))


def _with_header(
    table: Table, separator: str, columns: dict[str, int], names: tuple[str, ...]
) -> Iterator[Row | Problem]:
    path = table.path
    alone = None if "speaker_id" in columns else speaker_of(path)
    if alone is not None:
        report_one_speaker(path, names, alone)
    if "text" not in columns:
        report_no_text(path, names)
    rows = table.rows()
    next(rows)
    for place, cells in rows:
        if isinstance(cells, Problem):
            yield cells
            continue
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


# ---------------------- LJSpeech: wavs/ beside a metadata.csv of id|text|normalised text, one speaker


def is_ljspeech(path: Path) -> bool:
    """Tables without a header or a column of speakers: `id|text`, `id|text|normalised text` (the same twice),
    `path|text|phones`."""
    files = listed_in(path, TABLES)
    try:
        return bool(files) and all(Table.read(file).of_one_speaker for file in files)
    except DataError:  # an empty list, of which the csv format says so
        return False


@corpus_format(is_ljspeech, priority=45)
def ljspeech_rows(path: Path) -> Iterator[Row | Problem]:
    """Rows of a corpus of one speaker, who is called after the folder: `id|text`, where an id may as well be the path
    of its recording (as in Piper's tables), or `id|text|normalised text`, of which the normalised one is taken. A third
    column that is empty or holds phones is not taken for a text."""
    yield from of_lists(_tables_in(path), _rows_of_one_speaker)


def _rows_of_one_speaker(path: Path) -> Iterator[Row | Problem]:
    table = Table.read(path)
    roles, speaker = table.roles, speaker_of(path)
    if roles.note is not None:
        report_note(path, roles.note)
    widths = {2, 3} if table.width <= 3 else {table.width}
    for place, cells in table.rows():
        if isinstance(cells, Problem):
            yield cells
            continue
        if len(cells) not in widths:
            yield malformed(place, f"{len(cells)} columns; LJSpeech has id|text or id|text|normalised text")
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
