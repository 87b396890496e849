"""`VoiceTrainer(model, config).train(train_loader, val_loader)`: the trainer for a model and two loaders.

The order of the batches is the loaders' own. A loader draws from global generators that are seeded from (seed, epoch)
and set aside between two batches, so one that shuffles or augments gives the same batches again after a resume, and
those that were used are skipped.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import nn

from phonate.compute import device as devices
from phonate.compute import distributed
from phonate.config.errors import InputError
from phonate.config.randomness import derived_seed
from phonate.config.settings import Settings
from phonate.data.batches.loading import MicroBatch, halves_of
from phonate.training.callbacks import Callback
from phonate.training.checkpoints import resolve_checkpoint
from phonate.training.losses import LossManager
from phonate.training.run import Run
from phonate.training.settings import (
    CheckpointConfig,
    EarlyStoppingSettings,
    LoggingSettings,
    OptimizerSettings,
    PerformanceSettings,
    SchedulerSettings,
    TrainingSettings,
    ValidationSettings,
)
from phonate.training.state import global_generators, restore_global_generators, seed_global_generators
from phonate.training.task import Batch, Dataset, Task, Terms
from phonate.training.trainer import Trainer

logger = logging.getLogger("phonate")


class TrainingConfig(Settings):
    """Flat settings for `VoiceTrainer`. `settings()` gives the typed ones that recipes use."""

    batch_size: PositiveInt = 32
    """Items a batch (for the log; the loaders decide)."""
    learning_rate: NonNegativeFloat = 1e-4
    """Peak learning rate."""
    num_epochs: PositiveInt = 100
    """Passes over the training loader."""
    gradient_clip: PositiveFloat | None = 1.0
    """Largest gradient norm."""
    weight_decay: NonNegativeFloat = 0.01
    """Weight decay."""
    loss_type: str = "mse"
    """A registered loss, or reconstruction, perceptual, stft."""
    loss_weights: dict[str, NonNegativeFloat] = Field(default_factory=lambda: {"reconstruction": 1.0})
    """Weights of the loss terms."""
    optimizer_type: str = "adamw"
    """A registered optimizer."""
    optimizer_params: dict[str, Any] = Field(default_factory=dict)
    """Further optimizer settings."""
    scheduler_type: str = "cosine"
    """A registered schedule."""
    scheduler_params: dict[str, Any] = Field(default_factory=dict)
    """Further schedule settings."""
    warmup_steps: NonNegativeInt = 1000
    """Optimizer steps of warm-up; at most a tenth of the run is used."""
    use_amp: bool = True
    """16-bit forward pass where the device has it."""
    distributed: bool = False
    """Train over the processes that torchrun started; without a launcher a warning, and one process."""
    local_rank: NonNegativeInt = 0
    """Which GPU of this machine."""
    world_size: PositiveInt = 1
    """Expected number of processes (checked where `distributed`)."""
    log_interval: PositiveInt = 100
    """Steps between log lines."""
    save_interval: PositiveInt = 1000
    """Steps between checkpoints."""
    validate_interval: PositiveInt = 500
    """Steps between validations."""
    max_checkpoints: PositiveInt = 5
    """Checkpoints kept."""
    early_stopping_patience: PositiveInt | None = 10
    """Validations without improvement before the end; null: never."""
    early_stopping_min_delta: NonNegativeFloat = 1e-6
    """Smaller improvements do not count."""
    gradient_accumulation_steps: PositiveInt = 1
    """Batches in one optimizer step."""
    compile_model: bool = False
    """torch.compile the model."""
    seed: NonNegativeInt = 42
    """Seed of everything random."""
    output_dir: str = "runs"
    """Where runs are written: OUTPUT_DIR/experiment_name."""
    verbosity: Literal["quiet", "normal", "debug"] = "normal"
    """What the console shows."""

    def settings(self, total_steps: int, validated: bool = True) -> TrainingSettings:
        """The same as the recipe's `training` part. `total_steps` is the length of the run.

        Without validation (`validated`) only a patience that was asked for is one; the default has nothing to watch.
        """
        early = None
        asked = validated or "early_stopping_patience" in self.model_fields_set
        if self.early_stopping_patience is not None and asked:
            early = EarlyStoppingSettings(
                patience=self.early_stopping_patience, min_delta=self.early_stopping_min_delta
            )
        return TrainingSettings(
            epochs=self.num_epochs,
            batch_size=self.batch_size,
            random_seed=self.seed,
            optimizer=OptimizerSettings(
                type=self.optimizer_type,
                lr=self.learning_rate,
                weight_decay=self.weight_decay,
                **self.optimizer_params,
            ),
            scheduler=SchedulerSettings(
                type=self.scheduler_type,
                warmup_steps=min(self.warmup_steps, total_steps // 10),
                **self.scheduler_params,
            ),
            gradient_clipping=self.gradient_clip,
            gradient_accumulation_steps=self.gradient_accumulation_steps,
            mixed_precision="auto" if self.use_amp else "fp32",
            validation=ValidationSettings(interval=self.validate_interval),
            early_stopping=early,
            checkpoint=CheckpointConfig(interval=self.save_interval, save_total_limit=self.max_checkpoints),
            logging=LoggingSettings(interval=self.log_interval, verbosity=self.verbosity),
            performance=PerformanceSettings(compile_model=self.compile_model),
        )


class Generators:
    """Global generators of a loader's own: within a block they go on from where its last block left them."""

    def __init__(self, seed: int) -> None:
        outside = global_generators()
        seed_global_generators(seed)
        torch.default_generator.manual_seed(seed)
        self._inside = global_generators()
        restore_global_generators(outside)

    def __enter__(self) -> None:
        self._outside = global_generators()
        restore_global_generators(self._inside)

    def __exit__(self, *_: object) -> None:
        self._inside = global_generators()
        restore_global_generators(self._outside)


