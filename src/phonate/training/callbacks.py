"""Callbacks: the hooks of the trainer, the list that calls them, and those that recipes can name."""

from __future__ import annotations

import base64
import inspect
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from phonate.config.errors import InputError
from phonate.config.randomness import derived_seed
from phonate.config.registry import nearest
from phonate.config.words import number_of
from phonate.training.metrics import MetricWatch, Mode, watches
from phonate.training.registries import CALLBACKS
from phonate.training.settings import CallbackSettings, TrainingSettings

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from phonate.data.batches import Batch
    from phonate.training.schedules import Schedule


logger = logging.getLogger(__name__)


# ---------------------------------------------- Callback base class, and the list that calls the hooks


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
        """After the last batch of an epoch and the validation that falls on it, if any, with the metrics of both.

        Where training ends inside an epoch (`max_steps`, or a callback that stops it), it is called after the last save
        with the metrics of that part. A run that is resumed there knows nothing of it, and calls this again at the end
        of the epoch.
        """

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


# ----------------------------------------------------------------------- Build callbacks from settings


def build_callbacks(settings: TrainingSettings) -> list[Callback]:
    """The callbacks in `training.callbacks`, then those enabled by other options.

    `training.early_stopping` and `training.feature_redraw_interval` are shorthands for two of them.

    Raises:
        InputError: an unknown callback or option, or a value that the callback rejects. The message names its position.
    """
    callbacks = [_build(entry, place) for place, entry in enumerate(settings.callbacks)]
    if settings.feature_redraw_interval is not None and not settings.fixed_projection:
        options = {"interval": settings.feature_redraw_interval}
        callbacks.append(CALLBACKS.get("feature_redraw")(**options))
    if settings.early_stopping is not None:
        callbacks.append(CALLBACKS.get("early_stopping")(**settings.early_stopping.model_dump()))
    return callbacks


def _build(entry: CallbackSettings, index: int) -> Callback:
    place = f"training.callbacks[{index}]"
    try:
        callback: type[Callback] = CALLBACKS.get(entry.type)
    except InputError as error:
        raise InputError(f"{place}.type: {error}") from error
    _check_options(callback, entry.options, place)
    try:
        built = callback(**entry.options)
    except (ValueError, TypeError) as error:
        raise InputError(f"{place}.options: {error}") from error
    for watch in watches([built]):
        watch.setting = f"{place}.options.metric"
    return built


def _check_options(callback: type[Callback], options: dict[str, Any], place: str) -> None:
    parameters = inspect.signature(callback).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    for name in options:
        if name not in parameters:
            known = list(parameters)
            hint = nearest(name, known) if known else "it has none"
            raise InputError(f"{place}.options.{name}: no such option; {hint}")
    for name, parameter in parameters.items():
        if parameter.default is inspect.Parameter.empty and name not in options:
            raise InputError(f"{place}.options.{name}: required by {callback.__name__}")


# --------------------------- Reduce the learning rate when a metric stops improving, with any schedule


