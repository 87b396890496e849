"""What a checkpoint holds beside the weights: everything that the rest of the run depends on."""

from __future__ import annotations

import dataclasses
import inspect
import logging
import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from phonate.compute.distributed import Ranks
from phonate.config.errors import InputError
from phonate.training.checkpoints import Checkpoint
from phonate.training.checkpoints.comparison import changed_settings, misfits
from phonate.training.meter import Meter

if TYPE_CHECKING:
    from phonate.training.trainer import Trainer


logger = logging.getLogger("phonate")


def weights(trainer: Trainer) -> tuple[dict[str, Tensor], dict[str, Tensor] | None]:
    """The weights that inference uses, and, where there is an average, the raw ones that training goes on from."""
    left_out = set() if trainer.settings.checkpoint.snapshot_features else _feature_buffers(trainer.model)
    raw = {name: tensor for name, tensor in trainer.task.saved(trainer.model).items() if name not in left_out}
    if trainer.ema is None:
        return raw, None
    averages = trainer.ema.state() if trainer.averaged_is_better else {}
    return {name: averages.get(name, tensor) for name, tensor in raw.items()}, raw


def meters(trainer: Trainer) -> list[Any]:
    """What each rank has counted since the last log line and in this epoch. All ranks must ask together."""
    return trainer.ranks.gather([trainer.train_step.meter.state(), trainer.epoch_meter.state()])


def epoch_so_far(trainer: Trainer, counted: list[Any]) -> dict[str, float]:
    """Means of the current epoch over all ranks, names beginning with `train_`; empty at its beginning. `counted`: the
    result of `meters`."""
    whole = Meter()
    for one in (one for pair in counted for one in pair):
        part = Meter()
        part.restore(one)
        whole.absorb(part)
    means = whole.means(trainer.train_step.weights, Ranks())
    return {f"train_{name}": value for name, value in means.items()}


def collect(trainer: Trainer, raw: dict[str, Tensor] | None, counted: list[Any]) -> dict[str, Any]:
    """The state as nested plain values and tensors. `raw`: the second result of `weights`; `counted`: of `meters`."""
    snapshot = trainer.settings.checkpoint
    phases: dict[str, Any] = {}
    for one in trainer.phases:
        phases[one.phase.name] = {
            "type": type(one.optimizer).__name__,
            **({"optimizer": one.optimizer.state_dict()} if snapshot.snapshot_optimizer else {}),
            **({"schedule": one.schedule.state()} if snapshot.snapshot_scheduler else {}),
        }
    return {
        "trainer": {
            "step": trainer.step,
            "epoch": trainer.epoch,
            "batch": trainer.batch,
            "unfinished": trainer.unfinished,
            "should_stop": trainer.should_stop,
            "best": dataclasses.asdict(trainer.best),
            "averaged_is_better": trainer.averaged_is_better,
            "training": trainer.last_training,
            "validation": trainer.last_validation,
        },
        "phases": phases,
        "raw": raw,
        "ema": None if trainer.ema is None else trainer.ema.state(),
        "precision": trainer.train_step.precision.state(),
        "meters": counted,
        "callbacks": trainer.callbacks.state_dict(),
        "random": global_generators() if snapshot.snapshot_random_states else None,
    }


def restore(trainer: Trainer, checkpoint: Checkpoint) -> None:
    """Put weights and state of `checkpoint` back. Raises InputError when it was saved without what a resume needs."""
    if (reason := trainer.task.resume_conflict(checkpoint.inference)) is not None:
        raise InputError(f"{checkpoint.path}: {reason}")
    saved = checkpoint.state
    tensors = saved["raw"] or checkpoint.weights
    current = trainer.task.saved(trainer.model)
    check_fit(checkpoint, tensors, current, trainer.recipe_yaml)
    trainer.task.restore(trainer.model, {**current, **tensors})
    for one in trainer.phases:
        phase = saved["phases"].get(one.phase.name, {})
        if "optimizer" not in phase:
            raise InputError(
                f"{checkpoint.path} holds no optimizer state for {one.phase.name!r} (snapshot_optimizer: false?): it "
                f"can't be resumed; start from its weights with training.init_from={checkpoint.path}"
            )
        if phase["type"] != type(one.optimizer).__name__:
            raise InputError(
                f"training.optimizer.type: {checkpoint.path} was saved with {phase['type']}, whose state no other "
                f"optimizer can go on with; start from its weights with training.init_from={checkpoint.path}"
            )
        _restore_optimizer(one.optimizer, phase["optimizer"])
        if "schedule" in phase:
            one.schedule.restore(phase["schedule"])
    if trainer.ema is not None:
        if saved["ema"] is None:  # switched on for the rest of the run
            trainer.ema.reset()
        else:
            trainer.ema.restore(saved["ema"])
    trainer.train_step.precision.restore(saved["precision"])
    _restore_meters(trainer, saved["meters"])
    trainer.callbacks.load_state_dict(saved["callbacks"])
    _restore_progress(trainer, saved["trainer"])


