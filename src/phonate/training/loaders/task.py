"""A caller's model and losses as a task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from phonate.training.loaders.source import inputs_of
from phonate.training.losses import LossManager
from phonate.training.task import Batch, Dataset, Metric, Task, Terms, losses


class LoaderTask(Task):
    """A model and a loss as a task."""

    def __init__(self, model: nn.Module, losses: LossManager) -> None:
        self._model = model
        self.losses = losses
        self.coupling = losses.coupling

    def model(self, device: torch.device) -> nn.Module:
        """The caller's model, moved to the device."""
        return self._model.to(device)

    def dataset(self, split: str) -> Dataset:
        """Loaders have no addressable samples."""
        raise AssertionError("a LoaderTask is trained from loaders")

    def loss_weights(self, step: int) -> Mapping[str, float]:
        """`TrainingConfig.loss_weights`."""
        return self.losses.weights

    def loss(self, model: nn.Module, batch: Batch, phase: str) -> Terms:
        """The configured loss between the model's output and the batch's target."""
        inputs = inputs_of(batch)
        given: dict[str, Any] = {}
        if "speaker_id" in batch:
            given["speaker_id"] = batch["speaker_id"]
        if "lengths" in batch:
            given["lengths"] = batch["lengths"]
        return self.losses.terms(model(inputs, **given), batch, model)

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The loss terms."""
        return losses(self.losses.weights)

    def metric_names(self) -> Mapping[str, str]:
        """Trackers show means over an epoch and validations side by side: epoch/train_mse and epoch/val_mse."""
        names = ["loss", *self.losses.weights]
        return {
            **{f"epoch/{name}": f"epoch/train_{name}" for name in names},
            **{f"validation/{name}": f"epoch/val_{name}" for name in names},
        }
