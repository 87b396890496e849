"""What the scripts that prepare a study's corpora have in common: their arguments, and the files that they write."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Rows = list[dict[str, Any]]


def prepare(description: str | None, study: Callable[[Path], dict[str, Rows]]) -> tuple[dict[str, Rows], Path]:
    """Write each corpus of `study(RECORDINGS)` to FOLDER, as its name and .json. Returns the corpora and FOLDER."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", type=Path)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    corpora = study(arguments.recordings.resolve())
    for name, rows in corpora.items():
        write(arguments.folder, name, rows)
    return corpora, arguments.folder


def write(folder: Path, name: str, rows: Rows) -> None:
    """Write a corpus to `folder`."""
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"samples": rows}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    speakers = len({row["speaker_id"] for row in rows})
    print(f"{path}: {len(rows)} clips of {speakers} speakers")
