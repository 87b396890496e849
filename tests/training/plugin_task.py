"""A task as a plug-in file, with everything random in it, for tests that run real processes."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch
from small_tasks import Nothing, RegressionTask, Sequences

from phonate.config.tasks import TASKS, TaskEntry


class SlowSequences(Sequences):
    """Samples that take as long as the environment says, so that signals arrive in a wait for data."""

    cached = False

    def get(self, index, rng):
        if "SLOW_DATA" in os.environ:
            time.sleep(float(os.environ["SLOW_DATA"]))
        if self.ids[index] in os.environ.get("BROKEN", "").split():
            raise ValueError("a broken header")
        return super().get(index, rng)


class PluginTask(RegressionTask):
    """The regression with optional slowness of data and validation, and faults of one rank."""

    dropout = float(os.environ.get("DROPOUT", RegressionTask.dropout))

    def dataset(self, split):
        return SlowSequences(24, 1) if split == "train" else Sequences(6, 2)

    def loss(self, model, batch, phase):
        here = [str(self.step), os.environ.get("RANK", "0")] if torch.is_grad_enabled() else []
        if here and here == os.environ.get("STUCK", "").split():
            time.sleep(600)
        terms = super().loss(model, batch, phase)
        rank, room = os.environ.get("ROOM", "0 1000").split()
        if here[1:] == [rank] and batch["mask"].numel() > int(room):
            next(iter(terms.values()))[0].backward()  # gradients of the attempt that must not count
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
        if here and here == os.environ.get("BAD", "").split():
            terms["mse"] = (terms["mse"][0] * float("nan"), terms["mse"][1])
        return terms

    def evaluate(self, model, dataset, positions):
        seconds = float(os.environ.get("SLOW_VALIDATION", "0"))
        if seconds and os.environ.get("RANK", "0") == "0":
            Path(os.environ["VALIDATING"]).touch()
            time.sleep(seconds)
        size = float(model[0].weight.detach().abs().sum())
        return {"weight": (size * len(positions), len(positions)), "length": (sum(dataset.lengths[positions]), 1)}

    def previews(self, model):
        time.sleep(float(os.environ.get("SLOW_PREVIEWS", "0")))
        return {}


TASKS.register("plugin", TaskEntry(data=Nothing, model=Nothing, task=PluginTask))
