"""Saving and restoring a run."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from phonate.config.errors import CheckpointError
from phonate.config.metrics import Better, plain
from phonate.training.checkpoints import Checkpoint, CheckpointManager, listing
from phonate.training.state import Parts, Progress, Weights, collect, restore
from phonate.training.steps.meter import Meters
from phonate.training.steps.step import TrainStep

logger = logging.getLogger(__name__)


class Saver:
    """Writes checkpoints of a run and restores them.

    Args:
        checkpoints: Where they are kept.
        parts: The run's state; it has `progress` and `weights` among it.
        progress: Where the run is.
        weights: The model's weights.
        meters: The losses of the current epoch.
        train_step: Whose losses must be finite before anything is saved.
        run_name: The run's name, for the metadata.
        recipe_yaml: The resolved recipe. Empty: a run without one.
        directions: The better direction of metrics besides loss terms, where it is known.
    """

    def __init__(
        self,
        checkpoints: CheckpointManager,
        parts: Parts,
        progress: Progress,
        weights: Weights,
        meters: Meters,
        train_step: TrainStep,
        run_name: str,
        recipe_yaml: str,
        directions: Mapping[str, Better],
    ) -> None:
        self.checkpoints = checkpoints
        self.parts = parts
        self.progress = progress
        self.weights = weights
        self.meters = meters
        self.train_step = train_step
        self.run_name = run_name
        self.recipe_yaml = recipe_yaml
        self.directions = directions
        self._saved_step = -1

    def save(self, is_best: bool = False) -> bool:
        """Save the current step in the background, on the first rank; False where that was done. All ranks call it."""
        progress = self.progress
        if progress.step == self._saved_step and not is_best:
            return False
        self._saved_step = progress.step
        self.train_step.finite.flush()  # weights that a bad batch has spoilt are not saved over good ones
        collected = collect(self.parts)
        if not self.train_step.ranks.is_main:
            return True
        epoch = self.meters.epoch_means(collected["meters"], self.train_step.weights)
        training = {f"train_{name}": value for name, value in epoch.items()} or progress.last_training
        best, model = progress.best, self.train_step.model
        self.checkpoints.save_checkpoint(
            step=progress.step,
            epoch=progress.epoch,
            weights=self.weights.for_inference(progress.averaged_is_better),
            state=collected,
            metrics={**training, **progress.last_validation},
            learning_rate=self.train_step.phases[0].lr,
            model_name=type(model).__name__,
            experiment_name=self.run_name,
            recipe_yaml=self.recipe_yaml,
            architecture=str(model),
            best_metric=None if best.value is None else (best.metric, best.value),
            greater_is_better=best.greater_is_better,
            directions={**{plain(name): "lower" for name in training}, **self.directions},
            is_best=is_best,
            export=self.weights.task.inference_metadata(model),
        )
        return True

    def restore(self, checkpoint: Checkpoint) -> None:
        """Resume from a checkpoint. Raises InputError where it does not fit this run."""
        restore(self.parts, self.weights, checkpoint, self.recipe_yaml)
        task = self.weights.task
        task.step = max(0, self.progress.step - 1)
        self.train_step.weights = self.train_step.loss_weights(task.step)
        logger.info("resumed from %s at step %d, epoch %d", checkpoint.path, self.progress.step, self.progress.epoch)

    def restore_best(self) -> Path | None:
        """Load the weights of the best validation into the model; None where there was no validation."""
        self.checkpoints.flush()
        self.train_step.ranks.wait()  # the first rank's last save is on the disk
        best = self.progress.best
        if best.value is None:
            return None
        checkpoint = self.checkpoints.load_best_checkpoint()
        self.weights.restore(checkpoint.weights)
        logger.info("restored the weights of step %d (%s %.6g)", best.step, best.metric, best.value)
        return checkpoint.path

    def check_space(self) -> None:
        """Raise CheckpointError where the disk has no room for a checkpoint."""
        if self.train_step.ranks.is_main:  # the weights, and about twice as much for the optimizer
            raw = self.weights.task.saved(self.train_step.model)
            self.checkpoints.check_space({"weights": raw, "first moment": raw, "second moment": raw})

    def last_save(self) -> str:
        """What a failed run is left with, for its error message."""
        try:
            self.checkpoints.flush()
        except CheckpointError as failed:  # of a save in the background: it must not hide why the run failed
            logger.error("%s", failed)
        saved = listing.newest_first(listing.scan(self.checkpoints.folder))
        return f"the last checkpoint is {saved[0].path}" if saved else "there is no checkpoint yet"
