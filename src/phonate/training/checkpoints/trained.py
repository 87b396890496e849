"""The one place that opens a checkpoint for inference: of a run or a folder, for one task, with its typed recipe."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from torch import Tensor, nn

from phonate.config.documents import parse
from phonate.config.errors import CheckpointError, RecipeError, WrongTaskError
from phonate.config.recipe import Recipe
from phonate.config.resolve import resolve_document
from phonate.training.checkpoints import best_or_latest, files
from phonate.training.checkpoints.comparison import misfits
from phonate.training.checkpoints.loading import load, read_description

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
            found = misfits(weights, module.state_dict()) or [_missing(weights, module)]
            more = f" and {len(found) - 1} more" if len(found) > 1 else ""
            raise CheckpointError(
                f"{self.path}: its weights do not fit the model of its recipe: {found[0]}{more}"
            ) from error


def _missing(weights: Mapping[str, Tensor], module: nn.Module) -> str:
    """What a checkpoint that fits otherwise lacks."""
    name = next((name for name in module.state_dict() if name not in weights), None)
    if name is None:
        return "its tensors can't be loaded"
    if hasattr(module.get_submodule(name.rpartition(".")[0]), "redraw_features"):
        return f"{name} is missing: the run did not save its random features (training.checkpoint.snapshot_features)"
    return f"{name} is missing"


def task_of_checkpoint(source: str | Path) -> str:
    """The task of a run's checkpoint, or of one checkpoint, without reading its weights.

    Raises CheckpointError where there is none.
    """
    return recipe_of(source).task


def open_trained(source: str | Path, task: str, recipe: type[RecipeT]) -> TrainedModel[RecipeT]:
    """The model of a run (its best checkpoint, or else its newest) or of one checkpoint.

    Args:
        source: A run's folder or a checkpoint's.
        task: The task it must be of.
        recipe: The type of that task's recipes.

    Raises CheckpointError where there is none, or it is damaged, or of another task (WrongTaskError, exit code 2).
    """
    checkpoint = load(best_or_latest(source), weights_only=True)
    found = _recipe(checkpoint.path, checkpoint.recipe_yaml)
    _require_task(source, found, task)
    metadata = InferenceMetadata(checkpoint.path / files.INFERENCE, checkpoint.inference)
    return TrainedModel(checkpoint.path, cast(RecipeT, found), metadata, checkpoint.weights)


def describe_trained(
    source: str | Path, task: str, recipe: type[RecipeT], *, weights_intact: bool = False
) -> TrainedDescription[RecipeT]:
    """As `open_trained`, without loading the weights. `weights_intact`: they are compared with the manifest, too."""
    path = best_or_latest(source)
    text, inference = read_description(path, weights_intact)
    found = _recipe(path, text)
    _require_task(source, found, task)
    return TrainedDescription(path, cast(RecipeT, found), InferenceMetadata(path / files.INFERENCE, inference))


def _require_task(source: str | Path, recipe: Recipe[Any, Any, Any], task: str) -> None:
    if recipe.task != task:
        raise WrongTaskError(f"{source}: holds a model of the task {recipe.task}, not of {task}")


def recipe_of(source: str | Path) -> Recipe[Any, Any, Any]:
    """The recipe of a run's checkpoint, or of one checkpoint, without reading its weights.

    Raises CheckpointError where there is none.
    """
    return _recipe(best_or_latest(source))


def _recipe(path: Path, text: str | None = None) -> Recipe[Any, Any, Any]:
    """The recipe in a checkpoint's folder."""
    file = path / files.RECIPE
    if text is None and not file.is_file():
        raise CheckpointError(f"{path}: holds no {files.RECIPE}, so its task is not known; export it again")
    document = parse(file.read_text(encoding="utf-8") if text is None else text, str(file))
    try:
        return resolve_document(document).recipe
    except RecipeError as error:
        if not (plugins := _plugins(path)):
            raise
        options = " ".join(f"--plugin {shlex.quote(one)}" for one in plugins)
        raise RecipeError(f"{error}\n{path}: its run was trained with {options}; give that here, too") from None


def _plugins(checkpoint: Path) -> list[str]:
    """The plug-ins that the run of a checkpoint was trained with."""
    file = next((one / files.PLUGINS for one in checkpoint.parents[:3] if (one / files.PLUGINS).is_file()), None)
    return [] if file is None else [one["path"] for one in json.loads(file.read_text(encoding="utf-8"))["plugins"]]
