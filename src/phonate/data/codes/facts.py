"""What is known of recordings and their parts: length, quality and a digest of the samples. Measured by several
threads, and remembered until a file changes."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from phonate.audio.decoding import probe, read_audio
from phonate.audio.quality.measures import AudioQuality, describe
from phonate.compute.limits import cores
from phonate.config.errors import DataError
from phonate.data.codes.locks import lock
from phonate.data.dialogues.dialogue import Audio
from phonate.data.progress import Stage, report_progress

VERSION = 1
"""Raise it when facts are measured otherwise."""
_AT_ONCE = 1024
_SLACK_SECONDS = 0.05  # as read_audio: times in lists are rounded


@dataclass(frozen=True)
class AudioFacts:
    """What was measured of an audio that can be used."""

    digest: str
    """Of the samples and their rate: the same for copies of a file."""
    quality: AudioQuality


@dataclass(frozen=True)
class Unusable:
    """Why an audio can't be used."""

    reason: str
    """A short category, by which problems are counted."""
    detail: str


Found = AudioFacts | Unusable


def measure(
    audios: Sequence[Audio], max_seconds: float, remembered: Path | None = None, threads: int = 0
) -> dict[Audio, Found]:
    """Decode every audio that is not remembered, all samples of it.

    Raises DataError if `remembered` can't be written.

    Args:
        audios: Each is measured once.
        max_seconds: Longer ones are not decoded, and unusable.
        remembered: A file of what was measured before, which is updated; None: measure all.
        threads: 0: one for each core.
    """
    distinct = list(dict.fromkeys(audios))
    if remembered is None:
        found = _measured_all(distinct, max_seconds, threads)
    else:
        try:
            with lock(remembered.with_suffix(".lock")):  # of several processes one measures
                found = _remembered(distinct, max_seconds, remembered, threads)
        except OSError as error:
            why = f"can't be written ({error.strerror}); name another folder by data.cache_dir"
            raise DataError(f"{remembered}: {why}") from error
    return {audio: _limited(audio, facts, max_seconds) for audio, facts in found.items()}


def _remembered(audios: Sequence[Audio], max_seconds: float, file: Path, threads: int) -> dict[Audio, Found]:
    """What was measured before, of any length since the limit may have been another, and the rest measured now."""
    known, stamps = _read(file), {audio: _stamp(audio) for audio in audios}
    found: dict[Audio, Found] = {
        audio: known[stamp] for audio, stamp in stamps.items() if stamp is not None and stamp in known
    }
    if missing := [audio for audio in audios if audio not in found]:
        found |= _measured_all(missing, max_seconds, threads)
        _write(file, [(stamps[audio], facts) for audio, facts in found.items()])
    return found


def _measured_all(audios: Sequence[Audio], max_seconds: float, threads: int) -> dict[Audio, Found]:
    found: dict[Audio, Found] = {}
    with ThreadPoolExecutor(threads or cores()) as pool:
        for start in range(0, len(audios), _AT_ONCE):  # not all as futures: there may be a million
            some = audios[start : start + _AT_ONCE]
            for audio, facts in zip(some, pool.map(lambda one: _measured(one, max_seconds), some), strict=True):
                found[audio] = facts
                report_progress(Stage.CHECKING, len(found), len(audios))
    return found


def _limited(audio: Audio, facts: Found, max_seconds: float) -> Found:
    if isinstance(facts, AudioFacts) and facts.quality.duration > max_seconds:
        return _too_long(audio, facts.quality.duration, max_seconds)
    return facts


def _too_long(audio: Audio, seconds: float, max_seconds: float) -> Unusable:
    return Unusable("too long", f"{audio.path}: {seconds:.1f} s, longer than data.max_seconds {max_seconds:g}")


def _measured(audio: Audio, max_seconds: float) -> Found:
    path = Path(audio.path)
    try:
        if not path.is_file():  # a pipe or a device would be read for ever
            return Unusable("missing file", f"{path} is not there; it is relative to {Path.cwd()}")
        if not path.stat().st_size:
            return Unusable("empty file", f"{path} holds no bytes")
        length = probe(path).duration
        end = length if audio.end is None else audio.end
        if not audio.start < min(end, length) or end > length + _SLACK_SECONDS:
            part = f"seconds {audio.start:g} to {end:g} of {path}, which has {length:.3f}"
            return Unusable("no such part", f"{part}; correct the times")
        if (seconds := min(end, length) - audio.start) > max_seconds:
            return _too_long(audio, seconds, max_seconds)
        waveform, rate = read_audio(path, offset=audio.start, duration=None if audio.end is None else end - audio.start)
    except (DataError, OSError, ValueError, RuntimeError, MemoryError) as error:  # as decoders raise for damaged files
        return Unusable("unreadable", " ".join(str(error).split()))
    digest = hashlib.blake2b(f"{rate}\n".encode(), digest_size=16)
    digest.update(waveform.tobytes())
    return AudioFacts(digest.hexdigest(), describe(waveform, rate))


def _stamp(audio: Audio) -> str | None:
    """What identifies an audio as long as its file is not changed; None: there is no file."""
    try:
        status = os.stat(audio.path)
    except (OSError, ValueError):  # ValueError: a name with a null byte
        return None
    path = os.path.abspath(audio.path)
    return json.dumps([path, audio.start, audio.end, status.st_size, status.st_mtime_ns])


def _read(file: Path) -> dict[str, AudioFacts]:
    """What was remembered. Lines that can't be read, of other versions for instance, are measured again."""
    found = {}
    with suppress(OSError, UnicodeDecodeError):
        for line in file.read_text(encoding="utf-8").splitlines():
            with suppress(ValueError, TypeError, KeyError):
                row: dict[str, Any] = json.loads(line)
                if row["version"] == VERSION:
                    found[str(row["stamp"])] = AudioFacts(str(row["digest"]), AudioQuality(**row["quality"]))
    return found


def _write(file: Path, found: Sequence[tuple[str | None, Found]]) -> None:
    """Remember what can be used; the file is replaced at once."""
    rows = [
        {"version": VERSION, "stamp": stamp, "digest": facts.digest, "quality": asdict(facts.quality)}
        for stamp, facts in found
        if stamp is not None and isinstance(facts, AudioFacts)
    ]
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        beside.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        beside.replace(file)
    finally:
        beside.unlink(missing_ok=True)
