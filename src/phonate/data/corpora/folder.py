"""A folder with a sub-folder for each speaker."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from phonate.data.manifests.rows import Problem, Row, audio_files, official_split, printable

TEXTS = (".txt", ".lab")
_NOTES = re.compile(r"(readme|license|licence|copying|notice|changelog)\b.*", re.IGNORECASE)
_TIMED = re.compile(r"\s*\d+\s+\d+\s+\S+")


PRIORITY = 10


def recognises(path: Path) -> bool:
    """A folder with recordings."""
    return path.is_dir() and next(audio_files(path, unreadable=lambda *_: None), None) is not None


def folder_rows(path: Path) -> Iterator[Row | Problem]:
    """Every audio file under `path`; the folder it lies in names its speaker, and a `.txt` or `.lab` beside it holds
    its text. Texts without a recording are problems in folders where recordings have texts."""
    folders: dict[Path, set[str]] = {}
    spoken: set[Path] = set()
    unreadable: list[Problem] = []

    def leave_out(folder: Path, error: OSError) -> None:
        place = printable(str(folder))
        unreadable.append(Problem("", place, "unreadable folder", error.strerror or str(error)))

    for file in audio_files(path, unreadable=leave_out):
        inside = file.relative_to(path)
        text = next((beside for end in TEXTS if (beside := file.with_suffix(end)).is_file()), None)
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
            speaker=printable(inside.parent.name) if len(inside.parts) > 1 else printable(path.resolve().name),
            text=said,
            place=printable(str(file)),
            # above the folders of speakers: train/ann/1.wav
            split=inside.parts[0] if len(inside.parts) > 2 and official_split(inside.parts[0]) else None,
        )
    yield from unreadable
    for folder in sorted(spoken):
        yield from _unspoken(path, folder, folders[folder])


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
        if listed and entry.is_file() and file.stem not in recordings:
            id = printable(file.relative_to(root).with_suffix("").as_posix())
            yield Problem(id, printable(str(file)), "missing file", "a text beside which there is no recording")
