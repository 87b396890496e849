"""JSON metadata: a list of samples, or an object with such a list under "samples"."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from phonate.config.errors import DataError
from phonate.data.rows import Problem, Row, listed_file, malformed, spelled_row

NAMES = ("metadata.json", "samples.json", "dataset.json")


def json_rows(path: Path) -> Iterator[Row | Problem]:
    """Rows of `{"audio_path", "speaker_id", "text"}`; paths are relative to the file. JSON lines work too."""
    if path.is_dir():
        path = next((path / name for name in NAMES if (path / name).is_file()), path / NAMES[0])
    for number, sample in enumerate(_samples(path), start=1):
        place = f"{path}: sample {number}"
        if not isinstance(sample, dict) or not sample.get("audio_path"):
            yield malformed(place, "no audio_path; each sample is an object with audio_path, speaker_id and text")
            continue
        name = str(sample["audio_path"])
        file = listed_file(path.parent, name)
        id = sample.get("id") or Path(name).with_suffix("").as_posix()
        yield spelled_row(id, file, sample.get("speaker_id"), sample.get("text"), place)


def _samples(path: Path) -> list[object]:
    try:
        content = path.read_text(encoding="utf-8-sig")
        if path.suffix.lower() == ".jsonl":
            return [json.loads(line) for line in content.split("\n") if line.strip()]
        document = json.loads(content)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not readable as JSON ({error})") from error
    samples = document.get("samples") if isinstance(document, dict) else document
    if not isinstance(samples, list):
        raise DataError(f'{path}: neither a list of samples nor an object with a list under "samples"')
    return samples
