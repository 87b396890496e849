"""Features of voice recordings, computed in several processes and cached by the content of the files.

The cache is an append-only file of JSON lines: concurrent runs share it, and an interrupted run keeps its part.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from phonate.audio.decoding import read_start
from phonate.audio.voice_features import VoiceFeatures, voice_features
from phonate.data.manifests.rows import Problem, printable
from phonate.data.parallel import Progress, map_files
from phonate.data.progress import Stage
from phonate.data.settings import cache_folder
from phonate.data.voices.files import crashed
from phonate.data.voices.validation import FAILURES, VoiceFile, VoiceRules, reason_of

logger = logging.getLogger("phonate")

_CACHE = "voice-features-1.jsonl"  # another number when the features change
_TUPLES = ("mfcc_mean", "mfcc_std")


@dataclass
class Extracted:
    """Recordings with their features, and those without."""

    files: list[VoiceFile] = field(default_factory=list)
    features: list[VoiceFeatures] = field(default_factory=list)
    """One for each of `files`."""
    problems: list[Problem] = field(default_factory=list)
    """Files that could not be read any more."""
    computed: int = 0
    """Recordings that were not in the cache."""


def extract_features(
    files: Sequence[VoiceFile],
    rules: VoiceRules | None = None,
    cache_dir: str | Path | None = None,
    progress: Progress | None = None,
    processes: int | None = None,
) -> Extracted:
    """The features of recordings that were validated by the same `rules`.

    `cache_dir`: where features are cached; ~/.cache/phonate by default. A warning is logged if it can't be written.
    """
    rules = rules or VoiceRules()
    cache = _Cache(cache_folder(cache_dir) / _CACHE)
    paths = [file.path for file in files]
    keys = list(map_files(partial(_key, rules=rules), paths, crashed, Stage.READING, progress, processes))
    missing: dict[str, Path] = {}
    for key, path in zip(keys, paths, strict=True):
        if isinstance(key, str) and key not in cache.known:
            missing.setdefault(key, path)
    failed: dict[str, Problem] = {}
    computed = map_files(
        partial(_compute, rules=rules), list(missing.values()), crashed, Stage.EXTRACTING, progress, processes
    )
    for key, found in zip(missing, computed, strict=True):
        if isinstance(found, Problem):
            failed[key] = found
        else:
            cache.add(key, found)
    extracted = Extracted(computed=len(missing) - len(failed))
    for file, key in zip(files, keys, strict=True):
        if isinstance(key, Problem):
            extracted.problems.append(key)
        elif key in failed:
            extracted.problems.append(failed[key])
        else:
            extracted.files.append(file)
            extracted.features.append(cache.known[key])
    return extracted


def _key(path: Path, rules: VoiceRules) -> str | Problem:
    """The cache key: the content of the file, and how much of it is used."""
    try:
        with path.open("rb") as file:
            content = hashlib.file_digest(file, _digest).hexdigest()
    except OSError as error:
        name = printable(str(path))
        return Problem(name, name, "unreadable", reason_of(error))
    return f"{content}-{rules.sample_rate}-{rules.max_seconds:g}"


_digest: Callable[[], hashlib.blake2b] = partial(hashlib.blake2b, digest_size=16)


def _compute(path: Path, rules: VoiceRules) -> VoiceFeatures | Problem:
    try:
        waveform, _ = read_start(path, rules.max_seconds, rules.sample_rate)
        return voice_features(waveform, rules.sample_rate)
    except FAILURES as error:
        name = printable(str(path))
        return Problem(name, name, "unreadable", reason_of(error))


class _Cache:
    """Features by key, read from and appended to a file."""

    def __init__(self, file: Path) -> None:
        self.known: dict[str, VoiceFeatures] = {}
        self._file = file
        self._writable = True
        try:
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        except (FileNotFoundError, NotADirectoryError):  # the latter is reported when it is written
            lines = []
        except OSError as error:
            lines = []
            logger.warning("%s: can't be read (%s); features are computed anew", file, error)
        damaged = sum(not self._learn(line) for line in lines if line)
        if damaged:
            logger.warning("%s: %d lines are damaged; their recordings are computed again", file, damaged)

    def _learn(self, line: str) -> bool:
        try:
            entry = json.loads(line)
            values = {**entry["features"], **{name: tuple(entry["features"][name]) for name in _TUPLES}}
            self.known[entry["key"]] = VoiceFeatures(**values)
        except (ValueError, TypeError, KeyError):  # a line that was cut off when the machine stopped
            return False
        return True

    def add(self, key: str, features: VoiceFeatures) -> None:
        """Add an entry. It is written by a single system call, so that concurrent writers don't interleave."""
        self.known[key] = features
        if not self._writable:
            return
        # begins with a line feed, too: the line before may have been cut off
        line = "\n" + json.dumps({"key": key, "features": asdict(features)}) + "\n"
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                os.write(handle, line.encode())
            finally:
                os.close(handle)
        except OSError as error:
            self._writable = False
            logger.warning("%s: can't be written (%s); features are computed anew each time", self._file, error)
