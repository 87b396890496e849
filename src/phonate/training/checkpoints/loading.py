"""Reading checkpoints: verified first, and the newest intact one when the newest is not."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from phonate.config.errors import CheckpointError
from phonate.training.checkpoints import files, listing, tree
from phonate.training.checkpoints.metadata import CheckpointMetadata
from phonate.training.checkpoints.snapshot import read_tensors

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """A loaded checkpoint, its tensors on the CPU."""

    path: Path
    metadata: CheckpointMetadata
    weights: dict[str, Tensor]
    state: Any
    """The tree given to `save_checkpoint`; None when only the weights were asked for."""
    recipe_yaml: str
    architecture: str
    inference: dict[str, Any]
    """What inference needs beside the weights."""
    skipped: tuple[str, ...] = ()
    """One line for each newer (or better) checkpoint that is damaged."""


def load(path: Path, verify: bool = True, weights_only: bool = False) -> Checkpoint:
    """The checkpoint in the folder `path`. Raises CheckpointError naming the checkpoint and the file.

    `verify` compares the SHA-256 of every file that is read; sizes are compared always.
    """
    if not path.is_dir():
        raise CheckpointError(f"{path}: no such checkpoint")
    left_out = (files.STATE, files.STATE_TENSORS, files.STATE_TENSORS + files.COMPRESSED) if weights_only else ()
    damage = files.problems(path, hashes=verify, leave_out=left_out)
    if damage:
        raise CheckpointError(f"{path} is damaged ({'; '.join(damage)})")
    metadata = listing.read_metadata(path)
    return Checkpoint(
        path=path,
        metadata=metadata,
        weights=read_tensors(path / files.WEIGHTS),
        state=None if weights_only else _read_state(path),
        recipe_yaml=_read_text(path / files.RECIPE),
        architecture=_read_text(path / files.ARCHITECTURE),
        inference=files.read_json(path / files.INFERENCE),
    )


def _read_state(path: Path) -> Any:
    if not (path / files.STATE).exists():
        raise CheckpointError(f"{path}: holds weights only (it was exported); training can't be resumed from it")
    document = files.read_json(path / files.STATE)
    return tree.decode(document, read_tensors(path / files.STATE_TENSORS))


def _read_text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def load_first_intact(
    infos: Iterable[listing.CheckpointInfo], verify: bool = True, weights_only: bool = False
) -> Checkpoint | None:
    """The first checkpoint of `infos` that is intact, with a line for each damaged one before it.

    None when `infos` is empty. Raises CheckpointError when there are some and none is intact.
    """
    damaged: list[tuple[listing.CheckpointInfo, str]] = []
    for item in infos:
        try:
            found = load(item.path, verify, weights_only)
        except CheckpointError as error:
            damaged.append((item, str(error).removeprefix(f"{item.path} ").removeprefix(f"{item.path}: ")))
            continue
        lines = [f"{bad.name} {why}; going back to {item.name}" for bad, why in damaged]
        for line in lines:
            _log.warning("%s", line)
        return replace(found, skipped=tuple(lines))
    if damaged:
        lines = [f"{bad.name} {why}" for bad, why in damaged]
        raise CheckpointError(f"{damaged[0][0].path.parent}: no intact checkpoint: {'; '.join(lines)}")
    return None
