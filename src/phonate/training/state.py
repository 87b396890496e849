"""The state of a run, by parts: saved to checkpoints, compared and restored by a resume."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from phonate.compute.distributed import like
from phonate.config.errors import CheckpointError, InputError, option
from phonate.config.metrics import Better, plain
from phonate.data.batches import Consumed, digest_of
from phonate.training.checkpoints import Checkpoint, CheckpointManager, listing
from phonate.training.checkpoints.loading import changed_settings, difference, misfits
from phonate.training.ema import EMA
from phonate.training.meters import Meters
from phonate.training.metrics import Best
from phonate.training.step import TrainStep
from phonate.training.task import Stateful, Task

logger = logging.getLogger(__name__)

Parts = Mapping[str, Stateful | None]
"""The parts of a run's state by their name in the checkpoint. None: this run has no such part."""


@dataclass
class Progress:
    """Where a run is."""

    best: Best
    averaged_is_better: bool
    """Whether inference uses the averaged weights (see `training.ema.validate_with`)."""
    step: int = 0
    """Optimizer steps done."""
    epoch: int = 0
    """Epochs done."""
    consumed: Consumed = ()
    """What was consumed of the current epoch: () between two epochs."""
    batches: int | None = None
    """The same in micro-batches, in a checkpoint of a version that counted those."""
    should_stop: bool = False
    """A callback sets this to end training after the current step."""
    unfinished: bool = False
    """A signal stopped the run after a step and before the validation and saving that belong to it."""
    logged: int = 0
    """The last step whose training metrics were written."""
    last_training: dict[str, float] = field(default_factory=dict)
    """Means of the latest epoch, names beginning with `train_`."""
    last_validation: dict[str, float] = field(default_factory=dict)
    """Metrics of the latest validation, names beginning with `val_`."""
    validated: int = 0
    """The step of that validation."""

    def state(self) -> dict[str, Any]:
        """All fields."""
        return {
            "step": self.step,
            "epoch": self.epoch,
            "consumed": self.consumed,
            "unfinished": self.unfinished,
            "logged": self.logged,
            "should_stop": self.should_stop,
            "best": self.best.state(),
            "averaged_is_better": self.averaged_is_better,
            "training": self.last_training,
            "validation": self.last_validation,
            "validated": self.validated,
        }

    def metrics(self) -> dict[str, float]:
        """Metrics of the validation of these very weights; empty where the latest one was of earlier ones."""
        return self.last_validation if self.validated == self.step else {}

    def running_epoch(self) -> int:
        """The epoch that the next step is in, or between two epochs the one that has ended: people count from 1."""
        return max(self.epoch + bool(self.consumed), 1)

    def consume(self, samples: int, max_frames: int | None) -> None:
        """Count samples of the current epoch that were in batches under the cap `max_frames`."""
        *before, (cap, count) = self.consumed or ((max_frames, 0),)
        latest = ((cap, count + samples),) if cap == max_frames else ((cap, count), (max_frames, samples))
        self.consumed = (*before, *latest)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore all fields."""
        self.step, self.epoch = state["step"], state["epoch"]
        self.consumed = tuple((cap, count) for cap, count in state.get("consumed", ()))
        self.batches = state.get("batch")
        self.unfinished = state["unfinished"]
        self.logged = state.get("logged", 0)
        # Callbacks decide anew whether the run is over, because their options may have changed: early stopping does
        # so before the first step. Only a stop requested in the very step that was interrupted is not requested again.
        self.should_stop = state["should_stop"] and state["unfinished"]
        self.best.restore(state["best"])
        self.averaged_is_better = state["averaged_is_better"]
        self.last_training = state.get("training", {})  # checkpoints of 0.1.0 have none
        self.last_validation = state["validation"]
        self.validated = state.get("validated", state["best"]["step"])  # 0.2.0 noted that of the best alone


class TrainingData:
    """What a run is trained on, by digests: a run is not resumed on other data unless that is allowed."""

    kind = "training"

    def __init__(self, digests: Mapping[str, int], allow_changes: bool) -> None:
        """`digests`: see `DigestedDataset`."""
        self.digests = {digest_of(name): (name, content) for name, content in digests.items()}
        self.allow_changes = allow_changes

    def state(self) -> dict[str, NDArray[np.int64]]:
        """The digests of ids (N,) and contents (N,)."""
        contents = [content for _, content in self.digests.values()]
        return {"ids": np.array([*self.digests], dtype=np.int64), "contents": np.array(contents, dtype=np.int64)}

    def restore(self, state: Mapping[str, NDArray[np.int64]] | None) -> None:
        """Compare with what a checkpoint was trained on. Raises InputError where that differs and may not."""
        if state is None or not len(state["ids"]):
            logger.info("the checkpoint does not say what data it was trained on, so that changes can't be seen")
        if not (changes := self.changes(state)):
            return
        if not self.allow_changes:
            raise InputError(
                f"its training data have changed: {changes}; put them back, or go on with what is there now: "
                "training.checkpoint.allow_changed_data=true"
            )
        logger.warning("resuming with changed training data: %s", changes)

    def changes(self, state: Mapping[str, NDArray[np.int64]] | None) -> str:
        """How many items differ, are new, or are gone since a checkpoint with this state; empty where none, or where
        that is not known."""
        if state is None or not len(state["ids"]):
            return ""
        before = dict(zip(state["ids"].tolist(), state["contents"].tolist(), strict=True))
        changed = [name for key, (name, content) in self.digests.items() if before.get(key, content) != content]
        added = [name for key, (name, _) in self.digests.items() if key not in before]
        gone = len(before.keys() - self.digests.keys())
        differences = [f"{len(changed)} differ{_example(changed)}"] if changed else []
        differences += [f"{len(added)} are new{_example(added)}"] if added else []
        differences += [f"{gone} of the {len(before)} before are gone"] if gone else []
        return f"of {len(self.digests)} {self.kind} items, {', '.join(differences)}" if differences else ""


class ValidationData(TrainingData):
    """What a run is validated on: other data are said, as metrics do not compare with those before."""

    kind = "validation"

    def __init__(self, digests: Mapping[str, int]) -> None:
        super().__init__(digests, allow_changes=True)

    def restore(self, state: Mapping[str, NDArray[np.int64]] | None) -> None:
        """Compare with what a checkpoint was validated on; those of earlier versions do not say."""
        if changes := self.changes(state):
            logger.warning("validation data have changed: %s; metrics do not compare with those before", changes)


def _example(names: Sequence[str]) -> str:
    return f" (such as {names[0]})" if len(names) > 1 else f" ({names[0]})"


class Weights:
    """The model's weights as a checkpoint stores them.

    Where there is an average, inference uses it and training resumes from the raw weights, which are the part `raw`.
    """

    def __init__(self, task: Task, model: nn.Module, ema: EMA | None, keep_features: bool) -> None:
        """`keep_features`: whether redrawn random features are stored too."""
        self.task = task
        self.model = model
        self.ema = ema
        self.left_out = set() if keep_features else _feature_buffers(model)
        """Names of the tensors that are not stored."""

    def raw(self) -> dict[str, Tensor]:
        """The weights that training goes on from."""
        saved = self.task.saved(self.model)
        return {name: tensor for name, tensor in saved.items() if name not in self.left_out}

    def for_inference(self, averaged: bool) -> dict[str, Tensor]:
        """The weights that inference uses: the averages where there are any and they are `averaged_is_better`."""
        averages = self.ema.state() if self.ema is not None and averaged else {}
        return {name: averages.get(name, tensor) for name, tensor in self.raw().items()}

    def state(self) -> dict[str, Tensor] | None:
        """The raw weights; None without an average, where they are the checkpoint's weights."""
        return None if self.ema is None else self.raw()

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Load weights into the model. Raises RuntimeError or CheckpointError where they do not fit it."""
        saved = self.task.saved(self.model)
        state = {name: like(tensor, saved[name]) if name in saved else tensor for name, tensor in state.items()}
        self.task.restore(self.model, {**saved, **state})


def collect(parts: Parts) -> dict[str, Any]:
    """The state of every part. All ranks call it together."""
    return {name: None if part is None else part.state() for name, part in parts.items()}


def restore(parts: Parts, weights: Weights, checkpoint: Checkpoint, recipe_yaml: str) -> None:
    """Restore weights and state from `checkpoint`. Raises InputError where it can't be resumed.

    `recipe_yaml`: the run's recipe, to name what was changed in it.
    """
    saved, task = checkpoint.state, weights.task
    tensors = saved["raw"] or checkpoint.weights
    check_fit(checkpoint, tensors, weights, recipe_yaml)
    weights.restore(tensors)
    for name, part in parts.items():
        if part is None or part is weights:
            continue
        state = saved.get(name)
        if state is None and name == "task":
            state = checkpoint.inference.get(task.earlier_keys.get("own_state", ""))
        part.restore(state)


def check_identity(
    checkpoint: Checkpoint, task: Task, identity: Mapping[str, Any], recipe_yaml: str, data: TrainingData | None = None
) -> None:
    """Raise InputError where a checkpoint does not agree with the task's `identity`, naming what differs, and what may
    be the cause: changed settings, or changed `data`, from which a tokenizer is learnt."""
    before = checkpoint.state.get("identity")
    if before is None:  # of a version that compared what inference needs
        keys = {name: task.earlier_keys.get(name, name) for name in identity}
        before = {name: checkpoint.inference[key] for name, key in keys.items() if key in checkpoint.inference}
        mappings = {name for name, value in before.items() if isinstance(value, dict)}
        before |= {name: list(before[name]) for name in mappings if isinstance(identity[name], list)}  # their keys
    differences = [
        f"{name.replace('_', ' ')} ({difference(before[name], value)})"
        for name, value in identity.items()
        if name in before and before[name] != value  # earlier versions knew fewer facts
    ]
    if differences:
        changes = "" if data is None else data.changes(checkpoint.state.get("data"))
        also = f"; its training data have changed: {changes}" if changes else ""
        raise InputError(
            f"it was not trained with the same {', '.join(differences)}{_causes(checkpoint, recipe_yaml)}{also}; put "
            "back what it was trained with"
        )


def _causes(checkpoint: Checkpoint, recipe_yaml: str) -> str:
    """The settings outside `training` that were changed since `checkpoint`, for an error message."""
    changed = changed_settings(checkpoint.recipe_yaml, recipe_yaml) if checkpoint.recipe_yaml and recipe_yaml else []
    causes = "; ".join(str(one) for one in changed if not one.path.startswith("training."))
    return f" (changed: {causes})" if causes else ""


def check_fit(checkpoint: Checkpoint, tensors: Mapping[str, Tensor], weights: Weights, recipe_yaml: str) -> None:
    """Raise InputError for a checkpoint of another model, naming the settings of the model that were changed."""
    current = weights.task.saved(weights.model)
    errors = misfits(tensors, current)
    # Buffers may be left out (random features), and earlier versions had fewer; parameters are all there.
    parameters = (name for name, _ in weights.model.named_parameters())
    errors += [f"{name} is not in it" for name in parameters if name in current and name not in tensors]
    if not errors:
        return
    more = f" and {len(errors) - 1} more" if len(errors) > 1 else ""
    raise InputError(
        f"it does not fit this model: {errors[0]}{more}{_causes(checkpoint, recipe_yaml)}; "
        "put the model's settings back"
    )


def _feature_buffers(model: nn.Module) -> set[str]:
    """Names of the buffers of modules whose random features are redrawn."""
    return {
        f"{name}.{buffer}" if name else buffer
        for name, module in model.named_modules()
        if hasattr(module, "redraw_features")
        for buffer, _ in module.named_buffers(recurse=False)
    }


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

    @cached_property
    def identity(self) -> Mapping[str, Any]:
        """What a checkpoint must agree with to be resumed."""
        return self.weights.task.identity()

    def save(self, is_best: bool = False) -> bool:
        """Save the current step in the background, on the first rank; False where that was done. All ranks call it."""
        progress = self.progress
        if progress.step == self._saved_step and not is_best:
            return False
        self.train_step.finite.flush()  # weights that a bad batch has spoilt are not saved over good ones
        self._saved_step = progress.step
        ranks = self.train_step.ranks
        if ranks.sharded:
            self.checkpoints.make_room(progress.step)
            ranks.wait()  # the first one may still write the save before
        collected = collect(self.parts)
        if not ranks.is_main:
            if ranks.sharded:
                self.checkpoints.save_shard(
                    progress.step, self.weights.for_inference(progress.averaged_is_better), collected
                )
            return True
        epoch = self.meters.epoch_means(collected["meters"], self.train_step.weights)
        training = {f"train_{name}": value for name, value in epoch.items()} or progress.last_training
        best, model = progress.best, self.train_step.model
        self.checkpoints.save_checkpoint(
            step=progress.step,
            epoch=progress.epoch,
            weights=self.weights.for_inference(progress.averaged_is_better),
            state={**collected, "identity": self.identity},
            metrics={**training, **progress.metrics()},
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
        """Resume from a checkpoint. Raises InputError, naming it, where it does not fit this run."""
        task = self.weights.task
        try:
            data = self.parts.get("data")
            assert data is None or isinstance(data, TrainingData)
            check_identity(checkpoint, task, self.identity, self.recipe_yaml, data)
            restore(self.parts, self.weights, checkpoint, self.recipe_yaml)
        except InputError as error:
            raise InputError(
                f"{checkpoint.path} can't be resumed: {error}; or begin a run in another folder ({option('output')}), "
                f"which {shlex.quote(f'training.init_from={checkpoint.path}')} starts from these weights, for the "
                "recipe's own number of steps"
            ) from error
        self._saved_step = -1  # what was saved later may be damaged: it is saved again
        task.step = max(0, self.progress.step - 1)
        self.train_step.weights = self.train_step.loss_weights(task.step)

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
        return self.latest_save()

    def latest_save(self) -> str:
        """The same, without waiting for a save in the background."""
        saved = listing.newest_first(listing.scan(self.checkpoints.folder))
        return f"the last checkpoint is {saved[0].path}" if saved else "there is no checkpoint yet"
