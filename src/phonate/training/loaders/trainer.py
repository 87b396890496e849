"""`VoiceTrainer(model, config).train(train_loader, val_loader)`: the trainer for a model and two loaders."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from phonate.compute import device as devices
from phonate.compute import distributed
from phonate.config.errors import InputError
from phonate.training.callbacks import Callback
from phonate.training.checkpoints import resolve_checkpoint
from phonate.training.loaders.config import TrainingConfig
from phonate.training.loaders.source import LoaderSource, inputs_of
from phonate.training.losses import LossManager
from phonate.training.run import Run
from phonate.training.settings import CheckpointConfig
from phonate.training.task import Batch, Dataset, Task, Terms
from phonate.training.trainer import Trainer

logger = logging.getLogger("phonate")


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


class VoiceTrainer:
    """Trains `model` on loaders whose batches hold `features`, `target_features` and, where known, `speaker_id`,
    `lengths` and `waveform` (what `VoiceCollator` makes). `callbacks` are called at their hooks (see `Callback`)."""

    def __init__(
        self,
        model: nn.Module,
        config: TrainingConfig | None = None,
        gpu_manager: Any = None,
        experiment_name: str = "voice_training",
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.model = model
        self.callbacks = callbacks
        self.config = config or TrainingConfig()
        self.run = Run(Path(self.config.output_dir) / experiment_name)
        asked = None if gpu_manager is None else str(gpu_manager.device)
        self.device = devices.choose("mixed", asked)
        self.trainer: Trainer | None = None

    def train(
        self,
        train_dataloader: Iterable[Batch],
        val_dataloader: Iterable[Batch] | None = None,
        checkpoint_path: str | Path | None = None,
    ) -> dict[str, float]:
        """Train to the end; returns the last validation's metrics. `checkpoint_path` (or "auto") goes on from there."""
        config = self.config
        train = LoaderSource(train_dataloader, config.seed, "train")
        validation = None if val_dataloader is None else LoaderSource(val_dataloader, config.seed, "validation")
        steps = config.num_epochs * train.steps(0) // config.gradient_accumulation_steps
        settings = config.settings(steps, validated=validation is not None)
        ranks = self._ranks()
        resume = None
        if checkpoint_path is not None:
            resume = resolve_checkpoint(str(checkpoint_path), self.run.path)
        if ranks.is_main:
            self.run.create(resuming=resume is not None)
        task = LoaderTask(self.model, LossManager(config.loss_type, config.loss_weights))
        self.trainer = Trainer(
            task,
            settings,
            self.run,
            device=self.device,
            ranks=ranks,
            train=train,
            validation=validation,
            callbacks=self.callbacks,
        )
        checkpoint = None if resume is None else self.trainer.checkpoints.load_checkpoint(resume)
        return self.trainer.fit(checkpoint)

    def _ranks(self) -> distributed.Ranks:
        if not self.config.distributed:
            return distributed.Ranks()
        if "WORLD_SIZE" not in os.environ:
            logger.warning("distributed=True, but no launcher started this process (torchrun does): training alone")
            return distributed.Ranks()
        expected = self.config.world_size if self.config.world_size > 1 else None
        return distributed.start(self.device, expected=expected)

    def save_checkpoint(self) -> Path:
        """Save the current state; returns the checkpoint's folder."""
        trainer = self._started()
        trainer.save()
        trainer.checkpoints.flush()
        return trainer.checkpoints.latest()

    def load_checkpoint(self, path: str | Path) -> Mapping[str, Any]:
        """Put a checkpoint's weights into the model; returns its metadata."""
        from phonate.training.checkpoints import CheckpointManager

        folder = resolve_checkpoint(str(path), self.run.path)
        checkpoint = CheckpointManager(folder.parent, CheckpointConfig()).load_checkpoint(folder)
        self.model.load_state_dict(checkpoint.weights)
        return checkpoint.metadata.model_dump()

    def _started(self) -> Trainer:
        if self.trainer is None:
            raise InputError("nothing to save yet: call train first")
        return self.trainer


def create_trainer(model: nn.Module, config: TrainingConfig | None = None, **options: Any) -> VoiceTrainer:
    """A `VoiceTrainer`; without `config` with the default one."""
    return VoiceTrainer(model, config, **options)
