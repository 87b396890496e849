"""The layout of LJSpeech: wavs/ beside a metadata.csv of `id|text|normalised text`, one speaker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from phonate.data.corpora._lists import TABLES, list_in, listed_in, read_lines, speaker_of
from phonate.data.corpora.csv import header_of
from phonate.data.manifests.rows import Problem, Row, checked_row, listed_file, malformed

PRIORITY = 45


def recognises(path: Path) -> bool:
    """Bars between two columns, or three of which the last two begin alike: `id|text|normalised text` says the same
    twice, `id|speaker|text` does not."""
    listed = listed_in(path, TABLES)
    lines = [line for line in read_lines(listed) if line.strip()] if listed is not None else []
    if not lines or "|" not in lines[0] or header_of(lines[0]) is not None:
        return False
    rows = [line.split("|") for line in lines]
    # By what most rows are: a row with a column too few is a mistake in it, not another format.
    threes = [row for row in rows if len(row) == 3]
    if len(threes) * 2 <= len(rows):
        return True
    return sum(_first_word(row[1]) == _first_word(row[2]) for row in threes) * 2 >= len(threes)


def _first_word(text: str) -> str:
    return next(iter(text.lower().split()), "")


def ljspeech_rows(path: Path) -> Iterator[Row | Problem]:
    """Rows of a corpus of one speaker, who is called after the folder: `id|text`, where an id may as well be the path
    of its recording (as in Piper's tables), or `id|text|normalised text`, of which the normalised one is taken."""
    if path.is_dir():
        path = list_in(path, TABLES) or path / "metadata.csv"
    speaker = speaker_of(path)
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) not in {2, 3}:
            detail = f"{len(cells)} columns; LJSpeech has id|text or id|text|normalised text"
            yield malformed(f"{path}:{number}", detail)
            continue
        file = listed_file(path.parent, cells[0])
        yield checked_row(Row.clip(cells[0], file, speaker, cells[-1] or None, f"{path}:{number}"))
