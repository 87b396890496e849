"""Files that survive a crash, and the manifest that tells whether they did. No torch in this file."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phonate.config.errors import CheckpointError

CHUNK = 8 << 20
"""Bytes handled at once: large enough that the time without the GIL dwarfs the time with it."""
MANIFEST = "manifest.json"
WEIGHTS = "weights.safetensors"
STATE_TENSORS = "state.safetensors"
STATE = "state.json"
METADATA = "metadata.json"
RECIPE = "recipe.yaml"
ARCHITECTURE = "model.txt"
INFERENCE = "model.json"
COMPRESSED = ".zlib"
FORMAT = 1


@dataclass(frozen=True)
class Record:
    """What the manifest says about a file."""

    size: int
    sha256: str


def write_durably(path: Path, content: bytes) -> Record:
    """Write `content`, wait until the disk has it, and read it back."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    drop_from_memory(path)
    if path.read_bytes() != content:
        raise OSError(errno.EIO, "reading it back gave other bytes than were written", str(path))
    return Record(len(content), hashlib.sha256(content).hexdigest())


def sync_file(path: Path) -> None:
    """Wait until the disk has what is in the file."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until the disk has the names in `folder`."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, content: bytes) -> None:
    """Put `content` at `path` in one step: a reader sees the old file or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    write_durably(temporary, content)
    temporary.replace(path)
    sync_folder(path.parent)


def commit(temporary: Path, final: Path) -> None:
    """Give a complete, synced folder its final name. A folder of that name is deleted only afterwards."""
    previous = final.with_name(f".{final.name}.replaced")
    sync_folder(temporary)
    if final.exists():
        shutil.rmtree(previous, ignore_errors=True)
        final.rename(previous)  # killed here: `recover` gives it its name back
    temporary.rename(final)
    sync_folder(final.parent)
    if previous.exists():
        shutil.rmtree(previous)


def remove_folder(folder: Path) -> None:
    """Delete a folder so that a kill midway never leaves a part of it under its name."""
    doomed = folder.with_name(f".{folder.name.removeprefix('.')}.removed")
    shutil.rmtree(doomed, ignore_errors=True)  # left by a process that was killed here
    folder.rename(doomed)
    shutil.rmtree(doomed)


def recover(folder: Path) -> None:
    """Finish or undo what a killed process left in `folder`. Only for the one process that writes there."""
    for leftover in folder.glob(".*"):
        if leftover.name.endswith(".replaced"):
            final = leftover.with_name(leftover.name.removeprefix(".").removesuffix(".replaced"))
            if not final.exists():
                leftover.rename(final)
                continue
        if leftover.name.endswith((".replaced", ".removed", ".tmp")):
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()


def render(document: Any, indent: int | None = 1) -> bytes:
    """JSON as we write it, byte for byte. Floats round-trip exactly; NaN and infinities raise ValueError."""
    return (json.dumps(document, indent=indent, allow_nan=False) + "\n").encode()


def read_json(path: Path) -> Any:
    """The JSON document at `path`. Raises CheckpointError naming the file."""
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:  # not JSON, or not UTF-8
        raise CheckpointError(f"{path}: not readable as JSON ({error})") from error


def write_manifest(folder: Path, records: Mapping[str, Record]) -> None:
    """List size and SHA-256 of every file of a checkpoint: the last file written."""
    files = {name: {"size": record.size, "sha256": record.sha256} for name, record in sorted(records.items())}
    write_durably(folder / MANIFEST, render({"format": FORMAT, "files": files}))


def read_manifest(folder: Path) -> dict[str, Record]:
    """The manifest of a checkpoint. Raises CheckpointError when absent, damaged or of another format."""
    path = folder / MANIFEST
    document = read_json(path)
    try:
        records = {name: Record(entry["size"], entry["sha256"]) for name, entry in document["files"].items()}
        written_by_us = render(document) == path.read_bytes()
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path}: not a manifest ({error!r})") from error
    if document.get("format") != FORMAT:
        raise CheckpointError(f"{path}: format {document.get('format')!r} is not known; update phonate")
    if not written_by_us:
        raise CheckpointError(f"{path}: changed since it was written")
    return records


def problems(folder: Path, hashes: bool = True, leave_out: Container[str] = ()) -> list[str]:
    """What is wrong with a checkpoint, one entry a file, such as `state.json: SHA-256 differs`."""
    try:
        records = read_manifest(folder)
    except CheckpointError as error:
        return [str(error).removeprefix(f"{folder}{os.sep}")]
    found = [] if METADATA in records else [f"{METADATA}: not in the manifest"]
    if not {WEIGHTS, WEIGHTS + COMPRESSED} & records.keys():
        found.append(f"{WEIGHTS}: not in the manifest")
    for name, record in records.items():
        if name not in leave_out and (problem := _problem(folder / name, record, hashes)):
            found.append(f"{name}: {problem}")
    return found


def _problem(path: Path, record: Record, hashes: bool) -> str | None:
    try:
        size = path.stat().st_size
        if size != record.size:
            return f"{size} bytes instead of {record.size}"
        if hashes and sha256_of(path) != record.sha256:
            return "SHA-256 differs"
    except FileNotFoundError:
        return "missing"
    except OSError as error:
        return error.strerror or str(error)
    return None


def chunks_of(path: Path) -> Iterator[memoryview]:
    """The bytes of a file in large pieces; each piece is overwritten by the next."""
    buffer = memoryview(bytearray(CHUNK))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            yield buffer[:count]


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    for chunk in chunks_of(path):
        digest.update(chunk)
    return digest.hexdigest()


def drop_from_memory(path: Path) -> None:
    """Ask the system to forget its copy of a synced file, so that reading it again reads the disk."""
    if not hasattr(os, "posix_fadvise"):  # macOS
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def existing_parent(path: Path) -> Path:
    """The nearest ancestor of `path`, itself included, that exists."""
    return next(folder for folder in (path, *path.absolute().parents) if folder.exists())


def free_bytes(path: Path) -> int:
    """Bytes free where `path` is or would be."""
    return shutil.disk_usage(existing_parent(path)).free


def explained(error: OSError, where: Path, needed: int) -> CheckpointError:
    """One line that says what to do about an error of the file system."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return CheckpointError(no_space(where, needed))
    if error.errno == errno.EFBIG:
        return CheckpointError(f"{where}: a file of this size is not allowed here (see ulimit -f); {megabytes(needed)}")
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return CheckpointError(f"{where}: can't be written ({error.strerror}); choose another --output folder")
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        return CheckpointError(f"{where}: a file is where a folder should be; remove it or choose another folder")
    return CheckpointError(f"{where}: {error.strerror or error} ({error.filename or 'while saving'})")


def no_space(where: Path, needed: int) -> str:
    """The line for a full disk."""
    free = megabytes(free_bytes(where))
    return f"{where}: disk full: a checkpoint needs {megabytes(needed)}, {free} is free; make room there"


def megabytes(count: int) -> str:
    """Bytes for people: `12.3 MB`."""
    return f"{count / 1e6:,.1f} MB"
