"""Folders of voice recordings: which can train a voice, and why others can't; their features, the voice's profile.

Each file is opened once and only its beginning decoded, so that tens of thousands take minutes.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from phonate.audio.containers.kinds import AUDIO_SUFFIXES, USUAL_SUFFIXES
from phonate.audio.decoding import probe, read_start
from phonate.audio.quality import VoiceFeatures, VoiceLevels, voice_features, voice_levels, voice_score
from phonate.compute.system import cache_folder
from phonate.config.errors import DataError, InputError
from phonate.config.words import number_of, that_many
from phonate.data.corpora.rows import Problem, audio_files, printable
from phonate.data.corpora.validation import (
    CRASHED,
    FAILURES,
    Report,
    Unusable,
    decoding,
    reason_of,
    require_length,
    to_cut,
    unusual,
)
from phonate.data.parallel import Progress, Stage, map_files
from phonate.data.settings import VoiceRules

logger = logging.getLogger("phonate")

# ----------------------- Recordings in a folder: whether there are any, their number, size and formats

_MIB = 1024**2
_CONTAINERS = {
    ".wav": {"WAV", "WAVEX", "RF64", "W64"},
    ".mp3": {"MP3", "MPEG"},
    ".flac": {"FLAC"},
    ".ogg": {"OGG"},
    ".aiff": {"AIFF"},
}


class VoiceDataDetector:
    """Finds voice recordings in a folder and its sub-folders, anew at each call.

    Hidden files and what phonate wrote itself are left out, links are followed once, unreadable folders are skipped
    (`problems`).

    Args:
        voice_data_dir: the folder; it need not exist.
    """

    supported_formats = (*USUAL_SUFFIXES, *sorted(AUDIO_SUFFIXES.difference(USUAL_SUFFIXES)))
    """Suffixes of recordings, in lower case; files may have them in any."""

    def __init__(self, voice_data_dir: str | Path) -> None:
        self.voice_data_dir = Path(voice_data_dir)
        self.problems: list[Problem] = []
        """Folders that could not be read by the latest call."""

    def has_voice_data(self) -> bool:
        """Whether there is any recording."""
        return next(self._walk(), None) is not None

    def get_voice_files(self) -> list[Path]:
        """The recordings, in a fixed order. Raises InputError if `voice_data_dir` is a file."""
        return list(self._walk())

    def get_stats(self) -> dict[str, Any]:
        """total_files, total_size_mb (of 1024^2 bytes), and formats: suffix in lower case -> number of files."""
        files = self.get_voice_files()
        counts = Counter(file.suffix.lower() for file in files)
        return {
            "total_files": len(files),
            "total_size_mb": sum(map(_size, files)) / _MIB,
            "formats": {suffix: counts[suffix] for suffix in self.supported_formats if suffix in counts},
        }

    def validate_formats(self, progress: Progress | None = None) -> list[Problem]:
        """Files that can't be opened, or whose headers contradict their suffix."""
        problems = map_files(_check_format, self.get_voice_files(), crashed, Stage.FORMATS, progress)
        return [problem for problem in problems if problem is not None]

    def text(self) -> str:
        """The result as printed by `phonate session --check-voice-data`."""
        rule = 80 * "="
        lines = ["", rule, "Voice Training Data Check", rule, ""]
        folder, stats = printable(str(self.voice_data_dir)), self.get_stats()
        if stats["total_files"]:
            lines += [f"✅ Voice data found in: {folder}", "", "Statistics:"]
            lines += [f"  Total files: {stats['total_files']}", f"  Total size: {stats['total_size_mb']:.2f} MB"]
            lines += [
                "  Formats:",
                *(f"    {suffix}: {number_of(count, 'file')}" for suffix, count in stats["formats"].items()),
            ]
        else:
            formats = f"Supported formats: {', '.join(USUAL_SUFFIXES)} and more"
            lines += [f"❌ No voice data found in: {folder}", "", formats]
        return "\n".join(lines)

    def _walk(self) -> Iterator[Path]:
        self.problems = []
        if self.voice_data_dir.is_file():
            raise InputError(f"{self.voice_data_dir}: is a file; give the folder that it is in")
        if not self.voice_data_dir.exists():
            return iter(())
        return audio_files(self.voice_data_dir, problems=self.problems)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:  # a link that leads nowhere
        return 0


def _check_format(file: Path) -> Problem | None:
    try:
        info = probe(file)
    except (DataError, OSError) as error:
        return _problem(file, "unreadable", str(error))
    detail = wrong_suffix(file, info.format)
    return None if detail is None else _problem(file, "wrong suffix", f"{detail}; rename it")


def wrong_suffix(file: Path, format: str) -> str | None:
    """What is wrong with the suffix of a file that holds `format`; None if nothing is."""
    suffix = file.suffix.lower()
    expected = _CONTAINERS.get(suffix)
    return None if expected is None or format in expected else f"holds {format}, not {suffix}"


def _problem(file: Path, reason: str, detail: str) -> Problem:
    name = printable(str(file))
    return Problem(name, name, reason, printable(detail))


def crashed(file: Path) -> Problem:
    """The problem of a file at which its reader process died."""
    return _problem(file, "unreadable", CRASHED)


# --------- Validation of the recordings of a folder: which can train a voice, and why the others can't

_NO_SIGNAL = 1e-4
"""Standard deviation of the samples, in units of full scale, under which a recording holds no sound."""


