"""The layout of LJSpeech: wavs/ beside a metadata.csv of `id|text|normalised text`, one speaker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from phonate.config.errors import DataError
from phonate.data.corpora._lists import TABLES, list_in, listed_in, speaker_of
from phonate.data.corpora.csv import Table, report_note
from phonate.data.manifests.rows import Problem, Row, checked_row, corpus_format, listed_file, malformed


def is_ljspeech(path: Path) -> bool:
    """Tables without a header or a column of speakers: `id|text`, `id|text|normalised text` (the same twice),
    `path|text|phones`."""
    file = listed_in(path, TABLES)
    try:
        return file is not None and Table.read(file).of_one_speaker
    except DataError:  # an empty list, of which the csv format says so
        return False


@corpus_format(is_ljspeech, priority=45)
def ljspeech_rows(path: Path) -> Iterator[Row | Problem]:
    """Rows of a corpus of one speaker, who is called after the folder: `id|text`, where an id may as well be the path
    of its recording (as in Piper's tables), or `id|text|normalised text`, of which the normalised one is taken. A third
    column that is empty or holds phones is not taken for a text."""
    if path.is_dir():
        path = list_in(path, TABLES) or path / "metadata.csv"
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
        yield checked_row(Row.clip(name, listed_file(path.parent, name), speaker, text or None, place))
