"""`metadata.json` of a checkpoint. Imports no torch."""

from __future__ import annotations

import json
import platform
import socket
import sys
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import AwareDatetime, ConfigDict, Field

from phonate.compute.git import work_tree
from phonate.config.metrics import Better
from phonate.config.settings import Settings


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
    """Loss of the validation of these weights; null where there was none, as between two validations."""
    metrics: dict[str, float] = Field(default_factory=dict)
    """Means of training up to here, and what the validation of these weights measured."""
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
    tree = work_tree(folder)
    if tree is None:
        return {}
    return {"git_commit": tree.commit, "git_branch": tree.branch, "git_dirty": tree.dirty}


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
