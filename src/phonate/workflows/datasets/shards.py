"""Write a corpus as WebDataset shards: tar files with a FLAC and a JSON file for each recording.

Each shard is there whole or not at all. What was interrupted goes on after the last whole one.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from phonate.audio.decoding import FloatArray
from phonate.compute.remote import filesystem, is_remote, reported, upload
from phonate.compute.system import SpaceWatch, writing, written_whole
from phonate.config.errors import DataError, InputError, option
from phonate.config.randomness import derived_seed
from phonate.data.corpora.manifest import list_corpus
from phonate.data.corpora.rows import Problem, Row, read_part
from phonate.data.corpora.validation import CheckedRow, Report, unique_rows, usable_rows, warn_left_out
from phonate.data.parallel import Progress, Stage, ignore_progress
from phonate.data.settings import RecordingData, cache_root

RECORD = "shards.json"
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT])i?B?", re.IGNORECASE)
_UNITS = {"K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_STEP = 16  # rows between two looks at the size


@dataclass
class _Done:
    """What is written: how many listed rows each shard took, and what became of them."""

    made_from: str
    rows: list[int] = field(default_factory=list)
    written: int = 0
    seconds: float = 0.0
    refused: dict[str, int] = field(default_factory=dict)


def write_shards(settings: RecordingData, output: str, shards: str, progress: Progress) -> dict[str, Any]:
    """Write the usable recordings of a corpus into `output`, a folder or an address.

    They are in an order that depends on their ids alone, so that each shard is a sample of the corpus. `shards`: how
    many, or the size of one, such as 500MB.

    Raises InputError for `shards` that are neither, DataError where nothing can be used, or `output` holds something
    else.
    """
    count, size = _meaning(shards)
    earlier = _begun(output)
    listed, report = list_corpus(settings)
    first = Report(report.path, report.format)
    rows = sorted(unique_rows(listed, first), key=lambda row: (derived_seed("shards", row.id), row.id))
    facts = [(row.id, row.source, row.start, row.end, row.channel, row.segments, row.split, row.stamp) for row in rows]
    made_from = hashlib.sha256(
        repr((shards, settings.requirements, facts)).encode("utf-8", "surrogateescape")
    ).hexdigest()
    done = earlier or _Done(made_from)
    if done.made_from != made_from:
        raise DataError(
            f"{output}: has shards of another corpus, of recordings that were changed since, or with other options; "
            "give a new folder"
        )
    if not done.rows:
        done.refused = first.reasons()
    before = sum(done.rows)
    space = None if is_remote(output) else SpaceWatch(Path(output), [1.0] * (len(rows) - before))
    while sum(done.rows) < len(rows):
        start, number = sum(done.rows), len(done.rows)
        stop = len(rows) if count is None else len(rows) * (number + 1) // count
        _write(settings, rows[start:stop], size, f"{number:06d}.tar", output, done)
        progress(Stage.PREPARING, sum(done.rows), len(rows))
        if space is not None:
            with writing(Path(output)):
                space.add(sum(done.rows) - before - 1, (Path(output) / f"{number:06d}.tar").stat().st_size)
    if not done.written:
        raise DataError(f"{settings.label}: none of its recordings can be used; see `phonate data check`")
    left_out = [f"{number} {reason}" for reason, number in done.refused.items()]
    warn_left_out("can't be used (see `phonate data check`)", left_out)
    return {
        "folder": output,
        "shards": len(done.rows),
        "recordings": done.written,
        "hours": round(done.seconds / 3600, 3),
        "refused": done.refused,
    }


def _meaning(shards: str) -> tuple[int | None, float]:
    """The number of shards, or None, and the size of one in bytes."""
    if shards.isdecimal() and int(shards) > 0:
        return int(shards), float("inf")
    match = _SIZE.fullmatch(shards.strip())
    if match is None or not float(match[1]):
        raise InputError(f"{option('shards', shards)}: give how many, such as 100, or the size of one, such as 500MB")
    return None, float(match[1]) * _UNITS[match[2].upper()]


def _begun(output: str) -> _Done | None:
    """What an interrupted call wrote; None where nothing is there."""
    if is_remote(output):
        file_system, path = filesystem(output)
        record = f"{path.rstrip('/')}/{RECORD}"
        with reported(output, writing=True):
            text = file_system.cat_file(record).decode() if file_system.exists(record) else None
            others = text is None and file_system.exists(path) and bool(file_system.find(path))
    else:
        folder = Path(output)
        text = (folder / RECORD).read_text(encoding="utf-8") if (folder / RECORD).is_file() else None
        others = text is None and folder.exists() and (not folder.is_dir() or any(folder.glob("[!.]*")))
    if others:
        raise DataError(f"{output}: is there already, and holds no shards of phonate; give a new folder")
    return None if text is None else _Done(**json.loads(text))


def _write(settings: RecordingData, rows: list[Row], size: float, name: str, output: str, done: _Done) -> None:
    """Write one shard of the first `rows`, as many as fit into `size`, then the record."""
    with tempfile.TemporaryDirectory(dir=_beside(output), prefix=".shard-") as folder:
        file = Path(folder) / name
        taken, report = 0, Report("", "")
        with file.open("wb") as opened, tarfile.open(fileobj=opened, mode="w") as tar:
            while taken < len(rows) and opened.tell() < size:
                step: list[Row | Problem] = list(rows[taken : taken + _STEP])
                for number, sample in enumerate(_samples(settings, step, report), start=done.written):
                    _add(tar, f"{number:09d}", *sample)
                    done.written += 1
                taken += len(step)
        done.rows.append(taken)
        done.seconds += report.seconds
        for reason, count in report.reasons().items():
            done.refused[reason] = done.refused.get(reason, 0) + count
        _store(file, f"{output.rstrip('/')}/{name}")
        record = Path(folder) / RECORD
        record.write_text(json.dumps(vars(done), indent=1), encoding="utf-8")
        _store(record, f"{output.rstrip('/')}/{RECORD}")


def _samples(
    settings: RecordingData, rows: list[Row | Problem], report: Report
) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """The FLAC file and the labels of each row that can be used."""
    found = Report("", "")
    results = usable_rows(
        rows,
        settings.requirements,
        found,
        _encoded,
        Stage.PREPARING,
        ignore_progress,
        settings.threads,
        settings.executor,
        cache_root(settings),
    )
    for one, data in results:
        yield data, _labels(one)
    report.refused += found.refused
    report.seconds += found.seconds


def _encoded(one: CheckedRow, waveform: FloatArray | None) -> bytes:
    """A recording as FLAC, mono, 16 bits."""
    if waveform is None:
        waveform, _ = read_part(one.row)
    file = io.BytesIO()
    steps = np.clip(np.rint(waveform * 32768.0), -32768, 32767).astype(np.int16)
    soundfile.write(file, steps, one.sample_rate, format="FLAC", subtype="PCM_16")
    return file.getvalue()


def _labels(one: CheckedRow) -> dict[str, Any]:
    row = one.row
    labels: dict[str, Any] = {
        "id": row.id,
        "speaker": row.speaker,
        "text": row.text,
        "split": row.split,
        "seconds": one.seconds,
    }
    whole = len(one.row.segments) == 1 and one.row.segments[0].end is None
    if not whole:
        names = ("start", "end", "speaker", "text", "id")
        labels["segments"] = [{name: getattr(segment, name) for name in names} for segment in one.segments]
    return {name: value for name, value in labels.items() if value is not None}


def _add(tar: tarfile.TarFile, key: str, audio: bytes, labels: dict[str, Any]) -> None:
    for suffix, data in (("flac", audio), ("json", json.dumps(labels, ensure_ascii=False).encode("utf-8"))):
        info = tarfile.TarInfo(f"{key}.{suffix}")
        info.size = len(data)
        tar.addfile(info, io.BytesIO(data))


def _beside(output: str) -> Path | None:
    """Where unfinished shards are: on the disk of the output, or with other temporary files."""
    if is_remote(output):
        return None
    Path(output).mkdir(parents=True, exist_ok=True)
    return Path(output)


def _store(file: Path, goal: str) -> None:
    if is_remote(goal):
        upload(file, goal)
    else:
        Path(goal).parent.mkdir(parents=True, exist_ok=True)
        written_whole(Path(goal), file.replace)