class LoaderSource:
    """Batches of a caller's loader, in the loader's own order."""

    def __init__(self, loader: Iterable[Batch], seed: int, split: str) -> None:
        if not isinstance(loader, Sized):
            raise InputError("the loader has no length; give one with a map-style dataset")
        self.loader = loader
        self.seed = seed
        self.split = split
        self._length = len(loader)
        if self._length == 0:
            raise InputError(f"the {split} loader has no batches; with drop_last a small data set gives none")

    def steps(self, epoch: int) -> int:
        """Batches in `epoch`."""
        return self._length

    def epoch(self, epoch: int, start: int = 0) -> Iterator[MicroBatch]:
        """Batches from number `start` on. Raises InputError when the loader has fewer than its length says."""
        parts: tuple[Any, ...] = (
            self.loader,
            getattr(self.loader, "sampler", None),
            getattr(self.loader, "dataset", None),
        )
        for part in parts:
            if hasattr(part, "set_epoch"):
                part.set_epoch(epoch)
        own = Generators(derived_seed(self.seed, self.split, epoch))
        with own:
            batches = iter(self.loader)
        for number in range(self._length):
            with own:
                batch = next(batches, None)
            if batch is None:
                raise InputError(
                    f"the {self.split} loader ended after {number} batches, but its length is {self._length}; "
                    "give a loader whose len() is what it yields"
                )
            if number >= start:
                ids = [str(name) for name in batch.get("ids", [])] or [f"{self.split} batch {number}"]
                yield MicroBatch(ids, batch, 1.0)

    def halves(self, planned: MicroBatch, epoch: int) -> tuple[MicroBatch, MicroBatch] | None:
        """The halves of a batch; None where it has one item. Raises InputError where it can't be told apart."""
        batch = planned.batch
        items = len(inputs_of(batch))
        if items < 2:
            return None
        middle = (items + 1) // 2
        names = planned.ids if len(planned.ids) == items else [f"{planned.ids[0]}, item {i}" for i in range(items)]
        first, second = halves_of(batch, items)
        return MicroBatch(names[:middle], first, planned.weight), MicroBatch(names[middle:], second, planned.weight)

    def close(self) -> None:
        """The loader is the caller's."""


def inputs_of(batch: Batch) -> Any:
    """What of a loader's batch goes into the model; its first dimension is the items."""
    return batch["features"] if "features" in batch else batch["mel_spec"]


class LoaderTask(Task):
    """A model and a loss as a task."""

    def __init__(self, model: nn.Module, losses: LossManager) -> None:
        self._model = model
        self.losses = losses
        self.couples_items = losses.couples_items

    def model(self) -> nn.Module:
        """The caller's model."""
        return self._model

    def dataset(self, split: str) -> Dataset:
        """Loaders have no addressable samples."""
        raise AssertionError("a LoaderTask is trained from loaders")

    @property
    def loss_weights(self) -> Mapping[str, float]:
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


def get_default_training_config() -> TrainingConfig:
    """The documented defaults."""
    return TrainingConfig()
