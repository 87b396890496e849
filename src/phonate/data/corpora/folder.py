"""A folder with a sub-folder for each speaker."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from phonate.data.manifests.rows import (
    Problem,
    Row,
    audio_files,
    composed,
    corpus_format,
    in_any_form,
    official_split,
    printable,
)

TEXTS = (".txt", ".lab")
_NOTES = re.compile(r"(readme|license|licence|copying|notice|changelog)\b.*", re.IGNORECASE)
_TIMED = re.compile(r"\s*\d+\s+\d+\s+\S+")


def is_folder(path: Path) -> bool:
    """A folder with recordings."""
    return path.is_dir() and next(audio_files(path, unreadable=lambda *_: None), None) is not None


@corpus_format(is_folder, priority=10)
def folder_rows(path: Path) -> Iterator[Row | Problem]:
    """Every audio file under `path`; the folder it lies in names its speaker, and a `.txt` or `.lab` beside it holds
    its text. Texts without a recording are problems in folders where recordings have texts."""
    folders: dict[Path, set[str]] = {}
    spoken: set[Path] = set()
    unreadable: list[Problem] = []

    def leave_out(folder: Path, error: OSError) -> None:
        place = printable(str(folder))
        unreadable.append(Problem("", place, "unreadable folder", error.strerror or str(error)))

    listed = list(audio_files(path, unreadable=leave_out))
    splits = _split_folders([file.relative_to(path) for file in listed])
    for file in listed:
        inside = file.relative_to(path)
        text = text_of(file)
        names = folders.setdefault(file.parent, set())
        # Of two files of one name, such as take.flac and take.wav, the second keeps its suffix in its id.
        id = printable((inside if file.stem in names else inside.with_suffix("")).as_posix())
        names.add(file.stem)
        if text is not None:
            spoken.add(file.parent)
        try:
            said = _read(text) if text is not None else None
        except OSError as error:
            yield Problem(id, printable(str(text)), "unreadable text", error.strerror or str(error))
            continue
        except UnicodeDecodeError:
            yield Problem(id, printable(str(text)), "unreadable text", "is not UTF-8; save it as UTF-8")
            continue
        yield Row.clip(
            id=id,
            path=file,
            speaker=printable((path.resolve() if inside.parent in {Path(), *splits} else inside.parent).name),
            text=said,
            place=printable(str(file)),
            split=_split(inside, splits),
        )
    yield from unreadable
    for folder in sorted(spoken):
        yield from _unspoken(path, folder, {composed(name) for name in folders[folder]})


def _split_folders(listed: list[Path]) -> set[Path]:
    """The folders with recordings of one speaker, where all of them are called after splits and one is for training
    (train/1.wav, test/2.wav); else such names are those of speakers."""
    direct = {inside.parent for inside in listed if len(inside.parts) == 2}
    named = {official_split(folder.name) for folder in direct}
    return direct if "train" in named and None not in named else set()


def _split(inside: Path, splits: set[Path]) -> str | None:
    """The official split of a recording: of train/1.wav where these folders are `splits`, and of train/ann/1.wav."""
    above_speakers = len(inside.parts) > 2 and official_split(inside.parts[0]) is not None
    return inside.parts[0] if above_speakers or inside.parent in splits else None


def text_of(file: Path) -> Path | None:
    """The file with the text of a recording: one of its name beside it, in whichever form of Unicode."""
    for end in TEXTS:
        if (beside := file.with_suffix(end)).is_file():
            return beside
    if file.stem.isascii():
        return None
    return next((found for end in TEXTS if (found := in_any_form(file.parent, f"{file.stem}{end}"))), None)


def text_beside(recording: Path) -> str | None:
    """What the file with the text of a recording holds; None where there is none. Raises OSError and
    UnicodeDecodeError."""
    file = text_of(recording)
    return None if file is None else _read(file)


def _read(file: Path) -> str | None:
    """The text of a recording in one line; None for a file of labels with times (as HTK writes them), which is none."""
    content = file.read_text(encoding="utf-8-sig").strip()
    lines = [line.strip() for line in content.split("\n") if line.strip()]
    if file.suffix.lower() == ".lab" and lines and all(_TIMED.match(line) for line in lines):
        return None
    return " ".join(lines)


def _unspoken(root: Path, folder: Path, recordings: set[str]) -> Iterator[Problem]:
    """A problem for each text beside which there is no recording."""
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        file = Path(entry.path)
        listed = file.suffix.lower() in TEXTS and not file.name.startswith(".") and not _NOTES.fullmatch(file.name)
        if listed and entry.is_file() and composed(file.stem) not in recordings:
            id = printable(file.relative_to(root).with_suffix("").as_posix())
            yield Problem(id, printable(str(file)), "missing file", "a text beside which there is no recording")
