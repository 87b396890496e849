"""The manifest and the metadata of a checkpoint, and the check of its files. No torch in this file."""

from __future__ import annotations

import json
import platform
import re
import socket
import sys
from collections.abc import Container, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import AwareDatetime, ConfigDict, Field

from phonate.compute.git import work_tree
from phonate.compute.system import open_regular
from phonate.config.errors import CheckpointError
from phonate.config.metrics import Better
from phonate.config.settings import Settings
from phonate.training.checkpoints.files import (
    COMPRESSED,
    MANIFEST,
    METADATA,
    WEIGHTS,
    FileProblemError,
    Record,
    read_bytes,
    read_json,
    render,
    sha256_of,
    write_durably,
)

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


# --------------------------------------------------------------------- `metadata.json` of a checkpoint


class Document(Settings):
    """A JSON file of ours. Metrics may be infinite or NaN, which JSON lacks: they become strings."""

    model_config = ConfigDict(allow_inf_nan=True, ser_json_inf_nan="strings", extra="ignore")

    def document(self) -> dict[str, Any]:
        """As plain JSON values."""
        return cast(dict[str, Any], json.loads(self.model_dump_json()))  # model_dump leaves NaN as it is


class CheckpointMetadata(Document):
    """`metadata.json` of a checkpoint."""

    timestamp: AwareDatetime
    """When it was saved, in UTC; later checkpoints of a run always have later times."""
    epoch: int
    """Epochs completed or begun, as the trainer counts them."""
    global_step: int
    """Optimizer steps done."""
    version: int | None = None
    """v1, v2, ... in the order of saving; null with `versioning: false`."""
    model_name: str = ""
    """Class of the model."""
    experiment_name: str = ""
    """Name of the run."""
    train_loss: float | None = None
    """Mean training loss of the last interval."""
    val_loss: float | None = None
    """Loss of the last validation."""
    metrics: dict[str, float] = Field(default_factory=dict)
    """Every metric known at the time of saving."""
    directions: dict[str, Better] = Field(default_factory=dict)
    """The better direction of those metrics of which it is known, by their names without `val_` or `train_`."""
    best_metric_name: str | None = None
    """The metric that chooses the best checkpoint."""
    best_metric_mode: Literal["min", "max"] = "min"
    """Whether that metric is better when lower or higher."""
    best_metric: float | None = None
    """Its best value up to this checkpoint, itself included."""
    is_best: bool = False
    """Whether that value was measured here: this was the best checkpoint when it was saved."""
    model_hash: str | None = None
    """SHA-256 over the weights (names, types, shapes and values: the uncompressed safetensors form)."""
    num_parameters: int = 0
    """Number of values in the weights, buffers included."""
    model_size_mb: float = 0.0
    """Size of the weights in 10^6 bytes."""
    learning_rate: float | None = None
    """Learning rate of the last step."""
    optimizer_state_available: bool = False
    """Whether a run can be resumed from it."""
    scheduler_state_available: bool = False
    """Whether the schedule's state is in it."""
    phonate_version: str = ""
    """Version of this package."""
    pytorch_version: str = ""
    """Version of torch."""
    cuda_version: str | None = None
    """CUDA version torch was built for; null without."""
    python_version: str | None = None
    """Version of Python; null with `track_system_info: false`, as the next two."""
    hostname: str | None = None
    """Name of the machine."""
    platform: str | None = None
    """Operating system and processor."""
    git_commit: str | None = None
    """Commit of the work tree that training was started in; null outside git or with `track_git_info: false`."""
    git_branch: str | None = None
    """Its branch; null with a detached HEAD."""
    git_dirty: bool | None = None
    """Whether tracked files differed from the commit; null when that is not known."""
    notes: str = ""
    """Free text."""
    tags: tuple[str, ...] = ()
    """Free words."""


def system_fields() -> dict[str, str]:
    """The metadata fields that describe this machine."""
    return {
        "hostname": socket.gethostname(),
        "platform": platform.platform(),
        "python_version": sys.version.split()[0],
    }


def git_fields(folder: Path) -> dict[str, str | bool | None]:
    """The metadata fields that describe the git work tree of `folder`; none outside a repository."""
    found = work_tree(folder)
    if found is None:
        return {}
    return {"git_commit": found.commit, "git_branch": found.branch, "git_dirty": found.dirty}


@cache
def phonate_version() -> str:
    """The installed version of this package."""
    return package_version("phonate")


def time_after(newest: datetime | None) -> datetime:
    """Now, or just after `newest` if the clock went back: the order of times is the order of saving."""
    now = datetime.now(UTC)
    if newest is None or now > newest:
        return now
    step = timedelta(microseconds=1)
    return newest + step if newest < datetime.max.replace(tzinfo=UTC) - step else newest
