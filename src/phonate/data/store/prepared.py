"""From a corpus to what training reads: validated once, indexed, cached, found again by its fingerprint."""

from __future__ import annotations

import errno
import gzip
import hashlib
import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phonate.audio.decoding import FloatArray
from phonate.audio.processor import normalised_peak
from phonate.config.errors import DataError
from phonate.data.features import FEATURES, Features
from phonate.data.manifests.manifest import cut_document, list_corpus
from phonate.data.manifests.rows import LONG_SECONDS, Problem, Row, at_rate, official_split, part_blocks, read_part
from phonate.data.manifests.validation import (
    Checked,
    Report,
    in_threads,
    of_trained_speakers,
    validate,
    validated,
    warn_left_out,
)
from phonate.data.parallel import Progress
from phonate.data.progress import Stage, ignore_progress, report_progress
from phonate.data.settings import RecordingData, cache_root
from phonate.data.store.cache import (
    FILE_SCALE,
    NORMALISED_SCALE,
    CacheWriter,
    ComputedFeatures,
    FeatureCache,
    Unstored,
    damaged,
    digest_of,
    new_folder,
    verify,
)
from phonate.data.store.index import SPLITS, Index, Strings
from phonate.data.store.splits import Positions, split_index, split_strangers

# -------------------------- Writing a prepared corpus: waveforms, features, index, manifest and report

THREADS = 2
REPORT = "report.json"
_SCRATCH = "scratch.float32"
_BLOCK_SAMPLES = 1 << 20


Computed = tuple[FloatArray, NDArray[Any]] | None
"""Waveform (samples,) and features (frames, W) of a recording; None for a long one, which is written in blocks."""


def build(
    folder: Path,
    rows: Sequence[Row | Problem],
    settings: RecordingData,
    report: Report,
    features: Features,
    progress: Progress | None,
) -> None:
    """Write everything beside its final name, then rename. Raises DataError where nothing can be used, or the disk is
    full or read-only."""
    try:
        with new_folder(folder) as beside:
            full_scale = NORMALISED_SCALE if features.normalises_level else FILE_SCALE
            checked: list[Checked] = []
            with CacheWriter(beside, features.width, features.dtype, full_scale) as writer:
                for item, computed in _computed(rows, settings, report, features, progress):
                    if computed is None:
                        _write_long(writer, item, features, beside / _SCRATCH)
                    else:
                        writer.add(*computed)
                    checked.append(item)
                report.require_usable()
            index_of(checked, writer).save(beside)
            with gzip.open(beside / "cuts.jsonl.gz", "wt", encoding="ascii") as manifest:
                manifest.writelines(json.dumps(cut_document(one)) + "\n" for one in checked)
            (beside / REPORT).write_text(json.dumps(report.to_json(), indent=1), encoding="utf-8")
    except OSError as error:
        raise DataError(_explained(error, folder.parent)) from error


def _computed(
    rows: Sequence[Row | Problem],
    settings: RecordingData,
    report: Report,
    features: Features,
    progress: Progress | None,
) -> Iterator[tuple[Checked, Computed]]:
    """The recordings that can be used with what is written of them; `report` is complete at the end.

    Each is computed from the samples that were read to check it. Where rows are held out, whose speakers may not be in
    training, it is known only of all rows together which can be used: then they are decoded again."""

    def compute(item: Checked, waveform: FloatArray | None) -> Computed:
        if item.seconds > LONG_SECONDS:
            return None
        rate = features.audio.sample_rate
        if waveform is None:
            waveform, _ = read_part(item.row, rate)
        else:
            waveform, _ = at_rate(item.row, waveform, item.sample_rate, rate)
        if features.normalises_level:
            waveform = normalised_peak(waveform)
        return waveform, features.of_recording(item.row.id).compute(waveform)

    needs, threads = settings.requirements, settings.threads
    splits = {official_split(row.split) for row in rows if isinstance(row, Row)}
    if not needs.trained_speaker or splits.isdisjoint(settings.held_out_splits):
        yield from validated(rows, needs, report, compute, Stage.PREPARING, progress, threads)
        return
    usable = validate(rows, needs, report, progress, threads)
    checked = of_trained_speakers(usable, report, settings.held_out_splits)
    results = in_threads(lambda item: compute(item, None), checked, threads or THREADS)
    for done, result in enumerate(zip(checked, results, strict=True), start=1):
        yield result
        (progress or report_progress)(Stage.PREPARING, done, len(checked))


