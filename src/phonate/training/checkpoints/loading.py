"""Reading checkpoints: verified first, opened for inference, compared with each other."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from phonate.config.documents import parse
from phonate.config.errors import CheckpointError, InputError
from phonate.config.resolve import Recipe, resolve_document
from phonate.config.tasks import shortened
from phonate.training.checkpoints import best_or_latest, files, listing
from phonate.training.checkpoints.files import (
    RECIPE,
    DamagedCheckpointError,
    FileProblemError,
    Problem,
    problems,
    read_manifest,
)
from phonate.training.checkpoints.listing import TRAINING_ONLY
from phonate.training.checkpoints.metadata import CheckpointMetadata
from phonate.training.plan import earlier_options

if TYPE_CHECKING:
    from torch import Tensor, nn

_log = logging.getLogger(__name__)


# --------------------------------------------------------------------------------- Reading checkpoints


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
    left_out: Container[str] = TRAINING_ONLY if weights_only else ()
    if damage := problems(path, hashes=verify, leave_out=left_out):
        raise DamagedCheckpointError(path, damage)
    try:
        return _read(path, weights_only)
    except FileProblemError as error:
        raise DamagedCheckpointError(path, [Problem(error.path.name, error.reason)]) from error


def _read(path: Path, weights_only: bool) -> Checkpoint:
    from phonate.training.checkpoints.snapshot import first_nan

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
        unread: Container[str] = TRAINING_ONLY if weights_intact else listed - {files.RECIPE, files.INFERENCE}
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


def _tensors(path: Path, name: str, listed: Collection[str], largest: float | None = None) -> dict[str, Tensor]:
    """The tensors of the file `name`, whichever form of it is in the manifest; `largest` in 10^6 bytes."""
    from phonate.training.checkpoints.snapshot import read_shards, read_tensors

    limit = None if not largest else round(largest * 1e6)
    if shards := files.shards_in(listed, name):
        return read_shards([path / one for one in shards], limit)
    return read_tensors(path / (name if name in listed else name + files.COMPRESSED), limit)


def _state(path: Path, listed: Collection[str]) -> Any:
    if files.STATE not in listed:
        raise CheckpointError(f"{path}: holds weights only (it was exported); training can't be resumed from it")
    from phonate.training.checkpoints import snapshot

    document = files.read_json(path / files.STATE)
    tensors = _tensors(path, files.STATE_TENSORS, listed)
    try:
        return snapshot.decode(document, tensors)
    except CheckpointError as error:
        raise FileProblemError(path / files.STATE, str(error)) from error


def _text(path: Path, name: str, listed: Container[str]) -> str:
    if name not in listed:
        return ""
    try:
        return files.read_bytes(path / name).decode("utf-8")
    except UnicodeDecodeError as error:
        raise FileProblemError(path / name, "not UTF-8") from error


def load_first_intact(infos: Iterable[listing.CheckpointInfo], verify: bool = True) -> Checkpoint | None:
    """The first checkpoint of `infos` that is intact, with a line for each damaged one before it.

    None when `infos` is empty. Raises CheckpointError when there are some and none is intact.
    """
    damaged: list[tuple[listing.CheckpointInfo, str]] = []
    for item in infos:
        try:
            checkpoint = load(item.path, verify)
        except DamagedCheckpointError as error:
            damaged.append((item, f"is {error.description}"))
        except CheckpointError as error:  # an exported one, say
            damaged.append((item, f"can't be used ({error})"))
        else:
            lines = [f"{bad.name} {why}; going back to {item.name}" for bad, why in damaged]
            for line in lines:
                _log.warning("%s", line)
            return replace(checkpoint, skipped=tuple(lines))
    if damaged:
        lines = [f"{bad.name} {why}" for bad, why in damaged]
        raise CheckpointError(f"{damaged[0][0].path.parent}: no intact checkpoint: {'; '.join(lines)}")
    return None


# ------------------------ The differences between two checkpoints, and between the recipes of two runs


@dataclass(frozen=True)
class TensorChange:
    """A tensor that both checkpoints have, with other values, shape or type."""

    name: str
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    largest: float | None
    """Largest absolute difference of an element. None when shape or type differ."""
    relative: float | None
    """Norm of the difference over the norm of the first. None when shape or type differ."""


@dataclass(frozen=True)
class Comparison:
    """The differences, from the first checkpoint to the second."""

    metadata: dict[str, tuple[Any, Any]]
    """Fields of the metadata that differ, as JSON values."""
    equal: int
    """Tensors of the weights that are bit for bit the same."""
    changed: tuple[TensorChange, ...]
    """Those that are not, the most changed first."""
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]


@dataclass(frozen=True)
class SettingChange:
    """A setting that two resolved recipes have with different values."""

    path: str
    """Such as `training.optimizer.lr`."""
    before: Any
    now: Any

    def __str__(self) -> str:
        return f"{self.path} {_short(self.before)} -> {_short(self.now)}"


def changed_settings(before: str, now: str) -> list[SettingChange]:
    """The settings that differ between two resolved recipes, given as YAML. Those that only one has are left out: an
    older version did not know them. Raises RecipeError."""
    return list(_changed("", parse(before, RECIPE).values, parse(now, RECIPE).values))


def _changed(path: str, before: Any, now: Any) -> Iterator[SettingChange]:
    if isinstance(before, dict) and isinstance(now, dict):
        for key in before:
            if key not in now:
                continue
            yield from _changed(f"{path}.{key}" if path else key, before[key], now[key])
    elif before != now:
        yield SettingChange(path, before, now)


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 40 else f"{text[:10]}...{text[-27:]}"  # paths differ at their ends


def difference(there: Any, here: Any) -> str:
    """How two unequal JSON values differ, in words: what is new or missing where they are lists or hold lists."""
    if isinstance(there, dict) and isinstance(here, dict):
        keys = [key for key in {**there, **here} if there.get(key) != here.get(key)]
        return ", ".join(f"{key}: {difference(there.get(key), here.get(key))}" for key in keys)
    if not isinstance(there, list) or not isinstance(here, list):
        return f"{_short(there)} there, {_short(here)} here"
    new, missing = ([str(one) for one in a if one not in b] for a, b in ((here, there), (there, here)))
    parts = [f"{how}: {shortened(names)}" for how, names in (("new", new), ("missing", missing)) if names]
    return ", ".join(parts) or "in another order"


def misfits(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> list[str]:
    """Why tensors can't be put into a model that has `wanted`: a line for each unknown name and other shape."""
    differences = []
    for name, tensor in tensors.items():
        if name not in expected:
            differences.append(f"{name} is not in this model")
        elif tensor.shape != expected[name].shape:
            differences.append(f"{name} is {tuple(tensor.shape)} there and {tuple(expected[name].shape)} here")
    return differences


