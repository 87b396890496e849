"""Reading checkpoints: files are verified first, and a damaged checkpoint is skipped for the next one."""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from phonate.config.errors import CheckpointError
from phonate.training.checkpoints import files, listing, tree
from phonate.training.checkpoints.copies import TRAINING_ONLY
from phonate.training.checkpoints.files import FileProblemError
from phonate.training.checkpoints.manifest import DamagedCheckpointError, Problem, problems, read_manifest
from phonate.training.checkpoints.metadata import CheckpointMetadata
from phonate.training.checkpoints.snapshot import first_nan, read_tensors

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
    """What inference needs besides the weights (`model.json`)."""
    skipped: tuple[str, ...] = ()
    """One line for each newer (or better) checkpoint that is damaged."""


def load(path: Path, verify: bool = True, weights_only: bool = False) -> Checkpoint:
    """The checkpoint in the folder `path`. Raises CheckpointError naming the checkpoint and the file.

    Only files that the manifest lists are read. `verify` compares the SHA-256 of each; sizes are compared always.
    """
    if not path.is_dir():
        raise CheckpointError(f"{path}: no such checkpoint")
    left_out = TRAINING_ONLY if weights_only else frozenset()
    if damage := problems(path, hashes=verify, leave_out=left_out):
        raise DamagedCheckpointError(path, damage)
    try:
        return _read(path, weights_only)
    except FileProblemError as error:
        raise DamagedCheckpointError(path, [Problem(error.path.name, error.reason)]) from error


def _read(path: Path, weights_only: bool) -> Checkpoint:
    listed = read_manifest(path).keys()
    metadata = listing.read_metadata(path)
    weights = _tensors(path, files.WEIGHTS, listed, largest=metadata.model_size_mb)
    if (name := first_nan(weights)) is not None:
        raise FileProblemError(path / files.WEIGHTS, f"{name} holds NaN")
    return Checkpoint(
        path=path,
        metadata=metadata,
        weights=weights,
        state=None if weights_only else _state(path, listed),
        recipe_yaml=_text(path, files.RECIPE, listed),
        architecture=_text(path, files.ARCHITECTURE, listed),
        inference=_inference(path, listed),
    )


def read_description(path: Path, weights_intact: bool = False) -> tuple[str, dict[str, Any]]:
    """The recipe's text and what inference needs (`model.json`) of the checkpoint in the folder `path`.

    Only these files are verified, or with `weights_intact` the weights too. Raises CheckpointError.
    """
    if not path.is_dir():
        raise CheckpointError(f"{path}: no such checkpoint")
    try:
        listed = read_manifest(path).keys()
        unread = TRAINING_ONLY if weights_intact else listed - {files.RECIPE, files.INFERENCE}
        if damage := problems(path, leave_out=unread):
            raise DamagedCheckpointError(path, damage)
        return _text(path, files.RECIPE, listed), _inference(path, listed)
    except FileProblemError as error:
        raise DamagedCheckpointError(path, [Problem(error.path.name, error.reason)]) from error


def _inference(path: Path, listed: Container[str]) -> dict[str, Any]:
    inference = files.read_json(path / files.INFERENCE) if files.INFERENCE in listed else {}
    if not isinstance(inference, dict):
        raise FileProblemError(path / files.INFERENCE, "not a mapping")
    return inference


def _tensors(path: Path, name: str, listed: Container[str], largest: float | None = None) -> dict[str, Tensor]:
    """The tensors of the file `name`, whichever form of it is in the manifest; `largest` in 10^6 bytes."""
    limit = None if not largest else round(largest * 1e6)
    return read_tensors(path / (name if name in listed else name + files.COMPRESSED), limit)


def _state(path: Path, listed: Container[str]) -> Any:
    if files.STATE not in listed:
        raise CheckpointError(f"{path}: holds weights only (it was exported); training can't be resumed from it")
    document = files.read_json(path / files.STATE)
    tensors = _tensors(path, files.STATE_TENSORS, listed)
    try:
        return tree.decode(document, tensors)
    except CheckpointError as error:
        raise FileProblemError(path / files.STATE, str(error)) from error


def _text(path: Path, name: str, listed: Container[str]) -> str:
    if name not in listed:
        return ""
    try:
        return files.read_bytes(path / name).decode("utf-8")
    except UnicodeDecodeError as error:
        raise FileProblemError(path / name, "not UTF-8") from error


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
        except DamagedCheckpointError as error:
            damaged.append((item, f"is {error.description}"))
        except CheckpointError as error:  # an exported one, say
            damaged.append((item, f"can't be used ({error})"))
        else:
            lines = [f"{bad.name} {why}; going back to {item.name}" for bad, why in damaged]
            for line in lines:
                _log.warning("%s", line)
            return replace(found, skipped=tuple(lines))
    if damaged:
        lines = [f"{bad.name} {why}" for bad, why in damaged]
        raise CheckpointError(f"{damaged[0][0].path.parent}: no intact checkpoint: {'; '.join(lines)}")
    return None
