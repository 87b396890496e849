"""A task whose loss compares items, without dropout, that writes which samples each step was computed on."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch
from small_tasks import Nothing, RegressionTask, Sequences

from phonate.compute import distributed
from phonate.config.tasks import TASKS, TaskEntry
from phonate.nn.losses import ContrastiveLoss
from phonate.training.task import Coupling


class ElasticTask(RegressionTask):
    """The regression on 26 samples, and, unless PLAIN says no, InfoNCE between the items of a micro-batch."""

    dropout = 0.0

    def __init__(self, recipe=None) -> None:
        super().__init__(recipe)
        self.couples = "PLAIN" not in os.environ
        self.own_counts = True
        self.coupling = Coupling.MICRO_BATCH if self.couples else Coupling.NONE
        self.noted = []

    def dataset(self, split):
        return Sequences(26, 1) if split == "train" else Sequences(7, 2)

    def loss(self, model, batch, phase):
        noted = any(batch is one for one in self.noted)  # more than two ranks compute the first one twice
        if torch.is_grad_enabled() and not distributed._Shared.placeholder and "SEEN" in os.environ and not noted:
            self.noted.append(batch)
            with open(f"{os.environ['SEEN']}.{os.environ.get('RANK', '0')}", "a") as file:
                file.writelines(f"{self.step} {name}\n" for name in batch["ids"])
        terms = super().loss(model, batch, phase)
        if self.couples:
            embeddings = (model[0](batch["x"]) * batch["mask"][..., None]).mean(1)
            labels = torch.tensor([int(name[-3:]) % 3 for name in batch["ids"]])
            terms["contrastive"] = ContrastiveLoss(0.5)(embeddings, labels)
        return terms


TASKS.register("plugin", TaskEntry(data=Nothing, model=Nothing, task=ElasticTask))
