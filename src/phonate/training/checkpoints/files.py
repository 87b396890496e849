"""The files of a checkpoint: durable operations, the lock that only one process at a time holds, and the manifest; and
the checkpoints that come with phonate. Imports neither torch nor pydantic.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Collection, Container, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phonate.compute.system import LockTaken, ProcessLock, free_bytes, is_full, megabytes, open_regular, sync
from phonate.config.errors import CheckpointError, json_mistake, option

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# ----------------------------------------------------------------------------- Durable file operations

CHUNK = 8 << 20
"""Bytes handled at once: large enough that the time without the GIL dwarfs the time with it."""
MANIFEST = "manifest.json"
WEIGHTS = "weights.safetensors"
STATE_TENSORS = "state.safetensors"
STATE = "state.json"
METADATA = "metadata.json"
RECIPE = "recipe.yaml"
PLUGINS = "plugins.json"
ARCHITECTURE = "model.txt"
INFERENCE = "model.json"
COMPRESSED = ".zlib"
METRICS, SYSTEM, FIGURES = "metrics.jsonl", "system.json", "evaluation.json"
"""Of a run; the last is what `phonate evaluate` found."""

_SHARD = re.compile(r"(weights|state)-(\d{5})-of-(\d{5})\.safetensors(\.zlib)?")


def shard_name(name: str, rank: int, count: int) -> str:
    """The file in which `rank` of `count` stores its part of `name`, such as weights-00001-of-00002.safetensors."""
    stem, _, ending = name.partition(".")
    return f"{stem}-{rank + 1:05d}-of-{count:05d}.{ending}"


def shards_in(listed: Collection[str], name: str) -> list[str]:
    """The files among `listed` that together are `name`, one of each rank; empty where not all are there."""
    matches = [match for one in listed if (match := _SHARD.fullmatch(one)) and name.startswith(match[1])]
    names = sorted(match[0] for match in matches)
    if {int(match[3]) for match in matches} != {len(names)}:
        return []
    whole = [shard_name(name, rank, len(names)) for rank in range(len(names))]
    return names if [one.removesuffix(COMPRESSED) for one in names] == whole else []


_LEFTOVER = re.compile(
    r"\.step-\d{8,}(\.replaced)?\.(tmp|removed)|\.step-\d{8,}\.replaced|\.(best|checkpoint_history)\.json\.\d+\.tmp"
)
"""Temporary names of the store in a folder of checkpoints."""


@dataclass(frozen=True)
class Record:
    """Size in bytes and SHA-256 (hexadecimal) of a file."""

    size: int
    sha256: str


class FileProblemError(CheckpointError):
    """A file of a checkpoint can't be used. `reason` does not repeat the path."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


def write_durably(path: Path, content: bytes) -> Record:
    """Write `content`, sync it to disk and read it back. An OSError names the file."""
    try:
        with path.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:  # a failed write does not say which file it was
        raise OSError(error.errno, error.strerror, str(path)) from error
    drop_from_memory(path)
    if path.read_bytes() != content:
        raise OSError(errno.EIO, "the bytes read back differ from those written", str(path))
    return Record(len(content), hashlib.sha256(content).hexdigest())


def replace_file(path: Path, content: bytes) -> None:
    """Replace `path` atomically: a reader sees the old file or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write_durably(temporary, content)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


def commit(temporary: Path, final: Path) -> None:
    """Give a complete, synced folder its final name. A folder of that name is deleted only afterwards."""
    previous = final.with_name(f".{final.name}.replaced")
    sync(temporary)
    replaces = os.path.lexists(final)
    if replaces:
        delete(previous)
        final.rename(previous)  # killed here: `recover` gives it its name back
    temporary.rename(final)
    sync(final.parent)
    if replaces:
        delete(previous)


def remove_folder(folder: Path) -> None:
    """Delete a folder so that a kill midway never leaves a part of it under its name."""
    doomed = folder.with_name(f".{folder.name.removeprefix('.')}.removed")
    delete(doomed)  # left by a process that was killed here
    folder.rename(doomed)
    delete(doomed)


def delete(path: Path) -> None:
    """Delete a file or a folder, if it exists; of a symbolic link only the link."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def recover(folder: Path) -> None:
    """Finish or undo what a killed process left in `folder`. Only for the one process that writes there."""
    for leftover in folder.glob(".*"):
        if not _LEFTOVER.fullmatch(leftover.name):
            continue
        if leftover.name.endswith(".replaced"):
            final = leftover.with_name(leftover.name.removeprefix(".").removesuffix(".replaced"))
            if not os.path.lexists(final):
                leftover.rename(final)
                continue
        delete(leftover)


def render(document: Any, indent: int | None = 1) -> bytes:
    """JSON as we write it, byte for byte. Floats round-trip exactly; NaN and infinities raise ValueError."""
    return (json.dumps(document, indent=indent, allow_nan=False) + "\n").encode()


def read_bytes(path: Path) -> bytes:
    """The content of a regular file. Raises FileProblemError."""
    try:
        with open_regular(path) as file:
            return file.read()
    except OSError as error:
        raise FileProblemError(path, error.strerror or str(error)) from error


def read_json(path: Path) -> Any:
    """The JSON document at `path`. Raises FileProblemError."""
    try:
        return json.loads(read_bytes(path))
    except RecursionError:
        raise FileProblemError(path, "not readable as JSON (nested too deeply)") from None
    except ValueError as error:  # not JSON, or not UTF-8
        raise FileProblemError(path, f"not readable as JSON ({json_mistake(error)})") from error


