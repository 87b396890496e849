"""The layout of LibriSpeech: `SPEAKER/CHAPTER/SPEAKER-CHAPTER-UTTERANCE.flac` with `SPEAKER-CHAPTER.trans.txt`."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path

from phonate.config.errors import DataError
from phonate.data.corpora._lists import read_lines
from phonate.data.corpora.folder import text_beside
from phonate.data.manifests.rows import (
    Problem,
    Row,
    audio_files,
    checked_row,
    corpus_format,
    malformed,
    official_split,
    printable,
)

logger = logging.getLogger("phonate")

NAME = re.compile(r"(\d+)-(\d+)-\d+")
_NUMBERED = re.compile(r"\d+-\d+-0\d{3}")
"""Names whose last part is like an utterance of LibriSpeech, which no day or year is."""
_DATE = re.compile(r"(19|20)\d\d-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])")
_PART = re.compile(r"(train|dev|test)-(clean|other)(-\d+)?")


def is_librispeech(path: Path) -> bool:
    """A folder whose recordings all have such names, where transcripts or folders say that they are no dates or takes:
    `SPEAKER-CHAPTER.trans.txt` beside one, or, for all, a folder of the speaker or a part such as train-clean-100."""
    if not path.is_dir():
        return False
    files = list(audio_files(path, unreadable=lambda *_: None))
    names = [NAME.fullmatch(file.stem) for file in files]
    if not files or not all(names):
        return False
    pairs = [(file, name) for file, name in zip(files, names, strict=True) if name is not None]
    if any(_transcript(file, name).is_file() for file, name in pairs):
        return True
    if all(_DATE.fullmatch(file.stem) for file in files):  # folders such as 2024/01 are then years and months
        return False
    if all(_in_its_folder(path, file, name) for file, name in pairs):
        return True
    if all(_NUMBERED.fullmatch(file.stem) for file in files):
        report_likeness(path)
    return False


@cache
def report_likeness(path: Path) -> None:
    """Says, once, that names may be those of LibriSpeech."""
    logger.warning(
        "%s: folders name the speakers; if the files are SPEAKER-CHAPTER-UTTERANCE, set data.format=librispeech",
        printable(str(path)),
    )


def _in_its_folder(root: Path, file: Path, name: re.Match[str]) -> bool:
    """Whether the folders above a recording, `root` among them, are its speaker's (and chapter's), or a part of
    LibriSpeech."""
    above = [*reversed(file.relative_to(root).parts[:-1]), *reversed(root.resolve().parts)][:3]
    return any(folder == name[1] for folder in above[:2]) or any(map(_PART.fullmatch, above))


def _transcript(file: Path, name: re.Match[str]) -> Path:
    return file.with_name(f"{name[1]}-{name[2]}.trans.txt")


@corpus_format(is_librispeech, priority=20)
def librispeech_rows(path: Path) -> Iterator[Row | Problem]:
    """Every audio file under `path`: its name begins with its speaker and chapter, and `SPEAKER-CHAPTER.trans.txt`, or
    a `.txt` of its own, beside it may hold its text."""
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
        try:
            text = transcripts(_transcript(file, named)).get(file.stem) or text_beside(file)
        except (DataError, OSError, UnicodeDecodeError) as error:
            yield Problem(file.stem, printable(str(file)), "unreadable text", printable(str(error)))
            continue
        yield checked_row(Row.clip(file.stem, file, named[1], text, str(file), _subset(path, file)))
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
