"""Callback base class, and the list that calls the hooks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from phonate.data.batches.dataset import Batch
    from phonate.training.schedules import Schedule
    from phonate.training.settings import TrainingSettings

logger = logging.getLogger(__name__)


class TrainerView(Protocol):
    """The part of the trainer that callbacks may use."""

    should_stop: bool
    """Set it to end training after the current step."""

    @property
    def model(self) -> nn.Module:
        """The model, without wrappers."""
        ...

    @property
    def averages(self) -> Mapping[str, Tensor]:
        """The moving averages of the weights, by name. Empty without `training.ema`."""
        ...

    @property
    def optimizers(self) -> Mapping[str, torch.optim.Optimizer]:
        """The optimizer of each phase."""
        ...

    @property
    def schedules(self) -> Mapping[str, Schedule]:
        """The learning-rate schedule of each phase."""
        ...

    @property
    def step(self) -> int:
        """Optimizer steps taken."""
        ...

    @property
    def epoch(self) -> int:
        """The epoch, from 0."""
        ...

    @property
    def settings(self) -> TrainingSettings:
        """The recipe's `training` part."""
        ...

    @property
    def device(self) -> torch.device:
        """The model's device."""
        ...

    def emit(self, metrics: Mapping[str, float]) -> None:
        """Send metrics of this step to the trackers."""
        ...

    def restore_best(self) -> Path | None:
        """Load the weights of the best checkpoint into the model. Returns None if there is none yet."""
        ...


class Callback:
    """Code that runs at fixed points of training. Override the hooks you need; the others cost nothing.

    `metrics` are plain numbers by name. State that must survive a resume goes through `state_dict`.
    """

    def on_train_begin(self, trainer: TrainerView) -> None:
        """Before the first step, after the state of a resumed run was restored."""

    def on_train_end(self, trainer: TrainerView) -> None:
        """After the last step."""

    def on_epoch_begin(self, trainer: TrainerView, epoch: int) -> None:
        """Before the first batch of an epoch (from 0)."""

    def on_epoch_end(self, trainer: TrainerView, epoch: int, metrics: dict[str, float]) -> None:
        """After the last batch of an epoch and the validation that falls on it, if any."""

    def on_batch_begin(self, trainer: TrainerView, batch: Batch) -> None:
        """Before the forward pass of each micro-batch. `batch` is on the device.

        A task with several phases passes all micro-batches of a step through one phase, then through the next; this
        is before the first of them.
        """

    def on_batch_end(self, trainer: TrainerView, batch: Batch, metrics: dict[str, float]) -> None:
        """After the backward pass of each micro-batch, in the last phase of the step that it passes through.

        `metrics` are the means of the loss terms over this micro-batch (over this process's part of it), and `loss`,
        their weighted sum. On a GPU they are waited for, so a callback with this hook slows it down. The optimizer
        has not stepped yet: `trainer.step` and `trainer.epoch` are those that the micro-batch belongs to.
        """

    def on_backward_end(self, trainer: TrainerView) -> None:
        """Once per optimizer step, when the gradients are complete and unscaled, before they are clipped."""

    def on_optimizer_step(self, trainer: TrainerView) -> None:
        """After each optimizer step."""

    def on_validation_begin(self, trainer: TrainerView) -> None:
        """Before a validation."""

    def on_validation_end(self, trainer: TrainerView, metrics: dict[str, float]) -> None:
        """After a validation, with its metrics (val_loss, ...)."""

    def state_dict(self) -> dict[str, Any]:
        """State to save in a checkpoint, as JSON."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""


if TYPE_CHECKING:
    Hook = Callable[[TrainerView], None]
    EpochBegin = Callable[[TrainerView, int], None]
    EpochEnd = Callable[[TrainerView, int, dict[str, float]], None]
    BatchBegin = Callable[[TrainerView, Batch], None]
    BatchEnd = Callable[[TrainerView, Batch, dict[str, float]], None]
    ValidationEnd = Callable[[TrainerView, dict[str, float]], None]


class CallbackList:
    """The callbacks of a run, in order. Each attribute lists the methods that override one hook.

    A loop like `for hook in callbacks.on_batch_end: hook(trainer, batch, metrics)` costs nothing for a
    hook that no callback overrides.
    """

    def __init__(self, callbacks: Iterable[Callback] = ()) -> None:
        self.callbacks = list(callbacks)
        self.on_train_begin: list[Hook] = self._overridden("on_train_begin")
        self.on_train_end: list[Hook] = self._overridden("on_train_end")
        self.on_epoch_begin: list[EpochBegin] = self._overridden("on_epoch_begin")
        self.on_epoch_end: list[EpochEnd] = self._overridden("on_epoch_end")
        self.on_batch_begin: list[BatchBegin] = self._overridden("on_batch_begin")
        self.on_batch_end: list[BatchEnd] = self._overridden("on_batch_end")
        self.on_backward_end: list[Hook] = self._overridden("on_backward_end")
        self.on_optimizer_step: list[Hook] = self._overridden("on_optimizer_step")
        self.on_validation_begin: list[Hook] = self._overridden("on_validation_begin")
        self.on_validation_end: list[ValidationEnd] = self._overridden("on_validation_end")

    def _overridden(self, hook: str) -> list[Any]:
        return [
            getattr(callback, hook)
            for callback in self.callbacks
            if getattr(getattr(callback, hook), "__func__", None) is not getattr(Callback, hook)
        ]

    def state(self) -> list[dict[str, Any]]:
        """The type and state of each callback."""
        return [{"type": type(callback).__qualname__, "state": callback.state_dict()} for callback in self.callbacks]

    def restore(self, states: Iterable[Mapping[str, Any]]) -> None:
        """Restore the callbacks of the same type in the same order.

        Callbacks added since the checkpoint keep their initial state; the state of removed ones is dropped and logged.
        """
        waiting: dict[str, list[Mapping[str, Any]]] = {}
        for state in states:
            waiting.setdefault(state["type"], []).append(state["state"])
        for callback in self.callbacks:
            own = waiting.get(type(callback).__qualname__)
            if own:
                callback.load_state_dict(own.pop(0))
        dropped = [name for name, left in waiting.items() if any(left)]
        if dropped:
            logger.info("dropped the state of callbacks that this run does not have: %s", ", ".join(dropped))
