"""A trained model as inference opens it: from a run or a checkpoint, for one task, on the features it knows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from phonate.config.documents import parse
from phonate.config.errors import CheckpointError
from phonate.config.resolve import resolve_document
from phonate.training.checkpoints import best_or_latest, files
from phonate.training.checkpoints.loading import load


@dataclass(frozen=True)
class TrainedModel:
    """What a checkpoint holds of a model."""

    path: Path
    """The checkpoint."""
    recipe: Any
    """That it was trained with."""
    weights: dict[str, Tensor]
    inference_metadata: dict[str, Any]
    """What its task exported with it."""

    def part(self, name: str) -> dict[str, Tensor]:
        """The weights of one part of the model, as that part calls them."""
        prefix = f"{name}."
        return {key.removeprefix(prefix): value for key, value in self.weights.items() if key.startswith(prefix)}

    def require_features(self, fingerprint: str) -> None:
        """Raise CheckpointError unless the model was trained on the features with this `fingerprint`."""
        if self.inference_metadata["features"] != fingerprint:
            raise CheckpointError(
                f"{self.path}: was trained on features {self.inference_metadata['features']}, this phonate makes "
                f"{fingerprint}; "
                "train it again, or use the version that it was trained with"
            )


def open_trained(source: str | Path, task: str) -> TrainedModel:
    """The model of a run (its best checkpoint, or else its newest) or of one checkpoint.

    Raises CheckpointError where there is none, or it is damaged, or of another task.
    """
    checkpoint = load(best_or_latest(source), weights_only=True)
    recipe = resolve_document(parse(checkpoint.recipe_yaml, str(checkpoint.path / files.RECIPE))).recipe
    if recipe.task != task:
        raise CheckpointError(f"{source}: holds a model of the task {recipe.task}, not of {task}")
    return TrainedModel(checkpoint.path, recipe, checkpoint.weights, checkpoint.inference)
