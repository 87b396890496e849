"""`VoiceTrainer(model, config).train(train_loader, val_loader)`: the trainer for a model and loaders.

The order of the batches is the loader's own. The global generators that it draws from are seeded by (seed, epoch) and
swapped in while it runs, so a loader that shuffles or augments gives the same batches again after a resume, and the
samples that were used are skipped.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any

import torch
from torch import nn

from phonate.compute import device as devices
from phonate.compute import distributed
from phonate.config.errors import InputError
from phonate.config.randomness import derived_seed
from phonate.data.batches import Consumed
from phonate.data.loading import MicroBatch, halves_of
from phonate.training.callbacks import Callback
from phonate.training.checkpoints import resolve_checkpoint
from phonate.training.checkpoints.listing import has_checkpoint
from phonate.training.checkpoints.loading import load
from phonate.training.generators import global_generators, restore_global_generators, seed_global_generators
from phonate.training.losses import LossManager
from phonate.training.meters import Meter
from phonate.training.run import Run
from phonate.training.settings import TrainingConfig
from phonate.training.task import Batch, Dataset, Metric, Task, Terms, counted, losses, move, side_by_side
from phonate.training.tracking import log_file
from phonate.training.trainer import Trainer

logger = logging.getLogger("phonate")

# --------------------------------------- A caller's loader as a source of batches that resumes exactly


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

    max_frames: int | None = None

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

    def epoch(self, epoch: int, consumed: Consumed = ()) -> Iterator[MicroBatch]:
        """The batches after the samples that were consumed, which must be at the beginning of the loader's order.

        A batch of which some were consumed is cut. Raises InputError where that can't be done, and when the loader has
        fewer batches than its length says.
        """
        skipped = sum(count for _, count in consumed)
        for number, batch in enumerate(self._loaded(epoch)):
            items = len(inputs_of(batch))
            used, skipped = min(items, skipped), max(0, skipped - items)
            if used == items:
                continue
            ids = [str(name) for name in batch.get("ids", [])] or [f"{self.split} batch {number}"]
            if used:
                ids = ids[used:] if len(ids) == items else ids
                batch = halves_of(batch, items, used)[1]
            yield MicroBatch(ids, batch, samples=items - used, last=number == self._length - 1)

    def consumed_by(self, epoch: int, batches: int, batch_size: int | None) -> Consumed:
        """What the first `batches` batches of `epoch` had consumed, of as many samples as the loader gives now."""
        return ((None, sum(len(inputs_of(batch)) for batch in itertools.islice(self._loaded(epoch), batches))),)

    def digests(self) -> None:
        """None: what the caller's samples are is not known."""
        return None

    def _loaded(self, epoch: int) -> Iterator[Batch]:
        """The loader's batches in `epoch`. Raises InputError when there are fewer than its length says."""
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
            yield batch

    def loading(self) -> str:
        """Not known."""
        return ""

    def leave_out(self, samples: Mapping[str, str]) -> None:
        """Nothing: the loader decides."""

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


# --------------------------------------------------------------- A caller's model and losses as a task


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
        keywords: dict[str, Any] = {}
        if "speaker_id" in batch:
            keywords["speaker_id"] = batch["speaker_id"]
        if "lengths" in batch:
            keywords["lengths"] = batch["lengths"]
        return self.losses.terms(model(inputs, **keywords), batch, model)

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The loss terms."""
        return losses(self.losses.weights)

    def metric_names(self) -> Mapping[str, str]:
        """Means over an epoch and validations stand together."""
        return side_by_side(self.losses.weights)


# --------------------------------------- `VoiceTrainer(model, config).train(train_loader, val_loader)`


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
        self.run = Run(
            Path(self.config.output_dir) / experiment_name,
            resumed_by='train(..., checkpoint_path="auto")',
            placed_by="experiment_name or TrainingConfig.output_dir",
        )
        name = None if gpu_manager is None else str(gpu_manager.device)
        self.device = devices.choose("mixed", name)
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
        resuming = checkpoint_path is not None
        return self._fit(train_dataloader, val_dataloader, resume, self.callbacks, self.config, resuming=resuming)

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
                    meter.add(counted(self.task.loss(model, move(planned.batch, self.device), ""), None))
        finally:
            model.train(was_training)
        means = meter.means(self.task.loss_weights(0), distributed.Ranks())
        return {f"val_{name}": value for name, value in means.items()}

    def _checkpoint(self, name: str | Path | None) -> Path | None:
        """The checkpoint to resume from, None to start; the run's folder is made."""
        there = has_checkpoint(self.run.path)
        if name is None and there:
            raise self.run.taken()
        if name is None or (str(name) == "auto" and not there):
            return None
        return resolve_checkpoint(str(name), self.run.path)

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
        with ranks.together(), owned, log_file(self.run.log, ranks):
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
