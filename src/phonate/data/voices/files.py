"""Recordings in a folder: whether there are any, their number, size and formats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from phonate.audio.decoding import AUDIO_SUFFIXES, USUAL_SUFFIXES, probe
from phonate.config.errors import DataError, InputError
from phonate.data.manifests.rows import Problem, audio_files, printable
from phonate.data.parallel import Progress, map_files
from phonate.data.progress import Stage

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
