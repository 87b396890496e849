"""A folder with a sub-folder for each speaker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from phonate.data.rows import Row, audio_files, printable


def folder_rows(path: Path) -> Iterator[Row]:
    """Every audio file under `path`; the folder it lies in names its speaker, and a `.txt` beside it its text."""
    for file in audio_files(path):
        inside = file.relative_to(path)
        speaker = printable(inside.parent.name) if len(inside.parts) > 1 else printable(path.resolve().name)
        text = file.with_suffix(".txt")
        yield Row(
            id=printable(inside.with_suffix("").as_posix()),
            path=file,
            speaker=speaker,
            text=text.read_text(encoding="utf-8", errors="replace").strip() if text.is_file() else None,
            place=printable(str(file)),
        )
