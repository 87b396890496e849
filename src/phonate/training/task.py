"""What can be trained: the contract between the trainer and a task.

A task is a folder under `phonate.tasks` (or a class in another package) that says what its model, samples and
loss are. The trainer never learns more about it than this file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from phonate.data.batches.dataset import Batch, Dataset
from phonate.training.settings import OptimizerSettings

__all__ = [
    "Batch",
    "Count",
    "Dataset",
    "Phase",
    "Picture",
    "Preview",
    "Sound",
    "Task",
    "Terms",
    "all_parameters",
    "move",
    "parameters_of",
]

Count = Tensor | float
Terms = dict[str, tuple[Tensor, Count]]
"""Loss terms: name -> (sum over the batch, how many things were summed)."""


def all_parameters(model: nn.Module) -> Iterable[tuple[str, nn.Parameter]]:
    """Every trainable parameter with its name."""
    return ((name, p) for name, p in model.named_parameters() if p.requires_grad)


def parameters_of(part: str) -> Callable[[nn.Module], Iterable[tuple[str, nn.Parameter]]]:
    """What gives a phase the parameters of one part of a model, such as the generator of a GAN."""

    def parameters(model: nn.Module) -> Iterable[tuple[str, nn.Parameter]]:
        return ((name, p) for name, p in all_parameters(model) if name.startswith(f"{part}."))

    return parameters


@dataclass(frozen=True)
class Phase:
    """One optimizer's part of a training step. A GAN has two."""

    name: str = "main"
    parameters: Callable[[nn.Module], Iterable[tuple[str, nn.Parameter]]] = all_parameters
    optimizer: OptimizerSettings | None = None
    """None: the recipe's `training.optimizer`."""
    every: int = 1
    """Run in each `every`-th step."""
    start: int = 0
    """Run from this step on."""


@dataclass(frozen=True)
class Sound:
    """A preview to listen to: mono samples in [-1, 1]."""

    waveform: NDArray[np.float32]
    sample_rate: int


@dataclass(frozen=True)
class Picture:
    """A preview to look at: a (height, width) array, low frequencies first, drawn as a spectrogram."""

    values: NDArray[np.float32]


Preview = Sound | Picture


class Task(ABC):
    """A thing that can be trained. `recipe` holds its settings (`recipe.data`, `recipe.model`, `recipe.training`)."""

    step: int = 0
    """The optimizer step that a loss is for. The trainer sets it."""
    couples_items: bool = False
    """True when the loss of an item depends on the other items of its batch: such a batch is never split."""

    @abstractmethod
    def model(self) -> nn.Module:
        """A freshly initialised model. The caller has seeded torch."""

    @abstractmethod
    def dataset(self, split: str) -> Dataset:
        """The samples of `split`: "train" or "validation"."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch, phase: str) -> Terms:
        """Sums and counts of the loss terms of one micro-batch in one phase.

        The trainer minimises the weighted sum over terms of (total sum / total count), totals taken over the
        micro-batches and ranks of the step, so accumulation, ranks and uneven batches give the same gradient.
        """

    def counts(self, batch: Batch, phase: str) -> dict[str, Count] | None:
        """The counts that `loss` will return for `batch`, without running the model.

        Needed before the first backward pass of a step of several micro-batches or ranks. None (the default)
        makes the trainer find them with one forward pass without gradients.
        """
        return None

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The optimizers and what they optimise, in the order in which they run within a step."""
        return (Phase(),)

    @property
    def loss_weights(self) -> Mapping[str, float]:
        """Weight of each loss term; a term that is not named weighs 1."""
        return {}

    @property
    def higher_is_better(self) -> frozenset[str]:
        """Metrics of `evaluate` that are better when higher; choosing the lowest of them as the best is refused."""
        return frozenset()

    def saved(self, model: nn.Module) -> dict[str, Tensor]:
        """The tensors a checkpoint holds for `model`: everything by default; adapters, say, for LoRA."""
        return dict(model.state_dict())

    def restore(self, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
        """Put `saved` tensors back. Raises RuntimeError from torch when names or shapes do not fit."""
        expected = self.saved(model).keys()
        strict = expected == model.state_dict().keys()
        model.load_state_dict(dict(tensors), strict=strict)

    def evaluate(self, model: nn.Module, dataset: Dataset) -> dict[str, float]:
        """Metrics beyond the loss, on the validation samples; any of them can choose the best checkpoint."""
        return {}

    def previews(self, model: nn.Module) -> dict[str, Preview]:
        """Sounds and pictures that show how far the model is."""
        return {}

    def metric_names(self) -> Mapping[str, str]:
        """Our metric names -> the names under which a sink (TensorBoard, W&B) shows them."""
        return {}

    def resume_conflict(self, exported: Mapping[str, Any]) -> str | None:
        """Why a run can't go on from a checkpoint with this `export`, such as one of other speakers. None: it can."""
        return None

    def inference_metadata(self, model: nn.Module) -> Mapping[str, Any]:
        """What inference needs beside the weights, as JSON (speaker names, inventories, a feature fingerprint)."""
        return {}


def move(batch: Batch, device: torch.device) -> Batch:
    """`batch` with its tensors on `device`."""
    if device.type == "cpu":
        return batch
    return {
        name: value.to(device, non_blocking=True) if isinstance(value, Tensor) else value
        for name, value in batch.items()
    }
