"""Which format a corpus has, when nobody says."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from phonate.config.errors import DataError
from phonate.data.corpora._lists import OBJECTS, TABLES, list_in, read_lines
from phonate.data.corpora.audiofolder import metadata_files
from phonate.data.corpora.csv import header_of
from phonate.data.corpora.huggingface import shards
from phonate.data.corpora.lhotse import manifest_pairs
from phonate.data.corpora.librispeech import NAME as LIBRISPEECH
from phonate.data.manifests.rows import audio_files


def detect_format(path: Path) -> str:
    """The name of a format: folder, json, csv, ... Raises DataError saying what was found instead."""
    if path.is_dir():
        return _folder(path)
    if not path.is_file():
        raise DataError(f"{path}: no such file or folder; data.path is relative to {Path.cwd()}")
    name = path.name.lower()
    if name.endswith((".jsonl.gz", ".jsonl")):
        return _lines(path)
    if name.endswith(OBJECTS):
        return "json"
    if name.endswith(TABLES):
        return _table(path)
    if name.endswith((".parquet", ".arrow")):
        return "huggingface"
    raise DataError(f"{path}: a folder, .json, .jsonl, .jsonl.gz, .csv, .txt or .parquet is wanted")


def _folder(path: Path) -> str:
    if manifest_pairs(path):
        return "lhotse"
    listed = list_in(path)
    if listed is None and shards(path):
        return "huggingface"
    if metadata_files(path):
        return "audiofolder"
    if listed is not None:
        return "json" if listed.suffix.lower() in OBJECTS else _table(listed)
    if next(audio_files(path), None) is not None:
        return "librispeech" if all(LIBRISPEECH.fullmatch(file.stem) for file in audio_files(path)) else "folder"
    found = sorted(entry.name for entry in path.iterdir())[:5]
    shown = ", ".join(found) or "nothing"
    raise DataError(f"{path}: no audio files and no metadata.csv or metadata.json in it (found: {shown})")


def _lines(path: Path) -> str:
    """Cuts, recordings or supervisions of Lhotse, or objects that name a recording."""
    try:
        if path.name.lower().endswith(".gz"):
            with gzip.open(path, "rt", encoding="utf-8") as file:
                first = file.readline()
        else:
            first = next(iter(read_lines(path)), "")
        document = json.loads(first)
    except (OSError, EOFError, ValueError, RecursionError) as error:
        if isinstance(error, DataError):
            raise
        document = None  # whoever reads all of it says what is wrong
    if isinstance(document, dict) and ("sources" in document or "recording_id" in document):
        return "lhotse"
    manifest = isinstance(document, dict) and "recording" in document
    return "cutset" if manifest or path.name.lower().endswith(".gz") else "json"


def _table(path: Path) -> str:
    """LJSpeech's `id|text|normalised text` says the same twice; `id|speaker|text` does not."""
    lines = [line for line in read_lines(path) if line.strip()]
    if not lines or "|" not in lines[0] or header_of(lines[0]) is not None:
        return "csv"
    rows = [line.split("|") for line in lines]
    # By what most rows are: a row with a column too few is a mistake in it, not another format.
    threes = [row for row in rows if len(row) == 3]
    if len(threes) * 2 <= len(rows):
        return "ljspeech"
    repeated = sum(_first_word(row[1]) == _first_word(row[2]) for row in threes)
    return "ljspeech" if repeated * 2 >= len(threes) else "csv"


def _first_word(text: str) -> str:
    return next(iter(text.lower().split()), "")
