"""First versions of what people add, for `phonate new`. `$name` is my_kind, `$Name` MyKind and `$Class` the class.

In a template, lines that end in `#plugin` are kept only outside the package, those in `#inside` only inside it.
"""

from __future__ import annotations

LOSS = '''\
"""The loss `$name`."""

from __future__ import annotations

from torch import Tensor, nn
#plugin
from phonate.training.losses import LossRegistry  #plugin


class $Class(nn.Module):
    """Absolute difference, the smaller ones counted less: |d| - log(1 + |d|)."""

    def forward(self, outputs: Tensor, targets: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor | float]:
        """The loss summed over the batch, and how many cells were summed.

        Args:
            outputs: What the model returned, (items, frames, features).
            targets: What it should have returned, of the same shape.
            mask: (items, frames), True where a frame is real.
        """
        difference = (outputs - targets).abs()
        cells = difference - difference.log1p()
        if mask is None:
            return cells.sum(), float(cells.numel())
        kept = mask.unsqueeze(-1).expand_as(cells)
        return cells.masked_fill(~kept, 0.0).sum(), kept.sum()
#plugin
#plugin
LossRegistry.register("$name", $Class)  #plugin
'''

LOSS_TEST = """\
from __future__ import annotations

from pathlib import Path  #plugin
#plugin
import pytest
import torch

from phonate.config.registry import load_plugin  #plugin
from phonate.training.losses import LossRegistry, compute

load_plugin(Path(__file__).with_name("$name.py"))  #plugin
#plugin

def test_it_is_found_by_name_and_vanishes_for_a_perfect_model() -> None:
    loss = LossRegistry.get("$name")()
    targets = torch.randn(3, 5, 4)
    assert float(compute(loss, targets, targets)[0]) == 0.0
    assert float(compute(loss, targets + 1, targets)[0]) > 0.0


def test_parts_of_a_batch_add_up_and_padding_does_not_count() -> None:
    loss = LossRegistry.get("$name")()
    outputs, targets = torch.randn(4, 5, 4), torch.randn(4, 5, 4)
    mask = torch.arange(5) < torch.tensor([5, 2, 4, 1])[:, None]
    total, count = compute(loss, outputs, targets, mask)
    parts = [compute(loss, outputs[i : i + 2], targets[i : i + 2], mask[i : i + 2]) for i in (0, 2)]
    assert float(total) == pytest.approx(float(parts[0][0] + parts[1][0]), rel=1e-5)
    assert int(count) == int(mask.sum()) * 4
    outputs[~mask] = 100.0
    assert float(compute(loss, outputs, targets, mask)[0]) == pytest.approx(float(total), rel=1e-5)
"""

CALLBACK = '''\
"""The callback `$name`."""

from __future__ import annotations

from typing import Any

import torch

from phonate.training.callbacks import CALLBACKS, Callback  #plugin
from phonate.training.callbacks._base import Callback  #inside


class $Class(Callback):
    """Emits `weight_norm`, the L2 norm of all weights, every `interval` optimizer steps."""

    def __init__(self, interval: int = 100) -> None:
        if interval < 1:
            raise ValueError("interval: 1 or more optimizer steps")
        self.interval = interval

    def on_optimizer_step(self, trainer: Any) -> None:
        """Called after each optimizer step; `trainer.step` counts it already."""
        if trainer.step % self.interval == 0:
            weights = [weight.detach() for weight in trainer.model.parameters()]
            trainer.emit({"weight_norm": float(torch.nn.utils.get_total_norm(weights))})
#plugin
#plugin
CALLBACKS.register("$name", $Class)  #plugin
'''

CALLBACK_TEST = """\
from __future__ import annotations

from pathlib import Path  #plugin
from types import SimpleNamespace

import pytest
import torch

from phonate.config.registry import load_plugin  #plugin
from phonate.training.callbacks import CALLBACKS

load_plugin(Path(__file__).with_name("$name.py"))  #plugin
#plugin

def test_it_emits_at_its_interval() -> None:
    model = torch.nn.Linear(2, 1, bias=False)
    torch.nn.init.constant_(model.weight, 3.0)
    seen: list[dict[str, float]] = []
    callback = CALLBACKS.get("$name")(interval=2)
    for step in range(1, 5):
        callback.on_optimizer_step(SimpleNamespace(model=model, step=step, emit=seen.append))
    assert [metrics["weight_norm"] for metrics in seen] == pytest.approx([18**0.5] * 2)
"""