def check_fit(
    checkpoint: Checkpoint, tensors: Mapping[str, Tensor], current: Mapping[str, Tensor], recipe_yaml: str
) -> None:
    """Raise InputError for a checkpoint of another model, naming the settings of the model that were changed."""
    found = misfits(tensors, current)
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


def _restore_optimizer(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Put the state back, but keep the options: they are the recipe's, and may have been changed for the rest."""
    options = {"initial_lr", *inspect.signature(type(optimizer)).parameters} - {"params", "lr"}
    asked = [{name: group[name] for name in options & group.keys()} for group in optimizer.param_groups]
    optimizer.load_state_dict(saved)
    for group, own in zip(optimizer.param_groups, asked, strict=True):
        group.update(own)


def _restore_meters(trainer: Trainer, counted: list[Any]) -> None:
    """Each rank goes on with its own counts; where the number of ranks has changed, the first takes them all."""
    pairs = (trainer.train_step.meter, trainer.epoch_meter)
    if len(counted) == trainer.ranks.world_size:
        for meter, one in zip(pairs, counted[trainer.ranks.rank], strict=True):
            meter.restore(one)
        return
    for number, meter in enumerate(pairs):
        for one in counted:
            part = Meter()
            # all ranks have the same names: they are summed together
            mine = one[number] if trainer.ranks.is_main else {name: [0.0, 0.0] for name in one[number]}
            part.restore(mine)
            meter.absorb(part)


def _restore_progress(trainer: Trainer, progress: Mapping[str, Any]) -> None:
    trainer.step, trainer.epoch, trainer.batch = progress["step"], progress["epoch"], progress["batch"]
    trainer.unfinished = progress["unfinished"]
    # Whether the run is over is asked of the callbacks anew, for their options may have been changed: of early
    # stopping before the first step. What asked for it in the very step that was interrupted won't be asked again.
    trainer.should_stop = progress["should_stop"] and progress["unfinished"]
    _restore_best(trainer, progress["best"])
    trainer.averaged_is_better = progress["averaged_is_better"]
    trainer.last_training = progress.get("training", {})  # checkpoints of 0.1.0 have none
    trainer.last_validation = progress["validation"]


def _restore_best(trainer: Trainer, saved: Mapping[str, Any]) -> None:
    best = trainer.best
    if (saved["metric"], saved["greater_is_better"]) == (best.metric, best.greater_is_better):
        best.value, best.step = saved["value"], saved["step"]
    elif saved["value"] is not None:
        logger.info("the best so far was chosen by %s; it is chosen anew by %s", saved["metric"], best.metric)


def _feature_buffers(model: nn.Module) -> set[str]:
    """Names of the buffers of modules whose random features are redrawn."""
    return {
        f"{name}.{buffer}" if name else buffer
        for name, module in model.named_modules()
        if hasattr(module, "redraw_features")
        for buffer, _ in module.named_buffers(recurse=False)
    }


def seed_global_generators(seed: int) -> None:
    """Seed Python's and numpy's global generators. Nothing of ours draws from them; plug-ins and callers may."""
    random.seed(seed)
    np.random.seed(seed % 2**32)


def start_global_generators(seed: int, checkpoint: Checkpoint | None) -> None:
    """Seed the global generators for a run that begins, or put back those of the checkpoint that it is resumed from.

    Called right before the first step: a library may draw from them when it is first imported, as rich does.
    """
    saved = None if checkpoint is None else checkpoint.state["random"]
    if saved is None:
        seed_global_generators(seed)
    else:
        restore_global_generators(saved)


def global_generators() -> dict[str, Any]:
    """The states of Python's, numpy's and torch's global generators."""
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=False),
        "torch": torch.get_rng_state(),
    }


def restore_global_generators(states: Mapping[str, Any]) -> None:
    """Put states back."""
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