def _write_long(writer: CacheWriter, item: Checked, features: Features, scratch: Path) -> None:
    """Decode and resample to a scratch file, then read that several times: the peak is known only at the end, and
    decoding again would cost more than reading."""
    peak = np.float32(0.0)
    with scratch.open("wb") as file:
        for block in part_blocks(item.row, features.audio.sample_rate):
            peak = max(peak, np.abs(block).max(initial=np.float32(0.0)))
            file.write(block.tobytes())

    def read() -> Iterator[FloatArray]:
        with scratch.open("rb") as opened:
            while len(block := np.fromfile(opened, dtype=np.float32, count=_BLOCK_SAMPLES)):
                yield block / peak if features.normalises_level and peak > 0.0 else block

    for block in read():
        writer.add_samples(block)
    for values in features.of_recording(item.row.id).compute_blocks(read):
        writer.add_features(values)
    writer.end_recording()
    scratch.unlink()


def index_of(checked: Sequence[Checked], writer: CacheWriter) -> Index:
    """The index of what was written."""
    segments = [one.segments for one in checked]
    every = list(chain.from_iterable(segments))
    names = sorted({one.speaker for one in every if one.speaker is not None})
    number = {name: i for i, name in enumerate(names)} | {None: -1}
    files: dict[Path, int] = {}
    paths = [one.row.path.resolve() for one in checked]
    splits = [SPLITS.index(official_split(one.row.split) or "") for one in checked]
    return Index(
        id=Strings.of([one.row.id for one in checked]),
        path=Strings.of([str(path) for path in paths]),
        speakers=Strings.of(names),
        segment_first=np.cumsum([0, *map(len, segments)], dtype=np.int64),
        segment_start=np.array([one.start for one in every], dtype=np.float64),
        segment_end=np.array([one.end for one in every], dtype=np.float64),
        segment_speaker=np.array([number[one.speaker] for one in every], dtype=np.int64),
        segment_text=Strings.of([one.text or "" for one in every]),
        recording=np.array([files.setdefault(path, len(files)) for path in paths], dtype=np.int64),
        official_split=np.array(splits, dtype=np.int64),
        sample_start=np.array(writer.sample_start, dtype=np.int64),
        frame_start=np.array(writer.frame_start, dtype=np.int64),
    )


def _explained(error: OSError, folder: Path) -> str:
    if error.errno == errno.ENOSPC:
        return f"{folder}: the disk is full; free space there, or name another folder by data.cache_dir"
    return f"{folder}: can't write the cache ({error.strerror}); name another folder by data.cache_dir"


logger = logging.getLogger("phonate")

# ---------------------------------------------------------------- From a corpus to what training reads

FORMAT = 2
_SOUNDS = "sounds.npy"


