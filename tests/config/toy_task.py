"""A task with nothing behind it, as a plug-in would register one."""

from __future__ import annotations

from pydantic import Field, PositiveInt, model_validator

from phonate.config.settings import Settings
from phonate.config.tasks import TASKS, TaskEntry, Traits


class Layers(Settings):
    """A section of the model."""

    count: PositiveInt = 2
    """How many layers."""
    widths: tuple[PositiveInt, ...] = (8, 8)
    """Width of each."""


class ToyData(Settings):
    """Data of the toy."""

    path: str
    """Folder of the recordings."""
    weights: dict[str, float] = Field(default_factory=dict)
    """A free mapping."""


class ToyModel(Settings):
    """Model of the toy."""

    d_model: PositiveInt = 16
    """Width."""
    heads: PositiveInt = 2
    """Attention heads."""
    layers: Layers = Layers()
    """The layers."""

    @model_validator(mode="after")
    def _divisible(self) -> ToyModel:
        if self.d_model % self.heads:
            raise ValueError(f"d_model {self.d_model} is no multiple of heads {self.heads}")
        return self


class ToyTask:
    """What would be trained, as far as its settings are checked. Imports no torch, unlike a task."""

    traits = Traits(None, frozenset(), random_features=True)

    def __init__(self, recipe: object) -> None:
        self.recipe = recipe


SIZES = {
    "tiny": {
        "model": {"d_model": 4},
        "training": {"optimizer": {"lr": 0.5}, "loss": {"weights": {"a": 1.0}}},
    },
    "large": {"model": {"d_model": 64}},
}

TASKS.register("toy", TaskEntry(ToyData, ToyModel, task=ToyTask, sizes=SIZES))
