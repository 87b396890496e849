"""`VoiceTrainer(model, config).train(train_loader, val_loader)`: the trainer for a model and two loaders."""

from __future__ import annotations

import contextlib
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
from phonate.training.checkpoints.loading import load
from phonate.training.checkpoints.resolve import has_checkpoint
from phonate.training.loaders.config import TrainingConfig
from phonate.training.loaders.source import LoaderSource
from phonate.training.loaders.task import LoaderTask
from phonate.training.losses import LossManager
from phonate.training.run import Run
from phonate.training.steps.meter import Meter
from phonate.training.task import Batch, move
from phonate.training.tracking.log_file import log_file
from phonate.training.trainer import Trainer

logger = logging.getLogger("phonate")


class VoiceTrainer:
    """Trains a model on the caller's data loaders.

    A batch is a mapping with `features` (B, T, F), the model's input, and `target_features` (B, T, G); where known
    also `speaker_id` (B,), `lengths` (B,) in frames and `waveform` (B, samples), as `VoiceCollator` makes it.

    Args:
        model: called as `model(features, speaker_id=..., lengths=...)`, with those that the batch has.
        config: the settings.
        gpu_manager: an object with a `device`; None: the first free GPU, else the CPU.
        experiment_name: the run is written to `config.output_dir`/`experiment_name`.
        callbacks: called at their hooks (see `Callback`).
    """

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
        self.task = LoaderTask(model, LossManager(self.config.loss_type, self.config.loss_weights))
        self.trainer: Trainer | None = None

    def train(
        self,
        train_dataloader: Iterable[Batch],
        val_dataloader: Iterable[Batch] | None = None,
        checkpoint_path: str | Path | None = None,
    ) -> dict[str, float]:
        """Train to the end.

        Args:
            train_dataloader: batches to train on.
            val_dataloader: batches to validate on.
            checkpoint_path: a checkpoint to resume from, or "auto" for the newest one of this run; "auto" starts a run
                that has none.

        Returns:
            The metrics of the last validation (`val_loss`, ...).

        Raises:
            InputError: the run exists and `checkpoint_path` is not given, or a setting or loader can't be used.
            TrainingError: the loss is not finite.
        """
        resume = self._checkpoint(checkpoint_path)
        asked = checkpoint_path is not None
        return self._fit(train_dataloader, val_dataloader, resume, self.callbacks, self.config, resuming=asked)

    def train_epoch(
        self, train_dataloader: Iterable[Batch], val_dataloader: Iterable[Batch] | None = None
    ) -> dict[str, float]:
        """Train one epoch more and save a checkpoint; the next call continues from it.

        The learning rate follows the schedule over `config.num_epochs` epochs. When to stop is up to the caller:
        `config.early_stopping_patience` has no effect here, and the model keeps the weights of the epoch.

        Returns:
            The mean losses of the epoch (`train_loss`, ...).

        Raises:
            InputError: all epochs are trained, or the run exists at the first call.
        """
        resume = self._checkpoint(None) if self.trainer is None else self.trainer.checkpoints.latest()
        if self.trainer is not None and self.trainer.finished and not self.trainer.should_stop:
            raise InputError(f"all {self.config.num_epochs} epochs are trained; raise num_epochs for more")
        callbacks = [*self.callbacks, _StopAfterEpoch()]
        # it would bring the best weights back after each epoch, and end every epoch at once when patience is exhausted
        config = self.config.model_copy(update={"early_stopping_patience": None})
        self._fit(train_dataloader, val_dataloader, resume, callbacks, config, resuming=resume is not None)
        assert self.trainer is not None
        self.trainer.should_stop = False
        return self.trainer.progress.last_training

    def validate(self, val_dataloader: Iterable[Batch]) -> dict[str, float]:
        """The mean losses of the model as it is over a loader: `val_loss`, their weighted sum, and `val_<term>`."""
        source = LoaderSource(val_dataloader, self.config.seed, "validation")
        model, meter, was_training = self.model.to(self.device), Meter(), self.model.training
        model.eval()
        try:
            with torch.no_grad():
                for planned in source.epoch(0):
                    meter.add(self.task.loss(model, move(planned.batch, self.device), ""))
        finally:
            model.train(was_training)
        means = meter.means(self.task.loss_weights(0), distributed.Ranks())
        return {f"val_{name}": value for name, value in means.items()}

    def _checkpoint(self, asked: str | Path | None) -> Path | None:
        """The checkpoint to resume from, None to start; the run's folder is made."""
        there = has_checkpoint(self.run.path)
        if asked is None and there:
            raise InputError(
                f'{self.run.path} holds a run; continue it with train(..., checkpoint_path="auto"), or choose another '
                "experiment_name or TrainingConfig.output_dir"
            )
        if asked is None or (str(asked) == "auto" and not there):
            return None
        return resolve_checkpoint(str(asked), self.run.path)

    def _fit(
        self,
        train_dataloader: Iterable[Batch],
        val_dataloader: Iterable[Batch] | None,
        resume: Path | None,
        callbacks: Sequence[Callback],
        config: TrainingConfig,
        resuming: bool,
    ) -> dict[str, float]:
        train = LoaderSource(train_dataloader, config.seed, "train")
        validation = None if val_dataloader is None else LoaderSource(val_dataloader, config.seed, "validation")
        steps = config.num_epochs * train.steps(0) // config.gradient_accumulation_steps
        ranks = self._ranks()
        owned = self.run.opened(resuming) if ranks.is_main else contextlib.nullcontext()
        with owned, log_file(self.run.logs / "training.log", ranks):
            self.trainer = Trainer(
                self.task,
                config.settings(steps, validated=validation is not None),
                self.run,
                device=self.device,
                ranks=ranks,
                train=train,
                validation=validation,
                callbacks=callbacks,
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
        """Put the weights of a checkpoint or an exported model into the model; returns its metadata."""
        checkpoint = load(resolve_checkpoint(str(path), self.run.path), weights_only=True)
        self.model.load_state_dict(checkpoint.weights)
        return checkpoint.metadata.model_dump()

    def _started(self) -> Trainer:
        if self.trainer is None:
            raise InputError("nothing to save yet: call train first")
        return self.trainer


class _StopAfterEpoch(Callback):
    """Ends a fit at the end of its first epoch."""

    def on_epoch_end(self, trainer: Any, epoch: int, metrics: dict[str, float]) -> None:
        """Sets `trainer.should_stop`."""
        trainer.should_stop = True


def create_trainer(model: nn.Module, config: TrainingConfig | None = None, **options: Any) -> VoiceTrainer:
    """A `VoiceTrainer`; without `config` with the default one."""
    return VoiceTrainer(model, config, **options)
