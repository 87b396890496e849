"""Praat TextGrid files with tiers `words` and `phones`, as written by the Montreal Forced Aligner."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from phonate.config.errors import DataError


@dataclass(frozen=True)
class Span:
    """A label from `start` to `end`, in seconds; an empty label is a pause."""

    start: float
    end: float
    label: str


@dataclass(frozen=True)
class Grid:
    """One file: its words and phones in order."""

    path: Path
    words: list[Span]
    phones: list[Span]


def read(path: Path) -> Grid:
    """The two tiers of a file. Raises DataError for an invalid file."""
    from praatio.textgrid import openTextgrid

    try:
        grid = openTextgrid(str(path), includeEmptyIntervals=False, reportingMode="silence")
    except Exception as error:  # praatio raises various errors for damaged files
        raise DataError(f"{path}: not a readable TextGrid ({' '.join(str(error).split())[:100]})") from error
    tiers = {}
    for wanted in ("words", "phones"):
        # MFA calls the tiers of a recording with several speakers "NAME - words"
        named = [name for name in grid.tierNames if name == wanted or name.endswith(f" - {wanted}")]
        if len(named) != 1:
            raise DataError(f"{path}: has {len(named)} tiers called {wanted}; expected one")
        spans = [Span(*entry) for entry in grid.getTier(named[0]).entries]
        tiers[wanted] = spans
    return Grid(path, tiers["words"], tiers["phones"])


@dataclass(frozen=True)
class Found:
    """The files of a corpus."""

    paths: dict[int, Path]
    """Position of a recording -> its file."""
    problems: list[str]
    """A line for each recording without one."""


def in_folder(folder: Path, ids: Mapping[int, str]) -> Found:
    """The file of each recording in `ids` (position and id): `<id>.TextGrid` in `folder` or a subfolder (MFA makes
    one for each speaker).

    Raises DataError for a folder that does not exist.
    """
    if not folder.is_dir():
        raise DataError(f"data.alignments: {folder}: no such folder")
    by_name: dict[str, list[Path]] = {}
    for path in sorted(folder.rglob("*.TextGrid")):
        by_name.setdefault(path.stem, []).append(path)
    paths: dict[int, Path] = {}
    problems: list[str] = []
    for position, identity in ids.items():
        try:
            paths[position] = _chosen(folder, identity, by_name)
        except DataError as error:
            problems.append(str(error))
    return Found(paths, problems)


def _chosen(folder: Path, identity: str, by_name: Mapping[str, Sequence[Path]]) -> Path:
    direct = folder / f"{identity}.TextGrid"
    if direct.is_file():
        return direct
    # an id may include the speaker's folder, so that several files may match its last part
    found = by_name.get(identity.rsplit("/", 1)[-1], [])
    if len(found) > 1:
        raise DataError(f"{identity}: several TextGrids have its name ({found[0]}, {found[1]}); ids must be unique")
    if not found:
        raise DataError(f"{identity}: has no TextGrid in {folder}")
    return found[0]


def beside(recordings: Mapping[int, Path]) -> Found:
    """The TextGrid next to each recording in `recordings` (position and path)."""
    paths = {position: recording.with_suffix(".TextGrid") for position, recording in recordings.items()}
    there = {position: path for position, path in paths.items() if path.is_file()}
    missing = [path for position, path in paths.items() if position not in there]
    return Found(there, [f"{path}: no such file; durations: espeak needs speech made by espeak" for path in missing])


def fingerprint(paths: Sequence[Path]) -> str:
    """Fingerprint of every file's path, size and modification time."""
    digest = hashlib.blake2b(digest_size=8)
    for path in paths:
        status = path.stat()
        digest.update(repr((str(path), status.st_size, status.st_mtime_ns)).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()
