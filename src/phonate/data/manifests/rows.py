"""What the formats of corpora have in common: rows, and files as they are found on disks."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from phonate.audio.decoding import AUDIO_SUFFIXES
from phonate.audio.quality import AudioQuality
from phonate.config.errors import DataError


@dataclass(frozen=True)
class Row:
    """One recording as its corpus lists it, not looked at yet."""

    id: str
    path: Path
    speaker: str | None
    text: str | None
    place: str
    """Where it is listed, such as `metadata.csv:12`."""


@dataclass(frozen=True)
class Problem:
    """What is wrong with a row. A format yields it in the place of a row that it can't read."""

    id: str
    place: str
    reason: str
    """One of a few words, to count by."""
    detail: str


@dataclass(frozen=True)
class Checked:
    """A row that can be used."""

    row: Row
    seconds: float
    sample_rate: int
    channels: int
    content: bytes
    """A digest of its samples."""
    quality: AudioQuality


def malformed(place: str, detail: str) -> Problem:
    """A row that its format can't read."""
    return Problem("", place, "malformed row", detail)


def spelled_row(id: object, path: Path, speaker: object, text: object, place: str) -> Row | Problem:
    """The row of a list in JSON, whose escapes can spell what no file in UTF-8 can hold: names with other bytes in
    them, which files may have, and halves of characters, which nothing may."""
    place = printable(place)
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        return malformed(place, f"the path {printable(str(path))} is no file's name; write it in UTF-8")
    said = {"speaker": _as_text(speaker), "text": _as_text(text)}
    for name, value in said.items():
        if value is not None and printable(value) != value:
            return malformed(place, f"the {name} holds half a character (an escape such as \\ud83d); write it in UTF-8")
    return Row(printable(str(id)), path, said["speaker"], said["text"], place)


def _as_text(value: object) -> str | None:
    """Numbers as they are written; nothing for null and the empty string."""
    return None if value is None or value == "" else str(value)


def audio_files(
    folder: Path,
    suffixes: Collection[str] = AUDIO_SUFFIXES,
    unreadable: Callable[[Path, OSError], None] | None = None,
) -> Iterator[Path]:
    """Audio files under `folder` in a fixed order; hidden ones are left out, links are followed once.

    Folders that can't be read are handed to `unreadable` and left out; without it they raise DataError. Links that
    lead nowhere are listed as files, so that whoever opens them says so.
    """
    seen: set[tuple[int, int]] = set()

    def entries(current: Path) -> Iterator[os.DirEntry[str]]:
        try:
            status = current.stat()
            if (status.st_dev, status.st_ino) in seen:
                return iter(())
            seen.add((status.st_dev, status.st_ino))
            with os.scandir(current) as found:
                return iter(sorted(found, key=lambda entry: entry.name))
        except OSError as error:
            if unreadable is None:
                raise DataError(f"{printable(str(current))}: {error.strerror}") from error
            unreadable(current, error)
            return iter(())

    below = [entries(folder)]  # a stack, for folders may be deeper than Python's
    while below:
        entry = next(below[-1], None)
        if entry is None:
            below.pop()
        elif entry.name.startswith("."):
            continue
        elif _is_folder(entry):
            below.append(entries(Path(entry.path)))
        elif os.path.splitext(entry.name)[1].lower() in suffixes:
            yield Path(entry.path)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link in a circle
        return False


def printable(name: str) -> str:
    """`name` with bytes that are no UTF-8 written as escapes."""
    return name.encode("utf-8", "backslashreplace").decode()


def one_line(text: str) -> str:
    """`text`, with line feeds and other characters that steer a terminal, which names may hold, as escapes, too."""
    escaped = re.sub(r"[\x00-\x1f\x7f-\x9f]", lambda found: found[0].encode("unicode_escape").decode(), text)
    return printable(escaped)


def listed_file(root: Path, name: str) -> Path:
    """The file that a list calls `name`: as it stands, under wavs/, or with a suffix it left out."""
    folders = [root, root / "wavs", root / "wav", root / "audio", root / "clips"]
    for folder in folders:
        if _is_file(folder / name):
            return folder / name
    for folder in folders:
        for suffix in sorted(AUDIO_SUFFIXES):
            for spelled in (suffix, suffix.upper()):
                if _is_file(folder / f"{name}{spelled}"):
                    return folder / f"{name}{spelled}"
    return root / name


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that is too long, say, as when a list has its columns mixed up
        return False
