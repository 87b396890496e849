"""Folders of voice recordings: which files there are, which can train a voice, and why the others can't.

Each file is opened once and only its beginning decoded, so that tens of thousands take minutes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from phonate.audio.decoding import probe, read_start
from phonate.audio.quality import VoiceLevels, voice_levels, voice_score
from phonate.audio.readers import AUDIO_SUFFIXES, USUAL_SUFFIXES
from phonate.config.errors import DataError, InputError
from phonate.data.manifests.rows import Problem, audio_files, one_line, printable
from phonate.data.manifests.validation import Report, Unusable, decoding, require_length, unusual
from phonate.data.parallel import Progress, map_files
from phonate.data.progress import Stage
from phonate.data.voices.settings import VoiceRules as VoiceRules

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
        found = map_files(_check_format, self.get_voice_files(), crashed, Stage.FORMATS, progress)
        return [problem for problem in found if problem is not None]

    def text(self) -> str:
        """The result as printed by `phonate session --check-voice-data`."""
        rule = 80 * "="
        lines = ["", rule, "Voice Training Data Check", rule, ""]
        folder, stats = printable(str(self.voice_data_dir)), self.get_stats()
        if stats["total_files"]:
            lines += [f"✅ Voice data found in: {folder}", "", "Statistics:"]
            lines += [f"  Total files: {stats['total_files']}", f"  Total size: {stats['total_size_mb']:.2f} MB"]
            lines += ["  Formats:", *(f"    {suffix}: {count} files" for suffix, count in stats["formats"].items())]
        else:
            lines += [f"❌ No voice data found in: {folder}", "", f"Supported formats: {', '.join(USUAL_SUFFIXES)}"]
        return "\n".join(lines)

    def _walk(self) -> Iterator[Path]:
        self.problems = []
        if self.voice_data_dir.is_file():
            raise InputError(f"{self.voice_data_dir}: is a file; give the folder that it is in")
        if not self.voice_data_dir.exists():
            return iter(())
        return audio_files(self.voice_data_dir, unreadable=self._passed_over)

    def _passed_over(self, folder: Path, error: OSError) -> None:
        name = printable(str(folder))
        self.problems.append(Problem(name, name, "unreadable folder", f"{error.strerror}; what is in it is left out"))


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:  # a link that leads nowhere
        return 0


def _check_format(file: Path) -> Problem | None:
    name = printable(str(file))
    try:
        info = probe(file)
    except (DataError, OSError) as error:
        return Problem(name, name, "unreadable", printable(str(error)))
    detail = wrong_suffix(file, info.format)
    return None if detail is None else Problem(name, name, "wrong suffix", f"{detail}; rename it")


def wrong_suffix(file: Path, format: str) -> str | None:
    """What is wrong with the suffix of a file that holds `format`; None if nothing is."""
    suffix = file.suffix.lower()
    expected = _CONTAINERS.get(suffix)
    return None if expected is None or format in expected else f"holds {format}, not {suffix}"


def crashed(file: Path) -> Problem:
    """The problem of a file at which its reader process died."""
    name = printable(str(file))
    return Problem(name, name, "unreadable", "the decoder crashed on it; export it again")


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
    try:
        with decoding():
            waveform, info = read_start(path, rules.max_seconds)
        require_length(info.duration, "rules", rules.min_seconds)
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
    for finding in unusual(file.remarks):
        yield Problem(name, name, finding.reason, finding.detail)
    if file.seconds < file.whole_seconds:
        detail = f"{file.whole_seconds:.1f} s, only the first {file.seconds:g} are used; cut it at pauses to use all"
        yield Problem(name, name, "too long", detail)
    suffix = wrong_suffix(file.path, file.format)
    if suffix is not None:
        yield Problem(name, name, "wrong suffix", f"{suffix}; used as it is")
