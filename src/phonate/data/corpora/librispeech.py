"""The names of LibriSpeech: `SPEAKER-CHAPTER-UTTERANCE.flac`, in any folders."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from phonate.config.errors import DataError
from phonate.data.corpora._lists import read_lines
from phonate.data.manifests.rows import Problem, Row, audio_files, checked_row, malformed, official_split, printable

NAME = re.compile(r"(\d+)-(\d+)-\d+")


PRIORITY = 20


def recognises(path: Path) -> bool:
    """A folder whose recordings all have such names."""
    if not path.is_dir():
        return False
    names = [NAME.fullmatch(file.stem) for file in audio_files(path, unreadable=lambda *_: None)]
    return bool(names) and all(names)


def librispeech_rows(path: Path) -> Iterator[Row | Problem]:
    """Every audio file under `path`: its name begins with its speaker and chapter, and `SPEAKER-CHAPTER.trans.txt`
    beside it may hold its text."""
    transcripts = lru_cache(maxsize=1)(_transcripts)  # files come folder by folder, and sorted
    unreadable: list[Problem] = []

    def leave_out(folder: Path, error: OSError) -> None:
        place = printable(str(folder))
        unreadable.append(Problem("", place, "unreadable folder", error.strerror or str(error)))

    for file in audio_files(path, unreadable=leave_out):
        named = NAME.fullmatch(file.stem)
        if named is None:
            yield malformed(printable(str(file)), "not called SPEAKER-CHAPTER-UTTERANCE; is `format: folder` meant?")
            continue
        speaker, chapter = named.groups()
        try:
            text = transcripts(file.with_name(f"{speaker}-{chapter}.trans.txt")).get(file.stem)
        except DataError as error:
            yield Problem(file.stem, printable(str(file)), "unreadable text", printable(str(error)))
            continue
        yield checked_row(Row.clip(file.stem, file, speaker, text, str(file), _subset(path, file)))
    yield from unreadable


def _subset(root: Path, file: Path) -> str | None:
    """The folder between `root` and the file that names an official split, such as dev-clean."""
    return next((part for part in file.relative_to(root).parts[:-1] if official_split(part)), None)


def _transcripts(path: Path) -> dict[str, str]:
    """Utterance -> text, of lines `UTTERANCE TEXT`."""
    if not path.is_file():
        return {}
    fields = (line.partition(" ") for line in read_lines(path))
    return {name: text.strip() for name, _, text in fields if text.strip()}
