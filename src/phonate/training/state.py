"""What a run must restore to resume: parts with `state()` and `restore(state)`, each owned by one object."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from phonate.config.documents import parse
from phonate.config.errors import InputError
from phonate.data.batches.dataset import digest_of
from phonate.data.batches.plan import Consumed
from phonate.training.checkpoints import Checkpoint
from phonate.training.checkpoints.comparison import changed_settings, misfits
from phonate.training.metrics import Best
from phonate.training.steps.ema import EMA
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
        }

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


class TrainingData:
    """What a run is trained on, by digests: a run is not resumed on other data unless that is allowed."""

    def __init__(self, digests: Mapping[str, int], allow_changes: bool) -> None:
        """`digests`: see `Digested`."""
        self.digests = {digest_of(name): (name, content) for name, content in digests.items()}
        self.allow_changes = allow_changes

    def state(self) -> dict[str, NDArray[np.int64]]:
        """The digests of ids (N,) and contents (N,)."""
        contents = [content for _, content in self.digests.values()]
        return {"ids": np.array([*self.digests], dtype=np.int64), "contents": np.array(contents, dtype=np.int64)}

    def restore(self, state: Mapping[str, NDArray[np.int64]] | None) -> None:
        """Compare with what a checkpoint was trained on. Raises InputError where that differs and may not."""
        if state is None:
            logger.info("the checkpoint does not say what data it was trained on, so that changes can't be seen")
            return
        before = dict(zip(state["ids"].tolist(), state["contents"].tolist(), strict=True))
        changed = [name for key, (name, content) in self.digests.items() if before.get(key, content) != content]
        added = [name for key, (name, _) in self.digests.items() if key not in before]
        gone = len(before.keys() - self.digests.keys())
        if not (changed or added or gone):
            return
        differences = [f"{len(changed)} differ{_example(changed)}"] if changed else []
        differences += [f"{len(added)} are new{_example(added)}"] if added else []
        differences += [f"{gone} of those before are gone"] if gone else []
        what = f"of {len(self.digests)} training items {', '.join(differences)}"
        if not self.allow_changes:
            raise InputError(
                f"its training data have changed: {what}; put them back, or go on with what is there now: "
                "training.checkpoint.allow_changed_data=true"
            )
        logger.warning("resuming with changed training data: %s", what)


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
        self._left_out = set() if keep_features else _feature_buffers(model)

    def raw(self) -> dict[str, Tensor]:
        """The weights that training goes on from."""
        saved = self.task.saved(self.model)
        return {name: tensor for name, tensor in saved.items() if name not in self._left_out}

    def for_inference(self, averaged: bool) -> dict[str, Tensor]:
        """The weights that inference uses: the averages where there are any and they are `averaged_is_better`."""
        averages = self.ema.state() if self.ema is not None and averaged else {}
        return {name: averages.get(name, tensor) for name, tensor in self.raw().items()}

    def state(self) -> dict[str, Tensor] | None:
        """The raw weights; None without an average, where they are the checkpoint's weights."""
        return None if self.ema is None else self.raw()

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Load weights into the model. Raises RuntimeError or CheckpointError where they do not fit it."""
        self.task.restore(self.model, {**self.task.saved(self.model), **state})


def collect(parts: Parts) -> dict[str, Any]:
    """The state of every part. All ranks call it together."""
    return {name: None if part is None else part.state() for name, part in parts.items()}


def restore(parts: Parts, weights: Weights, checkpoint: Checkpoint, recipe_yaml: str) -> None:
    """Restore weights and state from `checkpoint`. Raises InputError, naming it, where it can't be resumed.

    `recipe_yaml`: the run's recipe, to name what was changed in it.
    """
    conflict = weights.task.resume_conflict(checkpoint.inference)
    if conflict is not None:
        raise InputError(f"{checkpoint.path}: {conflict}")
    saved = checkpoint.state
    tensors = saved["raw"] or checkpoint.weights
    check_fit(checkpoint, tensors, weights, recipe_yaml)
    weights.restore(tensors)
    for name, part in parts.items():
        if part is None or part is weights:
            continue
        try:
            part.restore(saved.get(name))
        except InputError as error:
            raise InputError(
                f"{checkpoint.path} can't be resumed: {error}; a new run can start from its weights with "
                f"training.init_from={checkpoint.path}"
            ) from error


def batch_size_of(recipe_yaml: str) -> int | None:
    """`training.batch_size` of a resolved recipe; None where there is no recipe."""
    return parse(recipe_yaml, "recipe.yaml").values["training"]["batch_size"] if recipe_yaml else None


def check_fit(checkpoint: Checkpoint, tensors: Mapping[str, Tensor], weights: Weights, recipe_yaml: str) -> None:
    """Raise InputError for a checkpoint of another model, naming the settings of the model that were changed."""
    current = weights.task.saved(weights.model)
    found = misfits(tensors, current)
    # Buffers may be left out (random features), and earlier versions had fewer; parameters are all there.
    parameters = (name for name, _ in weights.model.named_parameters())
    found += [f"{name} is not in it" for name in parameters if name in current and name not in tensors]
    if not found:
        return
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    changed = changed_settings(checkpoint.recipe_yaml, recipe_yaml) if checkpoint.recipe_yaml and recipe_yaml else []
    causes = "; ".join(str(one) for one in changed if not one.path.startswith("training."))
    raise InputError(
        f"{checkpoint.path} does not fit this model: {found[0]}{more}"
        f"{f' (changed: {causes})' if causes else ''}; put the model's settings back, or start another run with "
        f"training.init_from={checkpoint.path}"
    )


def _feature_buffers(model: nn.Module) -> set[str]:
    """Names of the buffers of modules whose random features are redrawn."""
    return {
        f"{name}.{buffer}" if name else buffer
        for name, module in model.named_modules()
        if hasattr(module, "redraw_features")
        for buffer, _ in module.named_buffers(recurse=False)
    }
