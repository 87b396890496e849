"""What training refuses before it reads the corpus, or before its first step.

Imports no torch, so that `phonate explain` refuses the same at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from phonate.config.errors import InputError
from phonate.config.tasks import Coupling, Traits
from phonate.training.callbacks import NOTHING_TO_REDRAW, Callback, FeatureRedrawCallback, build_callbacks
from phonate.training.checkpoints import resolve_checkpoint
from phonate.training.metrics import MetricOption, check_shown, directed, watches
from phonate.training.settings import TrainingSettings
from phonate.training.trackers import check_trackers


def check_settings(
    traits: Traits, settings: TrainingSettings, world_size: int, begins: bool = True, callbacks: Sequence[Callback] = ()
) -> tuple[TrainingSettings, list[MetricOption], list[Callback]]:
    """Refuse what can be refused before the corpus is read.

    Args:
        traits: Those of the task.
        world_size: Processes that train together.
        begins: Whether the run begins, and does not continue from a checkpoint.
        callbacks: Further ones than the settings ask for.

    Returns:
        The settings with the directions of their metrics, the options that name metrics, and the callbacks that the
        settings ask for.

    Raises InputError, MissingPackageError.
    """
    if begins and settings.init_from is not None:
        try:
            resolve_checkpoint(settings.init_from)
        except InputError as error:
            raise InputError(f"training.init_from: {error}") from error
    _check_task(traits, settings, world_size)
    check_trackers(settings.logging)
    configured = build_callbacks(settings)
    if not traits.random_features and any(isinstance(one, FeatureRedrawCallback) for one in configured):
        raise InputError(NOTHING_TO_REDRAW)
    _check_shown(traits, settings, [*configured, *callbacks])
    return *directed(settings, traits.metrics, [*configured, *callbacks]), configured


def _check_shown(traits: Traits, settings: TrainingSettings, callbacks: Sequence[Callback]) -> None:
    """Refuse names of metrics to show that nothing reports, where all that are reported are known beforehand: the task
    declares its own, and there is no callback from elsewhere. Raises UnknownMetricError."""
    shown, declared = settings.logging.log_metrics, traits.metrics
    foreign = any(not type(one).__module__.startswith("phonate.") for one in callbacks)
    if shown is not None and declared is not None and not foreign:
        names = [one.name for one in declared]
        check_shown(shown, [*names, *traits.terms, *settings.loss.weights])


def _check_task(traits: Traits, settings: TrainingSettings, world_size: int) -> None:
    """Refuse settings under which a task can't be trained as they mean it. Raises InputError."""
    if traits.coupling is Coupling.BATCH and world_size > 1:
        raise InputError("the task's loss depends on the whole batch, which ranks would split; use one process")
    strategy = settings.distributed.strategy
    if strategy != "ddp" and not traits.divides:
        raise InputError("training.distributed.strategy: this task does not divide its weights; choose ddp")
    if strategy != "ddp" and settings.mixed_precision == "fp16":
        raise InputError(f"training.mixed_precision: {strategy} does not scale losses for fp16; choose bf16 or fp32")
    if traits.coupling is not Coupling.NONE and settings.performance.split_by_length:
        raise InputError(
            "training.performance.split_by_length: the loss of an item depends on the other items of its batch, which "
            "can't be split; set it to false"
        )


def check_watched(settings: TrainingSettings, callbacks: Sequence[Callback], validated: bool) -> None:
    """Refuse what waits for validations in a run that has none. Raises InputError, naming the option."""
    if validated:
        return
    waiting = []
    if settings.scheduler.type == "plateau":
        waiting.append("training.scheduler.type: plateau")
    if settings.early_stopping is not None:
        waiting.append("training.early_stopping")
    elif watching := {type(one).__name__ for one in callbacks if watches([one])}:
        waiting.append(f"training.callbacks: {', '.join(sorted(watching))}")
    if settings.checkpoint.save_best_only:
        waiting.append("training.checkpoint.save_best_only")
    if waiting:
        raise InputError(
            f"{' and '.join(waiting)} can't do without validation, and there are no validation samples; keep some "
            "back (data.validation above 0, or a loader for validation), or leave the option out"
        )
