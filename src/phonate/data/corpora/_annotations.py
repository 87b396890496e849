"""What formats of annotation files have in common: they name recordings, which lie somewhere near as audio files."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from phonate.audio.decoding import probe
from phonate.audio.readers import VIDEO_SUFFIXES
from phonate.config.errors import DataError
from phonate.data.manifests.rows import Problem, Segment, audio_files, composed, official_split, printable


class Recordings:
    """The audio files under a folder, by the names that annotations call them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.problems: list[Problem] = []
        """Folders that can't be read."""
        self._files: dict[str, list[Path]] = {}
        for file in audio_files(root, unreadable=self._unreadable):
            self._files.setdefault(printable(file.stem), []).append(file)
        # AMI's annotations say ES2011a, its files are called ES2011a.Mix-Headset.wav.
        short: dict[str, list[Path]] = {}
        for stem, files in self._files.items():
            short.setdefault(stem.partition(".")[0], []).extend(files)
        self._files = short | self._files
        self._alike: dict[str, list[Path]] = {}
        for stem, files in self._files.items():
            self._alike.setdefault(_plain(stem), []).extend(files)

    def _unreadable(self, folder: Path, error: OSError) -> None:
        place = printable(str(folder))
        self.problems.append(Problem("", place, "unreadable folder", error.strerror or str(error)))

    def _named(self, name: str) -> list[Path]:
        return self._files.get(name) or list(dict.fromkeys(self._alike.get(_plain(name), ())))

    def find(self, name: str, place: str) -> Path | Problem:
        """The file of the recording `name`, in which `_` may stand for a space, or why there is none."""
        found = self._named(name)
        if len(found) > 1:  # a video beside its sound
            found = [file for file in found if file.suffix.lower() not in VIDEO_SUFFIXES] or found
        if len(found) == 1:
            return found[0]
        root = printable(str(self.root))
        if not found:
            return Problem(name, place, "missing file", f"no recording {name!r} under {root}")
        files = ", ".join(printable(str(file.relative_to(self.root))) for file in found[:3])
        return Problem(name, place, "several files", f"recording {name!r} may be {files}; keep one of them")

    def others(self, names: Collection[str]) -> Iterator[Problem]:
        """A problem for each recording that none of `names` stands for."""
        known = {file for name in names for file in self._named(name)}
        for file in sorted({file for files in self._files.values() for file in files} - known):
            place = printable(str(file))
            yield Problem(printable(file.stem), place, "no annotation", "the recording is in no annotation file")


def _plain(name: str) -> str:
    """The name with `_` for spaces, which annotations can't hold, and in one form of Unicode."""
    return re.sub(r"[\s_]+", "_", composed(name))


def annotation_files(path: Path, suffix: str) -> list[Path]:
    """`path` itself, or the files with `suffix` in a folder and its folders."""
    if path.is_file():
        return [path] if path.suffix.lower() == suffix else []
    found = (file for depth in ("*", "*/*") for file in path.glob(depth) if file.suffix.lower() == suffix)
    return sorted(file for file in found if file.is_file() and not file.name.startswith("."))


def root_of(path: Path) -> Path:
    """The folder under which the recordings of annotations at `path` are looked for: that of a file, or the one above
    where there are no recordings in it."""
    if path.is_dir():
        return path
    beside = next(audio_files(path.parent, unreadable=lambda *_: None), None)
    return path.parent if beside is not None else path.parent.parent


def is_stereo(file: Path) -> bool:
    """Whether a channel can be chosen. Where the file is mono, or can't be read, which is reported when it is checked,
    there is none to choose."""
    try:
        return probe(file).channels > 1
    except DataError:
        return False


def split_of(file: Path, root: Path) -> str | None:
    """The official split that a file's name, or a folder above it, stands for."""
    inside = file.relative_to(root).parts if file.is_relative_to(root) else (file.name,)
    return next((part for part in reversed((*inside[:-1], file.stem)) if official_split(part)), None)


def ordered(segments: Iterable[Segment]) -> tuple[Segment, ...]:
    """Segments by their starts."""
    return tuple(sorted(segments, key=lambda one: (one.start, one.end or 0.0)))
