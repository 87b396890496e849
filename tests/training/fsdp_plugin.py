"""A task whose weights may be divided over ranks; with dropout where DROPOUT says so."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from plugin_task import SlowSequences
from small_tasks import Nothing, RegressionTask, Sequences
from torch import nn

from phonate.config.tasks import TASKS, TaskEntry


class Blocks(nn.Module):
    """Layers of uneven sizes around a frozen one, all but the ends of them blocks."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.first = nn.Linear(4, 16)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Dropout(dropout), nn.Linear(16, 16)) for _ in range(3)
        )
        self.layers[1].requires_grad_(False)
        self.last = nn.Linear(16, 4)

    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            x = x + layer(x)
        return self.last(x)


class FsdpTask(RegressionTask):
    """The regression with `Blocks`."""

    def model(self, device):
        return Blocks(float(os.environ.get("DROPOUT", "0"))).to(device)

    def blocks(self, model):
        return list(model.layers)

    def dataset(self, split):
        return SlowSequences(24, 1) if split == "train" else Sequences(6, 2)

    def loss(self, model, batch, phase):
        error = (model(batch["x"]) - batch["y"]) ** 2 * batch["mask"][..., None]
        return {"mse": (error.sum(), float(batch["frames"] * 4))}


TASKS.register("plugin", TaskEntry(data=Nothing, model=Nothing, task=FsdpTask))
