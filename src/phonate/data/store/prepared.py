"""From a corpus to what training reads: validated once, indexed, cached, found again by its fingerprint."""

from __future__ import annotations

import errno
import gzip
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phonate.audio.processor import AudioProcessor
from phonate.config.errors import DataError
from phonate.config.randomness import derived_seed
from phonate.data.manifests.manifest import list_corpus, to_cuts
from phonate.data.manifests.rows import Checked, Problem, Row
from phonate.data.manifests.validation import Progress, Report, validate
from phonate.data.progress import report_progress
from phonate.data.settings import VoiceData, cache_root
from phonate.data.store.cache import CacheWriter, FeatureCache, FloatArray
from phonate.data.store.index import Index, Strings

logger = logging.getLogger("phonate")

FORMAT = 1
THREADS = 2


@dataclass(frozen=True)
class Prepared:
    """A corpus that is ready to be trained on."""

    folder: Path
    """Where its files are."""
    fingerprint: str
    """Of the recordings and of the settings that made the files."""
    index: Index
    cache: FeatureCache
    report: dict[str, Any]
    """`Report.to_json` of its validation."""
    train: NDArray[np.int64]
    """Positions in the index."""
    validation: NDArray[np.int64]
    """Positions in the index."""

    @property
    def speakers(self) -> list[str]:
        """Names by number."""
        return self.index.speakers[:]


def prepare(settings: VoiceData, progress: Progress | None = None, *, text_required: bool = False) -> Prepared:
    """The prepared corpus; made now unless it was made before from the same recordings with the same settings.
    Recordings without text are left out, and reported, if it is required.

    Raises DataError when nothing can be used, the disk is full or the folder can't be written.
    """
    rows, report = list_corpus(settings)
    processor = AudioProcessor(settings.audio)
    for warning in report.warnings:  # of ids to drop: they change no row, so that a report from before lacks them
        logger.warning("%s: %s", warning.place, warning.detail)
    fingerprint = _fingerprint(rows, settings, processor, text_required)
    folder = cache_root(settings) / fingerprint
    if not (folder / "report.json").is_file():
        checked = validate(rows, settings.audio, report, progress, text_required=text_required)
        report.require_usable()
        _build(folder, checked, report, processor, progress)
    try:
        index = Index.load(folder)
        cache = FeatureCache(folder, index, settings.audio.n_mels)
        report_json = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, EOFError) as error:
        raise damaged(folder, error) from error
    train, validation = split(index.id, index.speaker, settings.validation)
    return Prepared(folder, fingerprint, index, cache, report_json, train, validation)


def damaged(folder: Path, error: Exception) -> DataError:
    """What to raise for a folder of a cache that `error` kept from being read."""
    return DataError(f"{folder}: damaged ({error}); delete this folder, and it is made anew")