def chunks_of(path: Path) -> Iterator[memoryview]:
    """The bytes of a regular file in large pieces; each piece is overwritten by the next."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        buffer = memoryview(bytearray(min(CHUNK, size + 1)))  # most files of a checkpoint are small
        while count := file.readinto(buffer):  # type: ignore[attr-defined]  # it is a raw file
            yield buffer[:count]


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    for chunk in chunks_of(path):
        digest.update(chunk)
    return digest.hexdigest()


def drop_from_memory(path: Path) -> None:
    """Drop a synced file from the page cache, so that reading it again reads the disk."""
    if not hasattr(os, "posix_fadvise"):  # macOS
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def explained(error: OSError, where: Path, needed: int) -> CheckpointError:
    """An error of the file system as one line that says what to do."""
    if is_full(error):
        return CheckpointError(no_space(where, needed))
    if error.errno == errno.EFBIG:
        return CheckpointError(f"{where}: a file of this size is not allowed here (see ulimit -f); {megabytes(needed)}")
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return CheckpointError(f"{where}: can't be written ({error.strerror}); choose another {option('output')}")
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        return CheckpointError(f"{where}: a file is where a folder should be; remove it or choose another folder")
    return CheckpointError(f"{where}: {error.strerror or error} ({error.filename or 'while saving'})")


def no_space(where: Path, needed: int) -> str:
    """The message for a full disk."""
    free = free_bytes(where)
    short = megabytes(max(needed - free, 100_000))
    return f"{where}: disk full: a checkpoint needs {megabytes(needed)}, {short} more than is free; make room there"


# -------------- A lock that only one process at a time holds: on a run, and on a folder of checkpoints

PATIENCE_SECONDS = 10.0
"""How long to wait: a killed process may need a moment to finish its last write and end."""


def folder_lock(folder: Path) -> ProcessLock:
    """A lock on `folder/.lock`, so that only one process trains there.

    Raises CheckpointError when another process holds it, or when `.lock` is something else than our file.
    """
    try:
        return ProcessLock(folder / ".lock", PATIENCE_SECONDS, CheckpointError)
    except LockTaken as error:
        raise CheckpointError(
            f"{folder}: another process ({error.owner}) is training here; stop it first, or train into another folder"
        ) from error


# ------------ The manifest of a checkpoint: size and SHA-256 of every file, and the check against them

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
    damage = [] if METADATA in records else [Problem(METADATA, "not in the manifest")]
    if not {WEIGHTS, WEIGHTS + COMPRESSED} & records.keys() and not shards_in(records, WEIGHTS):
        damage.append(Problem(WEIGHTS, "not in the manifest"))
    for name, record in records.items():
        if name not in leave_out and (reason := _reason(folder / name, record, hashes)):
            damage.append(Problem(name, reason))
    return damage


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


# ------------------------------------------------------------------- Checkpoints that come with phonate

BASE_VOICE = "base/voice"
"""Name of the voice that comes with phonate."""
BASE_VOCODER = "base/vocoder"
"""Name of its vocoder."""
BASE_DIARIZER = "base/diarizer"
"""Name of the diarizer that comes with phonate."""
PACKAGED = (BASE_VOICE, BASE_VOCODER, BASE_DIARIZER)
"""The models in the package."""
_PACKAGE = Path(__file__).parents[2]
RECORDINGS = _PACKAGE / "base" / "recordings"
"""A speaker's recordings with texts that come with the package."""


def packaged(path: Path) -> Path:
    """The folder of one of PACKAGED where no such folder is here; any other path as it is."""
    return _PACKAGE / path if not path.exists() and str(path) in PACKAGED else path


def is_packaged(path: Path) -> bool:
    """Whether `path` is one of PACKAGED, whose recordings are not here: folders of their names are others."""
    return any(path.resolve() == (_PACKAGE / name).resolve() for name in PACKAGED)


def is_checkpoint(path: Path) -> bool:
    """Whether `path` is a checkpoint's folder, damaged or not."""
    return (path / MANIFEST).exists() or (path / METADATA).exists()


# --------------------------------------------------- What a voice needs of a checkpoint to speak without torch

MEL = "mel"
"""In what a checkpoint holds for inference: the `MelFacts` of its features."""


def plain_facts(source: str | Path) -> tuple[Path, dict[str, Any]] | None:
    """The folder of a checkpoint and what it holds for inference, where that is enough without its recipe, and it and
    the weights are intact. None for everything else, such as a run: the recipe tells more, or what is wrong."""
    path = packaged(Path(source))
    if not is_checkpoint(path):
        return None
    try:
        others = read_manifest(path).keys() - {INFERENCE, WEIGHTS}
        facts = None if problems(path, leave_out=others) else read_json(path / INFERENCE)
    except FileProblemError:
        return None
    return (path, facts) if isinstance(facts, dict) and MEL in facts else None


def read_arrays(path: Path, part: str) -> dict[str, NDArray[np.float32]] | None:
    """The weights of the submodule `part` of the checkpoint in the folder `path`, which was verified, under that
    submodule's own names: without torch. None where NumPy can't read them: compressed, in bfloat16, or with NaN."""
    import numpy as np
    from safetensors import SafetensorError, safe_open

    prefix = f"{part}."
    try:
        with safe_open(path / WEIGHTS, "np") as file:
            names = [name for name in file.keys() if name.startswith(prefix)]  # noqa: SIM118 - it is no dictionary
            arrays = {name.removeprefix(prefix): file.get_tensor(name).astype(np.float32) for name in names}
    except (OSError, TypeError, SafetensorError):
        return None
    return arrays if all(np.isfinite(array).all() for array in arrays.values()) else None
