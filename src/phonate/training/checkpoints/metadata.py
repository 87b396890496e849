"""What is written about a checkpoint beside its tensors. No torch in this file."""

from __future__ import annotations

import json
import platform
import socket
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import ConfigDict, Field

from phonate.config.settings import Settings


class Document(Settings):
    """A JSON file of ours. Metrics may be infinite or NaN, which JSON lacks: they become strings."""

    model_config = ConfigDict(allow_inf_nan=True, ser_json_inf_nan="strings", extra="ignore")

    def document(self) -> dict[str, Any]:
        """As plain JSON values."""
        return cast(dict[str, Any], json.loads(self.model_dump_json()))  # model_dump leaves NaN as it is


class CheckpointMetadata(Document):
    """`metadata.json` of a checkpoint."""

    timestamp: datetime
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
    """Numbers in the weights, buffers included."""
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
    """Commit of the folder that training was started in; null outside git or with `track_git_info: false`."""
    git_branch: str | None = None
    """Its branch."""
    git_dirty: bool | None = None
    """Whether tracked files had been changed."""
    notes: str = ""
    """Free text."""
    tags: tuple[str, ...] = ()
    """Free words."""


def system_facts() -> dict[str, str]:
    """Host name, platform and Python version."""
    return {
        "hostname": socket.gethostname(),
        "platform": platform.platform(),
        "python_version": sys.version.split()[0],
    }


def git_facts(folder: Path) -> dict[str, str | bool]:
    """Commit, branch and whether tracked files were changed; empty outside a repository or without git."""
    try:
        commit = _git(folder, "rev-parse", "HEAD")
        branch = _git(folder, "rev-parse", "--abbrev-ref", "HEAD")
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):  # git is not installed, or this is not a repository
        return {}
    return {"git_commit": commit, "git_branch": branch, "git_dirty": bool(changed)}


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()


@cache
def phonate_version() -> str:
    """The installed version of this package."""
    return package_version("phonate")


def time_after(newest: datetime | None) -> datetime:
    """Now, or just after `newest` if the clock went back: the order of times is the order of saving."""
    now = datetime.now(UTC)
    return now if newest is None or now > newest else newest + timedelta(microseconds=1)
