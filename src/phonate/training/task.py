"""The contract between the trainer and what it trains.

A task is a package under `phonate.tasks`, or a class in another package, that defines a model, its data sets and its
loss. The trainer depends on nothing of a task but this interface.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from phonate.config.errors import TrainingError
from phonate.config.metrics import Metric, losses
from phonate.config.tasks import Coupling, Traits
from phonate.data.batches import Batch, Dataset, UnitCounts
from phonate.training.settings import OptimizerSettings

__all__ = [
    "Batch",
    "Count",
    "CountedTerms",
    "Coupling",
    "Dataset",
    "Metric",
    "Phase",
    "Picture",
    "Preview",
    "Sound",
    "Stateful",
    "Sums",
    "Task",
    "Terms",
    "UnitCounts",
    "all_parameters",
    "counted",
    "losses",
    "move",
    "parameters_of",
    "side_by_side",
]

Count = Tensor | float
Terms = Mapping[str, tuple[Tensor, Count | str]]
"""Loss terms of a micro-batch: name -> (sum, count). The count is a unit of the batch, such as "frames", of which the
data set counts how many there are (`UnitCounts`), or a number."""
CountedTerms = dict[str, tuple[Tensor, Count]]
"""Loss terms with their counts as numbers."""
Sums = Mapping[str, tuple[float, float]]
"""Metrics of part of a validation set: name -> (sum, count), e.g. word errors and reference words."""


def all_parameters(model: nn.Module) -> Iterable[tuple[str, nn.Parameter]]:
    """Every trainable parameter with its name."""
    return ((name, p) for name, p in model.named_parameters() if p.requires_grad)


def parameters_of(part: str) -> Callable[[nn.Module], Iterable[tuple[str, nn.Parameter]]]:
    """A `Phase.parameters` that selects one submodule, e.g. the generator of a GAN."""

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
    """Run in every `every`-th step."""
    start: int = 0
    """First step in which it runs."""


@dataclass(frozen=True)
class Sound:
    """An audio preview: mono samples in [-1, 1]."""

    waveform: NDArray[np.float32]
    sample_rate: int


@dataclass(frozen=True)
class Picture:
    """An image preview: a (height, width) array, low frequencies first, drawn as a spectrogram."""

    values: NDArray[np.float32]


Preview = Sound | Picture


class Stateful(Protocol):
    """A part of a run's state."""

    def state(self) -> Any:
        """The state: nested dictionaries and lists of JSON values and tensors. All ranks call it together."""
        ...

    def restore(self, state: Any) -> None:
        """Restore what `state` returned, in this or an earlier version."""
        ...


