"""The layout of LJSpeech: wavs/ beside a metadata.csv of `id|text|normalised text`, one speaker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from phonate.data.corpora._lists import TABLES, list_in, read_lines, speaker_of
from phonate.data.manifests.rows import Problem, Row, listed_file, malformed


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
        yield Row.clip(cells[0], listed_file(path.parent, cells[0]), speaker, cells[-1] or None, f"{path}:{number}")