def compare(first: Checkpoint, second: Checkpoint) -> Comparison:
    """Compare metadata and weights of two checkpoints."""
    one, two = first.metadata.document(), second.metadata.document()
    changed = _changes(first.weights, second.weights)
    return Comparison(
        metadata={key: (one[key], two[key]) for key in one if one[key] != two[key]},
        equal=len(first.weights.keys() & second.weights.keys()) - len(changed),
        changed=tuple(sorted(changed, key=lambda change: -(change.relative or float("inf")))),
        only_first=tuple(sorted(first.weights.keys() - second.weights.keys())),
        only_second=tuple(sorted(second.weights.keys() - first.weights.keys())),
    )


def _changes(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> list[TensorChange]:
    import torch

    changes = []
    for name in sorted(first.keys() & second.keys()):
        a, b = first[name], second[name]
        shapes = tuple(a.shape), tuple(b.shape)
        if a.shape != b.shape or a.dtype != b.dtype:
            changes.append(TensorChange(name, shapes, None, None))
        elif a.contiguous().flatten().view(torch.uint8).ne(b.contiguous().flatten().view(torch.uint8)).any():
            wide = torch.complex128 if a.is_complex() else torch.float64
            a, difference = a.to(wide), b.to(wide) - a.to(wide)
            norm = float(a.norm())
            relative = float(difference.norm()) / norm if norm else float("inf")
            changes.append(TensorChange(name, shapes, float(difference.abs().max()), relative))
    return changes


# ------------------------------------------------- The one place that opens a checkpoint for inference

RecipeT = TypeVar("RecipeT", bound=Recipe[Any, Any, Any])


class InferenceMetadata(dict[str, Any]):
    """`model.json` of a checkpoint. A missing key is a CheckpointError that names the file."""

    def __init__(self, path: Path, content: Mapping[str, Any]) -> None:
        super().__init__(content)
        self.path = path

    def __missing__(self, key: str) -> Any:
        raise CheckpointError(f"{self.path}: has no {key!r}, which inference needs; export or train the model again")


@dataclass(frozen=True)
class TrainedDescription(Generic[RecipeT]):
    """What a checkpoint says of its model, without the weights."""

    path: Path
    """The checkpoint."""
    recipe: RecipeT
    """The recipe it was trained with."""
    inference_metadata: dict[str, Any]
    """What `Task.inference_metadata` gave."""

    def require_features(self, fingerprint: str) -> None:
        """Raise CheckpointError unless the model was trained on the features with this `fingerprint`."""
        if self.inference_metadata["features"] != fingerprint:
            raise CheckpointError(
                f"{self.path}: was trained on features {self.inference_metadata['features']}, this version of phonate "
                f"computes {fingerprint}; train it again, or use the version that it was trained with"
            )


@dataclass(frozen=True)
class TrainedModel(TrainedDescription[RecipeT]):
    """What a checkpoint holds of a model."""

    weights: dict[str, Tensor]

    def part(self, name: str) -> dict[str, Tensor]:
        """The weights of the submodule `name`, under that submodule's own names."""
        prefix = f"{name}."
        return {key.removeprefix(prefix): value for key, value in self.weights.items() if key.startswith(prefix)}

    def load_into(self, module: nn.Module, part: str | None = None) -> None:
        """Put the weights, or those of the submodule `part`, into `module`. Raises CheckpointError."""
        weights = self.weights if part is None else self.part(part)
        try:
            module.load_state_dict(weights)
        except RuntimeError as error:
            differences = misfits(weights, module.state_dict()) or [_missing(weights, module)]
            more = f" and {len(differences) - 1} more" if len(differences) > 1 else ""
            raise CheckpointError(
                f"{self.path}: its weights do not fit the model of its recipe: {differences[0]}{more}"
            ) from error


def _missing(weights: Mapping[str, Tensor], module: nn.Module) -> str:
    """What a checkpoint that fits otherwise lacks."""
    name = next((name for name in module.state_dict() if name not in weights), None)
    if name is None:
        return "its tensors can't be loaded"
    if hasattr(module.get_submodule(name.rpartition(".")[0]), "redraw_features"):
        return f"{name} is missing: the run did not save its random features (training.checkpoint.snapshot_features)"
    return f"{name} is missing"


def task_of_checkpoint(source: str | Path, expected: str | None = None) -> str:
    """The task of a run's checkpoint, or of one checkpoint, without reading its weights. `expected`: the task that is
    looked for, for errors.

    Raises CheckpointError where there is none.
    """
    return recipe_of(source, expected).task


def open_trained(source: str | Path, task: str, recipe: type[RecipeT]) -> TrainedModel[RecipeT]:
    """The model of a run (its best checkpoint, or else its newest) or of one checkpoint.

    Args:
        source: A run's folder or a checkpoint's.
        task: The task it must be of.
        recipe: The type of that task's recipes.

    Raises CheckpointError where there is none, or it is damaged, or of another task (WrongTaskError, exit code 2).
    """
    checkpoint = load(best_or_latest(source, task), weights_only=True)
    own = _recipe(checkpoint.path, checkpoint.recipe_yaml)
    _require_task(source, own, task)
    listing.tell_of_unfinished(Path(source), checkpoint.path)
    metadata = InferenceMetadata(checkpoint.path / files.INFERENCE, checkpoint.inference)
    return TrainedModel(checkpoint.path, cast(RecipeT, own), metadata, checkpoint.weights)


def describe_trained(
    source: str | Path, task: str, recipe: type[RecipeT], *, weights_intact: bool = False
) -> TrainedDescription[RecipeT]:
    """As `open_trained`, without loading the weights. `weights_intact`: they are compared with the manifest, too."""
    path = best_or_latest(source, task)
    text, inference = read_description(path, weights_intact)
    own = _recipe(path, text)
    _require_task(source, own, task)
    listing.tell_of_unfinished(Path(source), path)
    return TrainedDescription(path, cast(RecipeT, own), InferenceMetadata(path / files.INFERENCE, inference))


def _require_task(source: str | Path, recipe: Recipe[Any, Any, Any], task: str) -> None:
    if recipe.task != task:
        raise listing.wrong_task(source, recipe.task, task)


def recipe_of(source: str | Path, task: str | None = None) -> Recipe[Any, Any, Any]:
    """The recipe of a run's checkpoint, or of one checkpoint, without reading its weights. `task`: see
    `best_or_latest`.

    Raises CheckpointError where there is none.
    """
    return _recipe(best_or_latest(source, task))


@lru_cache(maxsize=16)
def _resolved(text: str, name: str) -> Recipe[Any, Any, Any]:
    """The recipe of a checkpoint, for inference; one start may ask for it three times."""
    document = parse(text, name)
    return resolve_document(document, earlier_options(document), trains=False).recipe


def _recipe(path: Path, text: str | None = None) -> Recipe[Any, Any, Any]:
    file = path / files.RECIPE
    if text is None and not file.is_file():
        raise CheckpointError(f"{path}: holds no {files.RECIPE}, so its task is not known; export it again")
    with listing.naming_plugins(path):
        return _resolved(file.read_text(encoding="utf-8") if text is None else text, str(file))


# ------------------------------- Sources: what model cards say of the recordings that models learnt from

CARD = "MODEL_CARD.md"
_SOURCES = ("speakers", "recordings", "sources", "licence")
"""Rows of a checkpoint's own card that say more than its files do."""


def sources_of(source: str | Path | None, name: str = "") -> dict[str, str]:
    """What the model card in a checkpoint says of its speakers, recordings and licence, or else that of the model which
    it began from, and so on. With a `name` each row says that it is of that model. Empty where nothing is there."""
    known: set[Path] = set()
    while source is not None:
        try:
            checkpoint = best_or_latest(source)
        except (CheckpointError, InputError):  # it may be gone
            return {}
        if checkpoint in known:
            return {}
        known.add(checkpoint)
        if (card := checkpoint / CARD).is_file():
            rows = re.findall(r"^\| ([^|]+) \| (.+) \|$", card.read_text(encoding="utf-8"), re.MULTILINE)
            return {f"{key} of {name}" if name else key: value for key, value in rows if key in _SOURCES}
        if not name:
            return {}
        source = _recipe(checkpoint).training.init_from
    return {}


def sources_of_start(checkpoint: Path) -> dict[str, str]:
    """`sources_of` the model that the training of a checkpoint began from."""
    if (checkpoint / CARD).is_file():  # which says it
        return {}
    start = _recipe(checkpoint).training.init_from
    return {} if start is None else sources_of(start, f"{start}, from which training began")
