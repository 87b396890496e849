"""Validation of the recordings of a folder: which can train a voice, and why the others can't.

Each file is opened once and only its beginning decoded, so that tens of thousands take minutes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from phonate.audio.decoding import read_start
from phonate.audio.quality.voice import VoiceLevels, voice_levels, voice_score
from phonate.config.errors import DataError
from phonate.data.manifests.rows import Problem, one_line, printable
from phonate.data.manifests.validation import Report
from phonate.data.parallel import Progress, map_files
from phonate.data.progress import Stage
from phonate.data.voices.files import VoiceDataDetector, crashed, wrong_suffix
from phonate.data.voices.settings import VoiceRules as VoiceRules

FAILURES = (DataError, OSError, ValueError, RuntimeError, MemoryError)
"""What decoders raise for damaged files."""
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
) -> tuple[list[VoiceFile], Report]:
    """The recordings that can be used, and the report on all.

    Folders and files that can't be read, too short ones and those of low quality are among `report.refused`, each with
    its reason; long ones, of which only the beginning is used, and wrong suffixes among `report.warnings`.
    """
    rules = rules or VoiceRules()
    files = detector.get_voice_files()
    report = Report(printable(str(detector.voice_data_dir)), "voice files", listed=len(files))
    report.refused.extend(detector.problems)
    usable: list[VoiceFile] = []
    for found in map_files(partial(examine, rules=rules), files, crashed, Stage.CHECKING, progress, processes):
        if isinstance(found, Problem):
            report.refused.append(found)
            continue
        usable.append(found)
        report.usable += 1
        report.seconds += found.seconds
        report.warnings.extend(_warnings(found))
    return usable, report


def examine(path: Path, rules: VoiceRules) -> VoiceFile | Problem:
    """Validate one file: its properties, or why it can't be used."""
    name = printable(str(path))
    try:
        waveform, info = read_start(path, rules.max_seconds)
    except FAILURES as error:
        return Problem(name, name, "unreadable", reason_of(error))
    if info.duration < rules.min_seconds:
        short = f"{info.duration:.2f} s, shorter than {rules.min_seconds:g}; record longer ones, or join them"
        return Problem(name, name, "too short", short)
    seconds = min(info.duration, rules.max_seconds)
    levels = voice_levels(waveform, info.sample_rate, rules.sample_rate)
    quality, lowered_by = voice_score(levels, seconds)
    if quality < rules.min_quality:
        low = f"quality {quality:.2f} is under {rules.min_quality:g}: {', '.join(lowered_by)}"
        return Problem(name, name, "low quality", low)
    if float(waveform.std()) < _NO_SIGNAL:
        return Problem(name, name, "silent", "a constant level (DC offset) and no sound; record it again")
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


def reason_of(error: BaseException) -> str:
    """A decoder's error as one printable line."""
    said = " ".join(printable(str(error)).split()) or type(error).__name__
    return said if isinstance(error, DataError | OSError) else f"{type(error).__name__}: {said}; export it again"


def problem_lines(problems: Sequence[Problem]) -> list[str]:
    """A table of reasons, files and details, one line each under a header; nothing for no problems."""
    if not problems:
        return []
    found = [(one.reason, one.place, one.detail) for one in problems]
    rows = [("why", "where", "detail"), *(tuple(map(one_line, row)) for row in found)]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    return [f"{why:<{widths[0]}}  {where:<{widths[1]}}  {detail}" for why, where, detail in rows]


def _warnings(file: VoiceFile) -> Iterator[Problem]:
    """Warnings about a recording that is used."""
    name = printable(str(file.path))
    for remark in file.remarks:
        yield Problem(name, name, "unusual file", printable(remark))
    if file.seconds < file.whole_seconds:
        detail = f"{file.whole_seconds:.1f} s, only the first {file.seconds:g} are used; cut it at pauses to use all"
        yield Problem(name, name, "too long", detail)
    suffix = wrong_suffix(file.path, file.format)
    if suffix is not None:
        yield Problem(name, name, "wrong suffix", f"{suffix}; used as it is")