class DynamicLRCallback(Callback):
    """Multiplies the learning rate schedule by `factor` after `patience` validations without improvement.

    Unlike the plateau schedule, it works on top of any schedule and applies to all phases.

    Args:
        factor: Multiplier of the learning rate.
        patience: Validations without improvement before the rate is reduced.
        metric: The monitored metric.
        mode: Whether lower ("min") or higher ("max") is better. None: as the task declares.
        min_scale: Lower bound of the product of all factors.
    """

    def __init__(
        self,
        factor: float = 0.5,
        patience: int = 3,
        metric: str = "val_loss",
        mode: Mode | None = None,
        min_scale: float = 1e-3,
    ) -> None:
        if not 0 < factor < 1:
            raise ValueError("factor: must be between 0 and 1")
        if patience < 1:
            raise ValueError("patience: must be at least 1")
        if not 0 < min_scale <= 1:
            raise ValueError("min_scale: must be above 0 and at most 1")
        self.factor = factor
        self.patience = patience
        self.min_scale = min_scale
        self.watch = MetricWatch(metric, mode)
        self.scale = 1.0

    def on_train_begin(self, trainer: TrainerView) -> None:
        """Apply the scale of a resumed run."""
        self._apply(trainer)

    def on_validation_end(self, trainer: TrainerView, metrics: Mapping[str, float]) -> None:
        """Count the validation, and reduce the rate once patience is exhausted."""
        if not self.watch.observe(metrics) and self.watch.stale >= self.patience:
            self.watch.stale = 0
            self.scale = max(self.min_scale, self.scale * self.factor)
            logger.info("%s stopped improving: the learning rate is now scaled by %g", self.watch.metric, self.scale)
            self._apply(trainer)

    def _apply(self, trainer: TrainerView) -> None:
        for schedule in trainer.schedules.values():
            schedule.scale = self.scale

    def state_dict(self) -> dict[str, Any]:
        """State of the monitored metric, and the scale."""
        return {**self.watch.state(), "scale": self.scale}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state`."""
        self.watch.restore(state)
        self.scale = float(state["scale"])


# ------------------------------------------------------ Stop training when a metric no longer improves


class EarlyStoppingCallback(Callback):
    """Stops training after `patience` validations in a row without improvement.

    Args:
        patience: Validations without improvement before training stops.
        metric: The monitored metric: val_loss, val_<term> or a metric of the task's evaluation.
        min_delta: Smaller improvements are ignored.
        mode: Whether lower ("min") or higher ("max") is better. None: as the task declares.
        restore_best_weights: End with the weights of the best checkpoint instead of the last, whether
            training was stopped early or ran to its end.
    """

    def __init__(
        self,
        patience: int = 10,
        metric: str = "val_loss",
        min_delta: float = 1e-6,
        mode: Mode | None = None,
        restore_best_weights: bool = True,
    ) -> None:
        if patience < 1:
            raise ValueError("patience: must be at least 1")
        self.patience = patience
        self.restore_best_weights = restore_best_weights
        self.watch = MetricWatch(metric, mode, min_delta, setting="training.early_stopping.metric")

    @property
    def why(self) -> str:
        """Why it stops training."""
        stale = number_of(self.watch.stale, "validation")
        return f"{self.watch.metric} has not improved on {self.watch.best_in_words} for {stale}"

    def on_train_begin(self, trainer: TrainerView) -> None:
        """Check that this metric selects the best checkpoint, and whether a resumed run has already stopped."""
        conflict = trainer.settings.restore_conflict(self.watch.metric)
        if self.restore_best_weights and conflict is not None:
            raise InputError(conflict)
        if self.watch.stale >= self.patience:
            trainer.should_stop = True

    def on_validation_end(self, trainer: TrainerView, metrics: Mapping[str, float]) -> None:
        """Count the validation, and stop once patience is exhausted."""
        if not self.watch.observe(metrics) and self.watch.stale >= self.patience:
            logger.info("stopped early at step %d: %s", trainer.step, self.why)
            trainer.should_stop = True

    def on_train_end(self, trainer: TrainerView) -> None:
        """Restore the best weights."""
        if self.restore_best_weights and self.watch.best is not None and self.watch.stale > 0:
            trainer.restore_best()

    def state_dict(self) -> dict[str, Any]:
        """The best value and the number of validations since."""
        return self.watch.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state`."""
        self.watch.restore(state)


def stopped_early(callbacks: Iterable[Callback], settings: TrainingSettings) -> str:
    """What is said of a resumed run that early stopping has ended, and how it is trained on; "" where it goes on."""
    for one in callbacks:
        if isinstance(one, EarlyStoppingCallback) and (stale := one.watch.stale) >= one.patience:
            short = settings.early_stopping is not None and settings.early_stopping.patience == one.patience
            mend = (
                f"add training.early_stopping.patience={2 * stale}" if short else "raise the patience of its callback"
            )
            return f"this run stopped early: {one.why}; {mend} to train on (any number above {stale} does)"
    return ""


# -------------------------------------- Redraw random features (Performer projections) during training

DEFAULT_INTERVAL = 1000
"""Optimizer steps between redraws."""
NOTHING_TO_REDRAW = (
    "feature_redraw: no module of this model has redraw_features(); remove training.feature_redraw_interval and the "
    "callback feature_redraw"
)


def redrawable(module: nn.Module) -> list[nn.Module]:
    """The outermost modules with `redraw_features()`: each redraws the features of its submodules."""
    if callable(getattr(module, "redraw_features", None)):
        return [module]
    return [one for child in module.children() for one in redrawable(child)]


def redrawn_by_default(module: nn.Module) -> bool:
    """Whether the module's features are redrawn if the recipe sets no interval: its `auto_redraw` is true."""
    return bool(getattr(module, "auto_redraw", False))