@dataclass(frozen=True)
class VoiceFile:
    """A recording that can be used."""

    path: Path
    seconds: float
    """Used of it."""
    whole_seconds: float
    """What its header says."""
    sample_rate: int
    """Its own, in Hz."""
    channels: int
    quality: float
    """From 0 to 1."""
    lowered_by: tuple[str, ...]
    """What lowers the quality."""
    levels: VoiceLevels
    """What the quality is judged by."""
    format: str
    """What the file holds, such as "WAV", whatever its suffix says."""
    remarks: tuple[str, ...] = ()
    """What is unusual about it and was mended."""


def validate_voice_files(
    detector: VoiceDataDetector,
    rules: VoiceRules | None = None,
    progress: Progress | None = None,
    processes: int | None = None,
    cache_dir: str | Path | None = None,
) -> tuple[list[VoiceFile], Report]:
    """The recordings that can be used, and the report on all.

    `cache_dir`: where a recording is noted at which a decoder may die; ~/.cache/phonate by default.
    Folders and files that can't be read, too short ones and those of low quality are among `report.refused`, each with
    its reason; long ones, of which only the beginning is used, and wrong suffixes among `report.warnings`.
    """
    rules = rules or VoiceRules()
    files = detector.get_voice_files()
    report = Report(printable(str(detector.voice_data_dir)), "voice files", listed=len(files))
    report.refused.extend(detector.problems)
    usable: list[VoiceFile] = []
    notes, check = cache_folder(cache_dir), partial(examine, rules=rules)
    for outcome in map_files(check, files, crashed, Stage.CHECKING, progress, processes, notes):
        if isinstance(outcome, Problem):
            report.refused.append(outcome)
            continue
        usable.append(outcome)
        report.usable += 1
        report.seconds += outcome.seconds
        report.warnings.extend(_warnings(outcome, detector.voice_data_dir))
    return usable, report


def examine(path: Path, rules: VoiceRules) -> VoiceFile | Problem:
    """Validate one file: its properties, or why it can't be used."""
    try:
        with decoding():
            waveform, info = read_start(path, rules.max_seconds)
        require_length(info.duration, "session.rules", rules.min_seconds)
        seconds = min(info.duration, rules.max_seconds)
        levels = voice_levels(waveform, info.sample_rate, rules.sample_rate)
        quality, lowered_by = voice_score(levels, seconds)
        if quality < rules.min_quality:
            low = f"quality {quality:.2f} is under {rules.min_quality:g}: {', '.join(lowered_by)}"
            raise Unusable("low quality", low)
        if float(waveform.std()) < _NO_SIGNAL:
            raise Unusable("silent", "a constant level (DC offset) and no sound; record it again")
    except Unusable as why:
        name = printable(str(path))
        return why.problem(name, name)
    return VoiceFile(
        path,
        seconds,
        info.duration,
        info.sample_rate,
        info.channels,
        quality,
        tuple(lowered_by),
        levels,
        info.format,
        info.remarks,
    )


def _warnings(file: VoiceFile, folder: Path) -> Iterator[Problem]:
    """Warnings about a recording in `folder` that is used."""
    for finding in unusual(file.remarks):
        yield _problem(file.path, finding.reason, finding.detail)
    if file.seconds < file.whole_seconds:
        used = f"{file.whole_seconds:.1f} s, only the first {file.seconds:g} are used"
        detail = f"{used}; to use all, {to_cut(folder, file.seconds)}"
        yield _problem(file.path, "too long", detail)
    suffix = wrong_suffix(file.path, file.format)
    if suffix is not None:
        yield _problem(file.path, "wrong suffix", f"{suffix}; used as it is")


# ------------------------------------------------------------------------ Features of voice recordings

_CACHE = "voice-features-1.jsonl"  # another number when the features change
_TUPLES = ("mfcc_mean", "mfcc_std")


@dataclass
class ExtractedFeatures:
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
) -> ExtractedFeatures:
    """The features of recordings that were validated by the same `rules`.

    `cache_dir`: where features are cached; ~/.cache/phonate by default. A warning is logged if it can't be written.
    """
    rules = rules or VoiceRules()
    notes = cache_folder(cache_dir)
    cache = _Cache(notes / _CACHE)
    paths = [file.path for file in files]
    keys = list(map_files(partial(_key, rules=rules), paths, crashed, Stage.READING, progress, processes, notes))
    missing: dict[str, Path] = {}
    for key, path in zip(keys, paths, strict=True):
        if isinstance(key, str) and key not in cache.known:
            missing.setdefault(key, path)
    failed: dict[str, Problem] = {}
    computed = map_files(
        partial(_compute, rules=rules), list(missing.values()), crashed, Stage.EXTRACTING, progress, processes, notes
    )
    for key, outcome in zip(missing, computed, strict=True):
        if isinstance(outcome, Problem):
            failed[key] = outcome
        else:
            cache.add(key, outcome)
    extracted = ExtractedFeatures(computed=len(missing) - len(failed))
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
        return _problem(path, "unreadable", reason_of(error))
    return f"{content}-{rules.sample_rate}-{rules.max_seconds:g}"


_digest: Callable[[], hashlib.blake2b] = partial(hashlib.blake2b, digest_size=16)


def _compute(path: Path, rules: VoiceRules) -> VoiceFeatures | Problem:
    try:
        waveform, _ = read_start(path, rules.max_seconds, rules.sample_rate)
        return voice_features(waveform, rules.sample_rate)
    except FAILURES as error:
        return _problem(path, "unreadable", reason_of(error))


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
            many = that_many(damaged, "line", "are damaged; their recordings are computed again")
            logger.warning("%s: %s", file, many)

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
