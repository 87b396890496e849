"""Features of voice recordings, cached by the content of the files, and the profile of a voice.

The cache is an append-only file of JSON lines: concurrent runs share it, and an interrupted run keeps its part.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from phonate.audio.decoding import read_start
from phonate.audio.quality import VoiceFeatures, voice_features
from phonate.config.errors import DataError
from phonate.data.manifests.rows import Problem, printable
from phonate.data.manifests.validation import FAILURES, reason_of
from phonate.data.parallel import Progress, map_files
from phonate.data.progress import Stage
from phonate.data.settings import cache_folder
from phonate.data.voices.files import VoiceFile, crashed
from phonate.data.voices.settings import VoiceRules

logger = logging.getLogger("phonate")

# ------------------------------------------------------------------------ Features of voice recordings

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


# ----------------------------- The profile of a voice over all of its recordings, as one JSON document

PROFILE = "voice_profile.json"
_DIGITS = 6


def voice_profile(files: Sequence[VoiceFile], features: Sequence[VoiceFeatures]) -> dict[str, Any]:
    """The profile of a voice from its recordings and the features of each.

    Means and deviations are those over all frames of all recordings together. The pitch of recordings without voice
    does not count; without any, its values are null.

    Returns:
        sample_count; total_duration in seconds; avg_quality_score; voice_pitch {mean, std, min, max} in Hz;
        spectral_profile {centroid_mean, centroid_std, rolloff_mean} in Hz, {zero_crossing_rate_mean};
        mfcc_profile {mean, std} of 13 coefficients; energy_profile {mean, std, min, max} of RMS, whose ends are the
        quietest and the loudest recording.

    Raises:
        DataError: there are no recordings.
    """
    if not files or len(files) != len(features):
        raise DataError(f"a voice profile needs recordings with their features; {len(files)} have {len(features)}")
    frames = np.array([one.frames for one in features], dtype=np.float64)
    centroid = _pooled(
        [one.spectral_centroid for one in features], [one.spectral_centroid_std for one in features], frames
    )
    mfcc = _pooled([one.mfcc_mean for one in features], [one.mfcc_std for one in features], frames)
    energy = _pooled([one.rms for one in features], [one.rms_std for one in features], frames)
    loudness = [one.rms for one in features]
    profile = {
        "sample_count": len(files),
        "total_duration": sum(file.seconds for file in files),
        "avg_quality_score": sum(file.quality for file in files) / len(files),
        "voice_pitch": _pitch(features),
        "spectral_profile": {
            "centroid_mean": float(centroid[0]),
            "centroid_std": float(centroid[1]),
            "rolloff_mean": float(np.average([one.spectral_rolloff for one in features], weights=frames)),
            "zero_crossing_rate_mean": float(np.average([one.zero_crossing_rate for one in features], weights=frames)),
        },
        "mfcc_profile": {"mean": mfcc[0].tolist(), "std": mfcc[1].tolist()},
        "energy_profile": {
            "mean": float(energy[0]),
            "std": float(energy[1]),
            "min": min(loudness),
            "max": max(loudness),
        },
    }
    rounded: dict[str, Any] = _rounded(profile)
    return rounded


def write_profile(profile: dict[str, Any], folder: str | Path) -> Path:
    """Write voice_profile.json into `folder`, whole or not at all; returns its path."""
    path = Path(folder) / PROFILE
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{PROFILE}.{os.getpid()}")
    beside.write_text(json.dumps(profile, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    beside.replace(path)
    return path


def _pitch(features: Sequence[VoiceFeatures]) -> dict[str, float | None]:
    voiced = [one for one in features if one.voiced_frames]
    if not voiced:
        return dict.fromkeys(("mean", "std", "min", "max"))
    frames = np.array([one.voiced_frames for one in voiced], dtype=np.float64)
    mean, std = _pooled([one.pitch_mean for one in voiced], [one.pitch_std for one in voiced], frames)
    lowest = [one.pitch_min for one in voiced if one.pitch_min is not None]
    highest = [one.pitch_max for one in voiced if one.pitch_max is not None]
    return {"mean": float(mean), "std": float(std), "min": min(lowest), "max": max(highest)}


def _pooled(means: Sequence[Any], stds: Sequence[Any], weights: np.ndarray[Any, Any]) -> tuple[Any, Any]:
    """Mean and standard deviation of everything, from those of its parts: the variance is the mean of the squares
    less the square of the mean."""
    mean_R = np.asarray(means, dtype=np.float64)
    square_R = np.square(mean_R) + np.square(np.asarray(stds, dtype=np.float64))
    mean = np.average(mean_R, axis=0, weights=weights)
    return mean, np.sqrt(np.maximum(np.average(square_R, axis=0, weights=weights) - np.square(mean), 0.0))


def _rounded(value: Any) -> Any:
    """Floats with six digits behind the point; the rest as it is."""
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    if isinstance(value, float):
        assert math.isfinite(value), "features of finite samples are finite"
        return round(value, _DIGITS)
    return value
