"""The manifest of a checkpoint: size and SHA-256 of every file, and the check against them. No torch in this file."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from phonate.config.errors import CheckpointError
from phonate.training.checkpoints.files import (
    COMPRESSED,
    MANIFEST,
    METADATA,
    WEIGHTS,
    FileProblemError,
    Record,
    open_regular,
    read_bytes,
    read_json,
    render,
    sha256_of,
    write_durably,
)

FORMAT = 1
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Problem:
    """Why a file of a checkpoint can't be used."""

    file: str
    """Its name."""
    reason: str
    """Such as `SHA-256 differs`."""

    def __str__(self) -> str:
        return f"{self.file}: {self.reason}"


class DamagedCheckpointError(CheckpointError):
    """A checkpoint that can't be used."""

    def __init__(self, path: Path, problems: list[Problem]) -> None:
        self.path = path
        self.problems = tuple(problems)
        super().__init__(f"{path} is {self.description}")

    @property
    def description(self) -> str:
        """`damaged (state.json: SHA-256 differs)`."""
        return f"damaged ({'; '.join(map(str, self.problems))})"


def write_manifest(folder: Path, records: Mapping[str, Record]) -> None:
    """List size and SHA-256 of every file of a checkpoint: the last file written."""
    files = {name: {"size": record.size, "sha256": record.sha256} for name, record in sorted(records.items())}
    write_durably(folder / MANIFEST, render({"format": FORMAT, "files": files}))


def read_manifest(folder: Path) -> dict[str, Record]:
    """The manifest of a checkpoint. Raises FileProblemError when it is missing, damaged or of another format."""
    path = folder / MANIFEST
    document = read_json(path)
    if not isinstance(document, dict) or not isinstance(document.get("files"), dict):
        raise FileProblemError(path, "not a manifest")
    if document.get("format") != FORMAT:
        raise FileProblemError(path, f"format {str(document.get('format'))[:20]} is not known; update phonate")
    records = {name: _record(path, name, entry) for name, entry in document["files"].items()}
    if render(document) != read_bytes(path):
        raise FileProblemError(path, "changed since it was written")
    return records


def _record(manifest: Path, name: str, entry: Any) -> Record:
    """One entry. The name must be that of a file in the same folder: copies are made under it."""
    shown = repr(name if len(name) <= 80 else f"{name[:77]}...")
    if name in ("", ".", "..", MANIFEST) or {"/", "\\", "\0"} & set(name):
        raise FileProblemError(manifest, f"{shown} is not a plain file name")
    match entry:
        case {"size": int(size), "sha256": str(sha256)} if size >= 0 and _SHA256.fullmatch(sha256):
            return Record(size, sha256)
    raise FileProblemError(manifest, f"the entry of {shown} has no size and SHA-256")


def problems(folder: Path, hashes: bool = True, leave_out: Container[str] = ()) -> list[Problem]:
    """What is wrong with the files of a checkpoint; `hashes=False` compares only sizes. Empty: it is intact."""
    try:
        records = read_manifest(folder)
    except FileProblemError as error:
        return [Problem(error.path.name, error.reason)]
    found = [] if METADATA in records else [Problem(METADATA, "not in the manifest")]
    if not {WEIGHTS, WEIGHTS + COMPRESSED} & records.keys():
        found.append(Problem(WEIGHTS, "not in the manifest"))
    for name, record in records.items():
        if name not in leave_out and (reason := _reason(folder / name, record, hashes)):
            found.append(Problem(name, reason))
    return found


def _reason(path: Path, record: Record, hashes: bool) -> str | None:
    """Why a file does not match its record; None if it does."""
    try:
        with open_regular(path):
            status = path.stat()
        if status.st_size != record.size:
            return f"{status.st_size} bytes instead of {record.size}"
        if (
            hashes
            and _sha256_of(path.absolute(), (status.st_mtime_ns, status.st_ctime_ns, status.st_ino)) != record.sha256
        ):
            return "SHA-256 differs"
    except FileNotFoundError:
        return "missing"
    except OSError as error:
        return error.strerror or str(error)
    return None


@lru_cache(maxsize=4096)
def _sha256_of(path: Path, stamp: tuple[int, int, int]) -> str:
    """The digest of a file, which a process computes once while its times and its place on the disk are the same."""
    return sha256_of(path)