class Task(ABC):
    """What is trained. Only `model`, `dataset` and `loss` are required."""

    step: int = 0
    """Number of the current optimizer step, from 0. Set by the trainer."""
    device: torch.device = torch.device("cpu")
    """What training computes on, for work on its data. Set by the trainer before it asks for data sets."""
    coupling: Coupling = Coupling.NONE
    """What the loss of an item depends on; decides whether batches may be split."""
    own_counts: bool = False
    """Whether a loss term may have a number as its count although the data set counts units."""
    earlier_keys: ClassVar[Mapping[str, str]] = {}
    """Where `inference_metadata` of checkpoints without `identity` has its facts, and "own_state", if elsewhere than
    under their names: e.g. {"speakers": "voices"}."""
    random_features: bool = True
    """Whether the model may have modules with `redraw_features()`; without them, settings that redraw are refused."""

    @abstractmethod
    def model(self, device: torch.device) -> nn.Module:
        """A newly initialised model on `device`. Called once per process, with torch seeded.

        Large pretrained weights should be loaded straight onto the device, not by way of host memory.
        """

    @abstractmethod
    def dataset(self, split: str) -> Dataset:
        """The data set of `split`, "train" or "validation". An empty validation set turns validation off."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch, phase: str) -> Terms:
        """Sum and count of each loss term over one micro-batch in one phase.

        The trainer minimises the weighted sum over terms of (total sum / total count), with totals over the
        micro-batches and ranks of the step. The gradient is therefore independent of how a batch is divided.

        The totals are needed before the first backward pass. Name a unit of the batch as the count wherever it follows
        from the batch: for counts that are numbers, each micro-batch of a step with several micro-batches or ranks
        needs an extra forward pass, about a third more computation.
        """

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The optimizers and their parameters, in the order in which they run within a step."""
        return (Phase(),)

    def loss_weights(self, step: int) -> Mapping[str, float]:
        """Weight of each loss term in optimizer step `step` (from 0). Terms that are not named have weight 1.

        The recipe's `training.loss.weights` take precedence.
        """
        return {}

    def loss_shares(self, step: int) -> Mapping[str, float]:
        """Share of its weight, whether the task's or the recipe's, that a term has in optimizer step `step`, such as a
        curriculum's. Terms that are not named have all of it."""
        return {}

    def samples(self, batch: Batch, items: int) -> int:
        """Samples in a micro-batch of `items` items of the data set, for the reported speed; more than the items where
        an item packs several."""
        return items

    @property
    def own_state(self) -> Stateful | None:
        """What a resume restores besides the model, such as running means that the loss depends on. None: nothing."""
        return None

    @property
    def metrics(self) -> Sequence[Metric] | None:
        """Every metric that validation may report besides `loss`: loss terms (`losses`), `evaluate`, `derived`.

        With it, settings that name an unknown metric, or contradict its direction, are refused before training. None:
        loss terms are better when lower, settings must state the direction of others, and unknown ones are refused at
        the first validation.
        """
        return None

    @property
    def traits(self) -> Traits:
        """What settings are checked against before training."""
        metrics = self.metrics
        return Traits(
            None if metrics is None else tuple(metrics),
            frozenset(self.loss_weights(0)),
            self.coupling,
            self.random_features,
            divides=type(self).blocks is not Task.blocks,
        )

    def blocks(self, model: nn.Module) -> Sequence[nn.Module]:
        """The modules, such as layers, each of which is whole only while it is computed where
        `training.distributed.strategy` divides the weights. Not given: the weights of this task are not divided.

        With it, `evaluate` and `previews` must leave the model alone.
        """
        raise NotImplementedError

    def compiled_modules(self, model: nn.Module) -> Sequence[nn.Module]:
        """The modules that `training.performance.compile_model` compiles. `loss` must call them, not methods of them:
        only a call runs what torch.compile makes of a module."""
        return (model,)

    def saved(self, model: nn.Module) -> dict[str, Tensor]:
        """The tensors of `model` that a checkpoint stores: all by default, e.g. only the adapters for LoRA."""
        return dict(model.state_dict())

    def restore(self, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
        """Load tensors from `saved`. Raises RuntimeError (from torch) for wrong names or shapes."""
        expected = self.saved(model).keys()
        strict = expected == model.state_dict().keys()
        model.load_state_dict(dict(tensors), strict=strict)

    def adopted(self, weights: Mapping[str, Tensor], source: Path) -> Mapping[str, Tensor]:
        """The weights of the checkpoint `source`, which training starts from (`training.init_from`), as they fit this
        model: unchanged by default. Those of other names or shapes are not used."""
        return weights

    def evaluate(self, model: nn.Module, dataset: Dataset, positions: Sequence[int]) -> Sums:
        """Metrics beyond the loss over the samples of the validation `dataset` at `positions`, as sums and counts.

        Each rank gets its own share of the positions (never an empty one); the trainer adds up sums and counts and
        reports sum / count. A metric whose counts add up to 0 is left out. Model in eval mode, gradients off.
        """
        return {}

    def derived(self, metrics: Mapping[str, float]) -> Mapping[str, float]:
        """Further validation metrics, computed from `metrics`: mean of each loss term and of each result of
        `evaluate`, over the whole validation set. Those that it returns are added, or replace the given ones."""
        return {}

    def previews(self, model: nn.Module) -> dict[str, Preview]:
        """Sounds and pictures of the model's current output. Called on the first rank only; the others wait."""
        return {}

    def metric_names(self) -> Mapping[str, str]:
        """Our metric names -> the names shown by TensorBoard and W&B."""
        return {}

    def identity(self) -> Mapping[str, Any]:
        """What a checkpoint must agree with to be resumed, by name, as JSON: e.g. {"speakers": ["ann", "ben"]}.

        The trainer asks once the model is built, saves it and compares it; errors show the names.
        """
        return {}

    def inference_metadata(self, model: nn.Module) -> Mapping[str, Any]:
        """What inference needs besides the weights, as JSON (speaker names, inventories, feature fingerprint)."""
        return {}


def counted(terms: Terms, units: Mapping[str, float] | None) -> CountedTerms:
    """`terms` of a batch that has `units`, with numbers as counts. Raises TrainingError for a unit that it has not."""
    numbers: CountedTerms = {}
    for name, (total, count) in terms.items():
        if not isinstance(count, str):
            numbers[name] = (total, count)
        elif units is not None and count in units:
            numbers[name] = (total, units[count])
        else:
            raise TrainingError(
                f"the loss term {name!r} is a sum over {count!r}, which the data set does not count: add that to its "
                "unit_counts(batch), or let loss() return a number"
            )
    return numbers


def side_by_side(losses: Iterable[str]) -> dict[str, str]:
    """`Task.metric_names` by which trackers show means over an epoch and validations together: epoch/train_mse and
    epoch/val_mse."""
    shown = {"epoch": "epoch/train", "validation": "epoch/val"}
    return {f"{split}/{name}": f"{prefix}_{name}" for split, prefix in shown.items() for name in ("loss", *losses)}


def move(batch: Batch, device: torch.device) -> Batch:
    """`batch` with its tensors on `device`."""
    if device.type == "cpu":
        return batch
    return {
        name: value.to(device, non_blocking=True) if isinstance(value, Tensor) else value
        for name, value in batch.items()
    }
