"""Which format a corpus has, when nobody says."""

from __future__ import annotations

import json
from pathlib import Path

from phonate.config.errors import DataError
from phonate.data.corpora.csv import read_lines
from phonate.data.corpora.json import NAMES
from phonate.data.corpora.librispeech import NAME as LIBRISPEECH
from phonate.data.rows import audio_files


def detect_format(path: Path) -> str:
    """folder, librispeech, json, csv, ljspeech or cutset. Raises DataError saying what was found instead."""
    if path.is_dir():
        if any((path / name).is_file() for name in NAMES):
            return "json"
        if (path / "metadata.csv").is_file():
            return _table(path / "metadata.csv")
        if next(audio_files(path), None) is not None:
            return "librispeech" if all(LIBRISPEECH.fullmatch(file.stem) for file in audio_files(path)) else "folder"
        found = sorted(entry.name for entry in path.iterdir())[:5]
        shown = ", ".join(found) or "nothing"
        raise DataError(f"{path}: no audio files and no metadata.csv or metadata.json in it (found: {shown})")
    if not path.is_file():
        raise DataError(f"{path}: no such file or folder; data.path is relative to {Path.cwd()}")
    name = path.name.lower()
    if name.endswith((".jsonl.gz", ".jsonl")):
        return "cutset" if name.endswith(".gz") or _is_manifest(path) else "json"
    if name.endswith(".json"):
        return "json"
    if name.endswith((".csv", ".tsv", ".txt")):
        return _table(path)
    raise DataError(f"{path}: a folder, .json, .jsonl, .jsonl.gz or .csv is wanted")


def _is_manifest(path: Path) -> bool:
    first = next(iter(read_lines(path)), "")
    try:
        document = json.loads(first)
    except ValueError:
        return False
    return isinstance(document, dict) and "recording" in document


def _table(path: Path) -> str:
    """LJSpeech's `id|text|normalised text` says the same twice; `id|speaker|text` does not."""
    lines = [line for line in read_lines(path) if line.strip()]
    if not lines or "|" not in lines[0]:
        return "csv"
    rows = [line.split("|") for line in lines]
    header = {cell.strip().lower() for cell in rows[0]}
    if header & {"audio_path", "speaker_id", "path", "speaker"}:
        return "csv"
    # By what most rows are: a row with a column too few is a mistake in it, not another format.
    threes = [row for row in rows if len(row) == 3]
    if len(threes) * 2 <= len(rows):
        return "ljspeech"
    repeated = sum(_first_word(row[1]) == _first_word(row[2]) for row in threes)
    return "ljspeech" if repeated * 2 >= len(threes) else "csv"


def _first_word(text: str) -> str:
    return next(iter(text.lower().split()), "")
