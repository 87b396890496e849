"""From a corpus to what training reads: validated once, indexed, cached, found again by its fingerprint."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phonate.config.errors import DataError
from phonate.data.batches.dataset import digest_of
from phonate.data.features import FEATURES, Features
from phonate.data.manifests.dropping import warn_left_out
from phonate.data.manifests.manifest import list_corpus
from phonate.data.manifests.rows import Problem, Row
from phonate.data.manifests.validation import Progress, of_trained_speakers, validate
from phonate.data.progress import ignore_progress
from phonate.data.settings import RecordingData, cache_root
from phonate.data.store.build import REPORT, build
from phonate.data.store.cache import FeatureCache
from phonate.data.store.computed import ComputedFeatures, Unstored
from phonate.data.store.folders import damaged, verify
from phonate.data.store.index import Index
from phonate.data.store.splits import Positions, split_index, split_strangers

logger = logging.getLogger("phonate")

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
        checked = validate(rows, settings.requirements, report, progress, settings.threads)
        report.require_usable()
        if settings.requirements.trained_speaker:
            checked = of_trained_speakers(checked, report, settings.held_out_splits)
        build(folder, checked, report, stored, progress, settings.threads)
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
