"""JSON metadata: a list of samples, an object with such a list under "samples", or an object a line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from phonate.config.errors import DataError
from phonate.data.corpora._lists import (
    COLUMNS,
    OBJECTS,
    audio_name,
    clip_of,
    list_in,
    listed_in,
    read_lines,
    report_one_speaker,
    speaker_of,
    spelled,
)
from phonate.data.manifests.rows import Problem, Row, as_text, corpus_format, listed_file, malformed

NAMES = ("metadata.json", "samples.json", "dataset.json")


def is_json(path: Path) -> bool:
    """JSON and JSON lines, or a folder whose recordings these list."""
    return listed_in(path, OBJECTS) is not None


@corpus_format(is_json, priority=40)
def json_rows(path: Path) -> Iterator[Row | Problem]:
    """Rows of `{"audio_path", "speaker_id", "text"}`, or of what NeMo (`audio_filepath`) and others call these; paths
    are relative to the file. Where no sample has a speaker there is one, who is called after the folder."""
    if path.is_dir():
        path = list_in(path, OBJECTS) or path / NAMES[0]
    samples = _samples(path)
    keys = {key: None for _, sample in samples if isinstance(sample, dict) for key in sample}
    alone = None if keys.keys() & {*COLUMNS["speaker_id"]} else speaker_of(path)
    if alone is not None:
        report_one_speaker(path, tuple(keys), alone)
    for place, sample in samples:
        if isinstance(sample, Problem):
            yield sample
            continue
        name = audio_name(sample) if isinstance(sample, dict) else None
        if not isinstance(sample, dict) or not name:
            yield malformed(place, "no audio_path; each sample is an object with audio_path, speaker_id and text")
            continue
        yield _row(sample, name, path, alone, place)


def _row(sample: dict[str, Any], name: str, path: Path, alone: str | None, place: str) -> Row | Problem:
    listed = {meaning: sample[key] for meaning, key in spelled(list(sample)).items()}
    speaker = listed.get("speaker_id")
    return clip_of(listed, name, listed_file(path.parent, name), as_text(alone if speaker is None else speaker), place)


def _samples(path: Path) -> list[tuple[str, object]]:
    """Each sample with its place; a Problem in the place of one that is no JSON."""
    lines = read_lines(path)
    try:
        document = json.loads("\n".join(lines)) if path.suffix.lower() != ".jsonl" else None
    except (ValueError, RecursionError) as error:
        if not _is_object(next((line for line in lines if line.strip()), "")):
            raise DataError(f"{path}: not readable as JSON ({error})") from error
        document = None  # an object a line, as NeMo writes into files called .json
    if document is None and path.suffix.lower() != ".jsonl" and len(lines) < 2:
        raise DataError(f'{path}: neither a list of samples nor an object with a list under "samples"')
    if document is None:
        return [_read(line, f"{path}:{number}") for number, line in enumerate(lines, start=1) if line.strip()]
    samples = document.get("samples") if isinstance(document, dict) else document
    if samples is None and audio_name(document):
        samples = [document]
    if not isinstance(samples, list):
        raise DataError(f'{path}: neither a list of samples nor an object with a list under "samples"')
    return [(f"{path}: sample {number}", sample) for number, sample in enumerate(samples, start=1)]


def _read(line: str, place: str) -> tuple[str, object]:
    try:
        return place, json.loads(line)
    except (ValueError, RecursionError) as error:
        return place, malformed(place, f"not readable as JSON ({error})")


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False