class FeatureRedrawCallback(Callback):
    """Calls `redraw_features()` of every module that has it, every `interval` optimizer steps.

    A module's own `redraw_interval` takes precedence. The draws are a function of (random seed, step), so they are the
    same after a resume and on every rank, and the global generators are not touched. A model without such a module is
    an error.

    Args:
        interval: Optimizer steps between redraws. Null: 1000, only for modules with `auto_redraw`, and a model without
            any is not an error.
    """

    def __init__(self, interval: int | None = DEFAULT_INTERVAL) -> None:
        if interval is not None and interval < 1:
            raise ValueError("interval: must be at least 1 optimizer step")
        self.interval = interval
        self.modules: list[tuple[nn.Module, int]] = []
        """Each module and the steps between its redraws."""

    def on_train_begin(self, trainer: TrainerView) -> None:
        """Find the modules."""
        modules = redrawable(trainer.model)
        if self.interval is None:
            modules = [module for module in modules if redrawn_by_default(module)]
        elif not modules:
            raise InputError(NOTHING_TO_REDRAW)
        usual = self.interval or DEFAULT_INTERVAL
        self.modules = [(module, getattr(module, "redraw_interval", None) or usual) for module in modules]

    def on_optimizer_step(self, trainer: TrainerView) -> None:
        """Redraw the modules that are due."""
        due = [module for module, interval in self.modules if trainer.step % interval == 0]
        if due:
            self.redraw(trainer, due)

    def redraw(self, trainer: TrainerView, modules: Sequence[nn.Module] | None = None) -> None:
        """Redraw `modules` (None: all) now, with a generator seeded by (random seed, step)."""
        import torch

        devices = [trainer.device] if trainer.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(derived_seed(trainer.settings.random_seed, "features", trainer.step))
            for module in [module for module, _ in self.modules] if modules is None else modules:
                module.redraw_features()  # type: ignore[operator]  # looked for in redrawable()


# ----------------------------------------------------------------------------------- Freeze parameters


class FreezeLayersCallback(Callback):
    """Freezes the parameters whose names match, for the whole run or until a step.

    Args:
        patterns: Names of parameters or modules, with wildcards: "encoder" (everything inside), "encoder.layers.0",
            "*.bias". A pattern without a match is an error.
        until_step: Optimizer step at which they are unfrozen. Null: never.
    """

    def __init__(self, patterns: list[str], until_step: int | None = None) -> None:
        if isinstance(patterns, str) or not patterns:
            raise ValueError("patterns: must be a list of names, such as [encoder, '*.bias']")
        if until_step is not None and until_step < 1:
            raise ValueError("until_step: must be at least 1 optimizer step")
        self.patterns = list(patterns)
        self.until_step = until_step
        self.frozen: list[nn.Parameter] = []

    def on_train_begin(self, trainer: TrainerView) -> None:
        """Find the parameters, and freeze them unless the run is past `until_step`."""
        parameters = {name: p for name, p in trainer.model.named_parameters() if p.requires_grad}
        names = {name for pattern in self.patterns for name in matching(pattern, list(parameters))}
        if len(names) == len(parameters):
            raise InputError("freeze_layers: the patterns match every parameter; nothing is left to train")
        if self.until_step is not None and trainer.step >= self.until_step:
            return
        self.frozen = [parameters[name] for name in sorted(names)]
        logger.debug("frozen: %d of %d parameter tensors", len(names), len(parameters))
        self._train(False)

    def on_backward_end(self, trainer: TrainerView) -> None:
        """Drop the gradients of frozen parameters, so that no optimizer updates them (not even by weight decay)."""
        for parameter in self.frozen:
            parameter.grad = None

    def on_optimizer_step(self, trainer: TrainerView) -> None:
        """Unfreeze at `until_step`."""
        if self.frozen and self.until_step is not None and trainer.step >= self.until_step:
            logger.info("unfrozen at step %d: %d parameter tensors", trainer.step, len(self.frozen))
            self._train(True)
            self.frozen = []

    def on_train_end(self, trainer: TrainerView) -> None:
        """Make the parameters trainable again."""
        self._train(True)
        self.frozen = []

    def _train(self, trainable: bool) -> None:
        import torch.distributed

        # DDP expects a gradient for every parameter it was built with, so with DDP the gradients are
        # computed and dropped. In a single process they are not computed at all.
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return
        for parameter in self.frozen:
            parameter.requires_grad_(trainable)