@dataclass(frozen=True)
class Prepared:
    """A corpus that is ready to be trained on."""

    folder: Path
    """Where its files are."""
    fingerprint: str
    """Identifies the recordings and settings that the files were made from."""
    index: Index
    cache: FeatureCache
    report: dict[str, Any]
    """`Report.to_json` of its validation."""
    train: NDArray[np.int64]
    """Positions in the index."""
    validation: NDArray[np.int64]
    """Positions in the index."""
    test: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Positions in the index: rows of an official test split, which nothing is trained on."""

    @property
    def speakers(self) -> list[str]:
        """Names by number."""
        return self.index.speakers[:]

    def digests(self, positions: Iterable[int]) -> dict[str, int]:
        """A digest of each recording at `positions`, by its id: of the sound, the texts and the speakers.

        The sounds are read once in the life of the cache, and the result is kept there.
        """
        sounds, index = self._sounds, self.index
        speakers = [*index.speakers, None]
        return {
            index.id[i]: digest_of(
                sounds[i], [(one.start, one.end, speakers[one.speaker], one.text) for one in index.segments(i)]
            )
            for i in map(int, positions)
        }

    @cached_property
    def _sounds(self) -> NDArray[np.uint8]:
        """(N, 16) a digest of the sound of each recording."""
        file = self.folder / _SOUNDS
        with suppress(OSError, ValueError, EOFError):
            known = np.load(file)
            if known.shape == (len(self.index), 16):
                return np.asarray(known, dtype=np.uint8)
        digests = b"".join(self.cache.digest(i) for i in range(len(self.index)))
        sounds = np.frombuffer(digests, dtype=np.uint8).reshape(-1, 16)
        with suppress(OSError):  # a cache that is read only is read each time
            beside = self.folder / f".{os.getpid()}.{_SOUNDS}"
            np.save(beside, sounds)
            beside.replace(file)
        return sounds


def prepare(settings: RecordingData, progress: Progress | None = None) -> Prepared:
    """Prepare a corpus, or open it if it was prepared before from the same recordings with the same settings.

    Recordings that do not meet `settings.requirements` are refused and reported.

    Raises DataError when nothing can be used, the disk is full or the folder can't be written.
    """
    rows, report = list_corpus(settings)
    features = FEATURES.get(settings.feature_name)(settings)
    stored = features if settings.storage == "disk" else Unstored(features)
    for warning in report.warnings:  # of ids to drop: they change no row, so that a report from before lacks them
        logger.warning("%s: %s", warning.place, warning.detail)
    fingerprint = _fingerprint(rows, settings, stored)
    folder = cache_root(settings) / fingerprint
    if not (folder / REPORT).is_file():
        progress = progress or (None if settings.shows_progress else ignore_progress)
        build(folder, rows, settings, report, stored, progress)
    verify(folder)
    try:
        index = Index.load(folder)
        cache = _cache(settings, folder, index, features)
        report_json = json.loads((folder / REPORT).read_text(encoding="utf-8"))
    except (OSError, ValueError, EOFError) as error:
        raise damaged(folder, error) from error
    _warn_refused(report_json)
    train, validation, test = _split(settings, index)
    return Prepared(folder, fingerprint, index, cache, report_json, train, validation, test)


def _warn_refused(report: Mapping[str, Any]) -> None:
    """Log what a corpus lists and can't be used."""
    untrained = [one for one in report["refused"] if one["reason"] == "speaker not in training"]
    unusable = [one for one in report["refused"] if one["reason"] != "speaker not in training"]
    warn_left_out("are of speakers who are not in training", [f"{one['id']}: {one['detail']}" for one in untrained])
    warn_left_out("can't be used", [f"{one['place']}: {one['detail']}" for one in unusable])


def _split(settings: RecordingData, index: Index) -> tuple[Positions, Positions, Positions]:
    if settings.strangers is None:
        return split_index(index, settings.validation)
    return split_strangers(index, settings.validation, settings.strangers)


def prepare_to_train(settings: RecordingData) -> Prepared:
    """`prepare`; raises DataError also where nothing may be trained on."""
    prepared = prepare(settings)
    if not len(prepared.train):
        raise DataError(
            f"{settings.label}: every recording is of the official test split, which is not trained on; give the whole "
            "corpus as data.path, or its part for training"
        )
    return prepared


def _cache(settings: RecordingData, folder: Path, index: Index, features: Features) -> FeatureCache:
    if settings.storage == "disk":
        return FeatureCache(folder, index)
    return ComputedFeatures(folder, index, features, hold=settings.storage == "memory")


def _fingerprint(rows: Sequence[Row | Problem], settings: RecordingData, features: Features) -> str:
    """A hash of the rows, the path, size and time of each recording, and the feature settings."""
    name = "waveform" if isinstance(features, Unstored) else settings.feature_name
    facts: tuple[object, ...] = (FORMAT, name, features.fingerprint, settings.requirements)
    if settings.requirements.trained_speaker:
        facts = (*facts, settings.held_out_splits)
    digest = hashlib.sha256(repr(facts).encode())
    for row in rows:
        if isinstance(row, Problem):
            digest.update(repr(row).encode("utf-8", "surrogateescape"))
            continue
        try:
            status = row.path.stat()
            found: tuple[int, ...] = (status.st_size, status.st_mtime_ns)
        except (OSError, ValueError):  # ValueError: a name with a null byte
            found = ()
        part: tuple[object, ...] = (row.channel, row.start, row.end, row.split)
        if row.listed_seconds is not None:
            part = (*part, row.listed_seconds)
        entry = (row.id, os.fsencode(row.path.absolute()), row.segments, part, found)
        digest.update(repr(entry).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:24]
