"""A recipe: one document with the task, the data, the model and the training."""

from __future__ import annotations

from typing import Generic, Literal, TypeVar

from phonate.config.settings import Settings

DataT = TypeVar("DataT", bound=Settings)
ModelT = TypeVar("ModelT", bound=Settings)
TrainingT = TypeVar("TrainingT", bound=Settings)

Size = Literal["tiny", "small", "medium", "default", "large"]


class Recipe(Settings, Generic[DataT, ModelT, TrainingT]):
    """`task`, `data`, `model` and `training`, typed by the task that it names."""

    task: str
    """What is trained: a registered task such as conversion."""
    size: Size = "default"
    """Sets the model's and the optimizer's numbers together; what the recipe writes out comes first."""
    data: DataT
    """The corpus and how it is turned into samples."""
    model: ModelT
    """The model's numbers."""
    training: TrainingT
    """How it is trained."""