def sync(folder: Path) -> None:
    """Wait until the disk has a folder of files. Without it a power cut may leave the folder's name, and files of no
    length under it."""
    for path in (*folder.iterdir(), folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _fingerprint(
    rows: Sequence[Row | Problem], settings: VoiceData, processor: AudioProcessor, text_required: bool
) -> str:
    """Changes with every recording's place, size and time, its row, and what features are made with."""
    audio = settings.audio
    digest = hashlib.sha256(repr((FORMAT, processor.fingerprint, audio.min_seconds, audio.max_seconds)).encode())
    if text_required:
        digest.update(b"text required")
    for row in rows:
        if isinstance(row, Problem):
            digest.update(repr(row).encode("utf-8", "surrogateescape"))
            continue
        try:
            status = row.path.stat()
            found: tuple[int, ...] = (status.st_size, status.st_mtime_ns)
        except (OSError, ValueError):  # ValueError: a name with a null byte
            found = ()
        entry = (row.id, os.fsencode(row.path.absolute()), row.speaker, row.text, found)
        digest.update(repr(entry).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:24]


def split(ids: Sequence[str], speakers: NDArray[np.int64], share: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positions for training and for validation: the `share` of the recordings whose ids hash lowest, so that nearly
    all stay on their side when others come or go. Each speaker keeps at least one recording for training."""
    numbers = np.asarray(speakers)
    left = np.bincount(numbers, minlength=1)
    wanted = max(1, round(share * len(ids))) if share > 0 else 0
    chosen: list[int] = []
    for position in sorted(range(len(ids)), key=lambda i: derived_seed("validation", ids[i])):
        if len(chosen) < wanted and left[numbers[position]] > 1:
            left[numbers[position]] -= 1
            chosen.append(position)
    if wanted and not chosen:
        logger.warning("each speaker has one recording only, which training needs: none is kept for validation")
    validation = np.array(sorted(chosen), dtype=np.int64)
    return np.setdiff1d(np.arange(len(ids), dtype=np.int64), validation), validation


def split_speakers(
    names: Sequence[str], speakers: NDArray[np.int64], share: float
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positions for training and for validation, which share no speaker: for validation the speakers whose names hash
    lowest, until they have `share` of the recordings.

    `speakers` has each recording's number in `names`. Raises DataError where one speaker is all there is.
    """
    numbers = np.asarray(speakers)
    counts = np.bincount(numbers, minlength=len(names))
    chosen: list[int] = []
    for number in sorted(range(len(names)), key=lambda i: derived_seed("validation", names[i])):
        if counts[chosen].sum() < share * len(numbers):
            chosen.append(number)
    if len(chosen) == len(names):
        chosen.pop()
    if share > 0 and not chosen:
        raise DataError("one speaker is all there is, so none can be kept for validation (data.validation_by: speaker)")
    kept = np.isin(numbers, chosen)
    return np.flatnonzero(~kept), np.flatnonzero(kept)


def _build(
    folder: Path, checked: Sequence[Checked], report: Report, processor: AudioProcessor, progress: Progress | None
) -> None:
    """Write everything beside its final name, then rename."""
    beside = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        beside.mkdir(parents=True, exist_ok=True)
        with CacheWriter(beside) as writer:
            for done, (waveform, mel) in enumerate(_features(checked, processor), start=1):
                writer.add(waveform, mel)
                (progress or report_progress)("computing features", done, len(checked))
        _index(checked, writer).save(beside)
        with gzip.open(beside / "cuts.jsonl.gz", "wt", encoding="ascii") as manifest:
            # Not by Lhotse's own writer, which can't write names that are no UTF-8.
            manifest.writelines(json.dumps(cut.to_dict()) + "\n" for cut in to_cuts(checked))
        (beside / "report.json").write_text(json.dumps(report.to_json(), indent=1), encoding="utf-8")
        sync(beside)
        try:
            beside.rename(folder)
        except OSError:
            if not (folder / "report.json").is_file():  # else another process was first, with the same content
                raise
    except OSError as error:
        raise DataError(_explained(error, folder.parent)) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _features(checked: Sequence[Checked], processor: AudioProcessor) -> Iterator[tuple[FloatArray, FloatArray]]:
    def one(item: Checked) -> tuple[FloatArray, FloatArray]:
        waveform = processor.load(item.row.path)
        return waveform, processor.mel(waveform)

    remaining = iter(checked)
    with ThreadPoolExecutor(THREADS) as pool:
        while chunk := list(islice(remaining, 64)):
            yield from pool.map(one, chunk)


def _index(checked: Sequence[Checked], writer: CacheWriter) -> Index:
    names = sorted({str(item.row.speaker) for item in checked})
    number = {name: i for i, name in enumerate(names)}
    return Index(
        id=Strings.of([item.row.id for item in checked]),
        path=Strings.of([str(item.row.path.resolve()) for item in checked]),
        text=Strings.of([item.row.text or "" for item in checked]),
        speakers=Strings.of(names),
        speaker=np.array([number[str(item.row.speaker)] for item in checked], dtype=np.int64),
        sample_start=np.array(writer.sample_start, dtype=np.int64),
        frame_start=np.array(writer.frame_start, dtype=np.int64),
    )


def _explained(error: OSError, folder: Path) -> str:
    if error.errno == errno.ENOSPC:
        return f"{folder}: the disk is full; free space there, or name another folder by data.cache_dir"
    return f"{folder}: can't write the cache ({error.strerror}); name another folder by data.cache_dir"