def matching(pattern: str, names: list[str]) -> list[str]:
    """The parameter names that `pattern` matches, by their own name or a parent module's. Raises InputError if none."""
    matches = [name for name in names if fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")]
    if not matches:
        modules = {name.rsplit(".", depth)[0] for name in names for depth in range(name.count(".") + 1)}
        raise InputError(f"freeze_layers: {pattern!r} matches no parameter; {nearest(pattern, sorted(modules))}")
    return matches


# ------------------------------------------------------------------------ Clip gradients by their norm


class GradientClippingCallback(Callback):
    """Scales each optimizer's gradient down to `max_norm` (Pascanu et al. 2013, Algorithm 1).

    It runs once per optimizer step, on the complete and unscaled gradient. `training.gradient_clipping` does
    the same for the 2-norm without a callback; this one supports other norms (`norm_type`, "inf" for the maximum).
    """

    def __init__(self, max_norm: float = 1.0, norm_type: float | str = 2.0) -> None:
        if not max_norm > 0:
            raise ValueError("max_norm: must be above 0")
        self.max_norm = max_norm
        self.norm_type = float(norm_type)

    def on_backward_end(self, trainer: TrainerView) -> None:
        """Clip."""
        from torch.nn.utils import clip_grad_norm_

        for optimizer in trainer.optimizers.values():
            parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
            if parameters:
                clip_grad_norm_(parameters, self.max_norm, norm_type=self.norm_type)


# ---------------------------------------------------------------------------- Report the learning rate


class LRMonitorCallback(Callback):
    """Emits `learning_rate` when it has changed, checked every `interval` optimizer steps.

    With several optimizers the names are `learning_rate_<phase>`. If `interval` is null, `logging.interval` is used.
    """

    def __init__(self, interval: int | None = None) -> None:
        if interval is not None and interval < 1:
            raise ValueError("interval: must be at least 1 optimizer step")
        self.interval = interval
        self.last: dict[str, float] = {}

    def on_optimizer_step(self, trainer: TrainerView) -> None:
        """Emit the rates that have changed."""
        if trainer.step % (self.interval or trainer.settings.logging.interval):
            return
        single = len(trainer.optimizers) == 1
        rates = {
            "learning_rate" if single else f"learning_rate_{phase}": float(optimizer.param_groups[0]["lr"])
            for phase, optimizer in trainer.optimizers.items()
        }
        changed = {name: rate for name, rate in rates.items() if self.last.get(name) != rate}
        if changed:
            trainer.emit(changed)
            self.last.update(changed)


# ------------------------------------------------------------------- Magnitude pruning during training


class PruningCallback(Callback):
    """Sets the smallest weights of each matrix to 0 and keeps them there (Zhu & Gupta 2018).

    The pruned share rises from 0 at `start` to `amount` at `end` along the cubic of equation 1, in steps
    every `interval` steps; biases, normalisation weights and frozen ones are not pruned. The masks are saved in the
    checkpoint.

    Args:
        amount: Final share of weights that are 0.
        start: Optimizer step at which pruning begins.
        end: Step at which `amount` is reached. Null: at `start`.
        interval: Steps between prunings.
    """

    def __init__(self, amount: float, start: int = 1, end: int | None = None, interval: int = 100) -> None:
        if not 0 < amount < 1:
            raise ValueError("amount: must be between 0 and 1")
        if start < 1 or interval < 1 or (end is not None and end < start):
            raise ValueError("start, end, interval: must satisfy 1 <= start <= end and interval >= 1")
        self.amount = amount
        self.start = start
        self.end = start if end is None else end
        self.interval = interval
        self.masks: dict[str, Tensor] = {}
        self._packed: dict[str, str] = {}
        self._weights: dict[str, nn.Parameter] = {}

    def share(self, step: int) -> float:
        """The share of each matrix that is 0 after `step`."""
        if step < self.start:
            return 0.0
        if step >= self.end:
            return self.amount
        return self.amount * (1 - (1 - (step - self.start) / (self.end - self.start)) ** 3)

    def on_train_begin(self, trainer: TrainerView) -> None:
        """Find the matrices, and apply the masks of a resumed run. Raises InputError."""
        from phonate.compute.distributed import is_sharded

        self._weights = {name: p for name, p in trainer.model.named_parameters() if p.dim() > 1}
        if not any(p.requires_grad for p in self._weights.values()):
            raise InputError("pruning: the model has no trainable weight matrices")
        if any(is_sharded(weight) for weight in self._weights.values()):
            raise InputError("pruning: can't prune weights that training.distributed.strategy divides; choose ddp")
        for name, packed in self._packed.items():
            if name not in self._weights:
                raise InputError(f"pruning: the checkpoint prunes {name}, which the model does not have")
            self.masks[name] = _unpack(packed, self._weights[name])
        self._packed = {}

    def on_optimizer_step(self, trainer: TrainerView) -> None:
        """Prune when due, and reset pruned weights that the optimizer changed."""
        import torch

        step = trainer.step
        due = step % self.interval == 0 or step in {self.start, self.end}
        if due and self.start <= step <= self.end:
            self._prune(step)
            trainer.emit({"sparsity": self.sparsity()})
        if self.masks:
            with torch.no_grad():
                averages = trainer.averages
                for name, mask in self.masks.items():
                    self._weights[name].mul_(mask)
                    if name in averages:
                        averages[name].mul_(mask)

    def _prune(self, step: int) -> None:
        import torch

        for name, weight in self._weights.items():
            count = int(self.share(step) * weight.numel())
            if count == 0 or not weight.requires_grad:  # frozen by freeze_layers, or not trained at all
                continue
            order = weight.detach().abs().flatten().argsort(stable=True)
            mask = torch.ones(weight.numel(), dtype=torch.bool, device=weight.device)
            mask[order[:count]] = False
            self.masks[name] = mask.view_as(weight)

    def sparsity(self) -> float:
        """The share of masked weights, over all matrices that are trained."""
        trained = [weight for name, weight in self._weights.items() if weight.requires_grad or name in self.masks]
        total = sum(weight.numel() for weight in trained)
        masked = sum(int((~mask).sum()) for mask in self.masks.values())
        return masked / total

    def state_dict(self) -> dict[str, Any]:
        """The masks, one bit per weight, in base64."""
        return {"masks": {name: _pack(mask) for name, mask in self.masks.items()} or dict(self._packed)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Store the masks until `on_train_begin`."""
        self._packed = dict(state["masks"])


def _pack(mask: Tensor) -> str:
    import numpy as np

    return base64.b64encode(np.packbits(mask.cpu().numpy().ravel()).tobytes()).decode()


def _unpack(packed: str, weight: Tensor) -> Tensor:
    import numpy as np
    import torch

    bits = np.unpackbits(np.frombuffer(base64.b64decode(packed), dtype=np.uint8), count=weight.numel())
    return torch.from_numpy(bits.astype(bool)).view(weight.shape).to(weight.device)
