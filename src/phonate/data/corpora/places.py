"""Where the recordings are that a list calls by names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

from phonate.audio.containers.kinds import AUDIO_SUFFIXES
from phonate.data.corpora.rows import audio_files, is_file, listed_file, nfc, split_of_name


class Places:
    """Recordings by the names that a list has for them: those beside it, as `listed_file` finds them; where it names
    none of these, any below its folder."""

    def __init__(self, file: Path, names: Iterable[str]) -> None:
        self.file = file
        self._names = names

    @cached_property
    def _below(self) -> Below | None:
        """Recordings below the folder, where none of the first names is beside the list."""
        if any(is_recording(self.file.parent, name) for name in self._names):
            return None
        return Below(audio_files(self.file.parent, problems=[]))

    def has(self, name: str) -> bool:
        """Whether a recording has this name."""
        if is_recording(self.file.parent, name):
            return True
        return self._below is not None and bool(self._below.files_named(name, self.file))

    def find(self, name: str) -> Path:
        """The file that has this name, or would have."""
        file = listed_file(self.file.parent, name)
        if self._below is None or is_file(file):
            return file
        found = self._below.files_named(name, self.file)
        return found[0] if len(found) == 1 else file


class Below:
    """Recordings anywhere in a folder, by their names without folders and suffixes."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._files: dict[str, list[Path]] = {}
        for file in files:
            self._files.setdefault(nfc(file.stem), []).append(file)
        # Where all are called by numbers, 1 is 0001.
        decimal = all(map(str.isdecimal, self._files))
        self._numbers = {int(stem): found for stem, found in self._files.items()} if decimal else {}
        self._folders = {part for found in self._files.values() for file in found for part in file.parent.parts}

    def files_named(self, name: str, listed: Path) -> list[Path]:
        """The recordings that the list `listed` means by a name: of several those nearest to it, that share most
        folders with the name, or lie in a folder of its split. Several where these are as near as each other."""
        *folders, last = name.strip().replace("\\", "/").split("/")
        stem, dot, suffix = last.rpartition(".")
        found = self._files.get(nfc(last)) or []
        if not found and dot and f".{suffix.lower()}" in AUDIO_SUFFIXES:
            found = self._files.get(nfc(stem)) or []
        if not found and last.isdecimal():
            found = self._numbers.get(int(last)) or []
        return self.nearest(found, listed, folders)

    def nearest(self, found: Sequence[Path], listed: Path, folders: Sequence[str] = ()) -> list[Path]:
        """Of recordings of one name those that a file `listed` means, by the folders that it is in and names: where
        these are folders of recordings, the recording lies in them."""
        where = self._folders & {*folders, *listed.parent.parts}
        return best([file for file in found if where <= {*file.parent.parts}], listed, folders)

    def of_stem(self, stem: str) -> list[Path]:
        """The recordings of a name without its suffix."""
        return self._files.get(nfc(stem), [])


class Within:
    """Recordings by the names that one list has for them."""

    def __init__(self, below: Below, file: Path) -> None:
        self._below, self._file = below, file

    def has(self, name: str) -> bool:
        """Whether a recording has this name."""
        return bool(self._below.files_named(name, self._file))

    def find(self, name: str) -> Path:
        """The file that has this name, or would have."""
        return next(iter(self._below.files_named(name, self._file)), self._file.parent / name)


def best(found: Sequence[Path], near: Path, folders: Sequence[str] = ()) -> list[Path]:
    """Of some files those that share most of `folders`, then of the folders above `near`, then of its other folders'
    names or its split."""
    if len(found) < 2:
        return list(found)
    scores = {}
    above = near.parent.parts
    split = split_of_name(near.stem)
    for file in found:
        parts = file.parent.parts
        shared = next((at for at, (one, other) in enumerate(zip(parts, above, strict=False)) if one != other), None)
        common = min(len(parts), len(above)) if shared is None else shared
        alike = len({*parts[common:]} & {*above[common:], near.stem})
        of_split = split is not None and split in map(split_of_name, parts[common:])
        scores[file] = (len({*parts} & {*folders}), common, alike, of_split)
    highest = max(scores.values())
    return [file for file, score in scores.items() if score == highest]


def is_recording(root: Path, name: str) -> bool:
    """Whether a list in `root` names a recording that is there."""
    if not name.strip():
        return False
    file = listed_file(root, name.strip())
    return file.suffix.lower() in AUDIO_SUFFIXES and is_file(file)