TASK = '''\
"""The task `$name`: fits a linear map of noisy vectors. Replace samples, model and loss by your own."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import nn

from phonate.config.settings import Settings
from phonate.config.tasks import TASKS, TaskEntry
from phonate.training.task import Batch, Dataset, Task, Terms


class ${Name}Data(Settings):
    """The recipe's `data` part."""

    count: PositiveInt = 64
    """Samples in training."""
    noise: NonNegativeFloat = 0.01
    """Standard deviation of what is added to the inputs."""


class ${Name}Model(Settings):
    """The recipe's `model` part."""

    width: PositiveInt = 8
    """Features of a vector."""


class ${Name}Dataset:
    """Vectors and what they map to."""

    frames_per_second = 1.0
    cached = True

    def __init__(self, split: str, count: int, width: int, noise: float) -> None:
        rng = np.random.default_rng(0 if split == "train" else 1)
        self.inputs = rng.normal(size=(count, width)).astype(np.float32)
        self.targets = np.cumsum(self.inputs, axis=1)
        self.noise = noise
        self.ids = [f"{split}-{i}" for i in range(count)]
        self.lengths = np.ones(count, dtype=np.int64)

    def get(self, index: int, rng: np.random.Generator) -> Any:
        """One pair. Whatever is random comes from `rng`, so that a resumed run sees the same."""
        clean = self.inputs[index]
        return clean + self.noise * rng.normal(size=clean.shape), self.targets[index]

    def collate(self, items: list[Any]) -> Batch:
        """inputs and targets, (items, features)."""
        inputs, targets = (torch.tensor(np.stack(part), dtype=torch.float32) for part in zip(*items, strict=True))
        return {"inputs": inputs, "targets": targets}


class $Class(Task):
    """Ties settings, samples, model and loss together."""

    def __init__(self, recipe: Any) -> None:
        self.recipe = recipe

    def model(self) -> nn.Module:
        """A linear layer."""
        width = self.recipe.model.width
        return nn.Linear(width, width)

    def dataset(self, split: str) -> Dataset:
        """As many samples as the recipe says; a quarter of them for validation."""
        data = self.recipe.data
        count = data.count if split == "train" else max(1, data.count // 4)
        return ${Name}Dataset(split, count, self.recipe.model.width, data.noise)

    def loss(self, model: nn.Module, batch: Batch, phase: str) -> Terms:
        """Sum and count of the squared error: the trainer divides."""
        error = (model(batch["inputs"]) - batch["targets"]).square()
        return {"mse": (error.sum(), float(error.numel()))}


TASKS.register(
    "$name",
    TaskEntry(
        ${Name}Data,
        ${Name}Model,
        task=$Class,
        sizes={"tiny": {"model": {"width": 4}}, "large": {"model": {"width": 64}}},
    ),
)
'''

TASK_TEST = '''\
from __future__ import annotations

from pathlib import Path

from phonate.config.registry import load_plugin
from phonate.workflows.train import train

load_plugin(Path(__file__).with_name("$name.py"))

RECIPE = """
task: $name
size: tiny
training:
  batch_size: 16
  optimizer: {lr: 0.05}
  logging: {tensorboard: false}
"""


def validation_loss(folder: Path, steps: int) -> float:
    """The loss after so many optimizer steps."""
    recipe = folder / "$name.yaml"
    recipe.write_text(RECIPE)
    output = folder / f"run-{steps}"
    trained = train(recipe, {"training.max_steps": steps}, mode="cpu", output=output)
    return trained.metrics["val_loss"]


def test_it_learns(tmp_path: Path) -> None:
    assert validation_loss(tmp_path, 200) < 0.5 * validation_loss(tmp_path, 1)
'''

TEMPLATES = {"loss": (LOSS, LOSS_TEST), "callback": (CALLBACK, CALLBACK_TEST), "task": (TASK, TASK_TEST)}
"""Kind -> the file and its test."""

HOMES = {"loss": "nn/losses", "callback": "training/callbacks"}
"""Kinds whose file may lie in the package, and where."""
