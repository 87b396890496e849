"""Settings of the optimizer, its schedule and the loss: parts of the recipe's `training`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from phonate.config.errors import InputError
from phonate.config.registry import Named
from phonate.config.settings import Settings

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
OpenFraction = Annotated[float, Field(ge=0.0, lt=1.0)]


def _interval(value: Any) -> Any:
    """Normalise `5 epochs`, `1 epoch` and `500 steps`; integers are unchanged."""
    wanted = "an interval is a number of optimizer steps (500) or of epochs ('5 epochs'), at least 1"
    if isinstance(value, str):
        number, _, unit = value.strip().partition(" ")
        if not number.isdigit() or int(number) < 1:
            raise ValueError(wanted)
        if unit.strip() in {"epoch", "epochs"}:
            return f"{int(number)} epochs"
        if unit.strip() in {"", "step", "steps"}:
            return int(number)
        raise ValueError(wanted)
    if isinstance(value, int) and not isinstance(value, bool) and value < 1:
        raise ValueError(wanted)
    return value


Interval = Annotated[PositiveInt | Annotated[str, Field(pattern=r"^[1-9]\d* epochs$")], BeforeValidator(_interval)]
"""A number of optimizer steps (500) or epochs ("5 epochs")."""


class OptimizerSettings(Settings):
    """Optimizer and its hyperparameters. Options that the chosen optimizer does not support are rejected."""

    type: Annotated[str, Named("phonate.training.registries:OPTIMIZERS")] = "adamw"
    """adamw, adam, adamax, sgd, lion, adagrad, rmsprop or adadelta."""
    lr: NonNegativeFloat = 1e-4
    """Peak learning rate, reached after warm-up."""
    weight_decay: NonNegativeFloat = 0.01
    """Decoupled for adamw and lion; added to the gradient for the others."""
    betas: tuple[OpenFraction, OpenFraction] | None = None
    """Decay of the running averages. Null: the optimizer's own, (0.9, 0.999), for lion (0.9, 0.99)."""
    epsilon: PositiveFloat | None = None
    """Added to the denominator. Null: the optimizer's own."""
    amsgrad: bool = False
    """Use the AMSGrad variant (adam, adamw)."""
    momentum: OpenFraction | None = None
    """Momentum of sgd (null: 0.9) and rmsprop (null: 0)."""
    nesterov: bool = False
    """Nesterov momentum (sgd)."""
    rho: OpenFraction | None = None
    """Decay of the squared average: adadelta (null: 0.9) and rmsprop's alpha (null: 0.99)."""


class SchedulerSettings(Settings):
    """Learning rate schedule. All types but plateau are pure functions of the optimizer step.

    Options that the chosen schedule does not support are rejected.
    """

    type: Annotated[str, Named("phonate.training.registries:SCHEDULES")] = "cosine"
    """cosine, cosine_restarts, linear, exponential, step, plateau, onecycle or constant."""
    warmup_steps: NonNegativeInt = 0
    """Steps of linear warm-up from 0 to the peak, for every type."""
    min_lr: NonNegativeFloat = 0.0
    """Lower bound of the learning rate."""
    max_lr: PositiveFloat | None = None
    """Peak learning rate, for every type. Null: `optimizer.lr`."""
    decay_steps: PositiveInt | None = None
    """Steps from the end of warm-up to the minimum (both cosines, linear, onecycle). Null: the rest of the run."""
    num_cycles: PositiveInt = 1
    """Number of equal cycles in the decay (cosine_restarts with `cycle_mult` 1 and no `cycle_steps`)."""
    cycle_steps: Interval | None = None
    """Length of the first cycle of cosine_restarts (T_0), in steps or epochs. Null: the decay over `num_cycles`."""
    cycle_mult: PositiveInt = 1
    """Factor by which each cycle of cosine_restarts is longer than the one before (T_mult)."""
    step_size: Interval = 1000
    """Interval at which `step` and `exponential` multiply the rate by `gamma`."""
    gamma: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Factor of exponential (null: 0.95), step and plateau (null: 0.1)."""
    patience: NonNegativeInt = 5
    """Validations without improvement before plateau multiplies the rate by `gamma`."""
    mode: Literal["min", "max"] | None = None
    """Whether a lower (min) or higher (max) value of plateau's metric is better. Null: as the task declares; losses
    are better when lower."""
    metric: str = "val_loss"
    """The metric that plateau monitors."""


LossName = Named("phonate.training.registries:LOSSES")


class LossSettings(Settings):
    """The loss, for tasks that let the recipe choose it, and the weights of the loss terms, for all tasks."""

    main: Annotated[str | None, LossName] = None
    """Name of a registered loss. Null: the task's own."""
    label_smoothing: OpenFraction = 0.0
    """Smoothing of class targets (cross_entropy, nll, bce, bce_with_logits)."""
    reduction: Literal["mean", "sum"] = "mean"
    """mean: over all frames of the step; sum: each item's sum, averaged over the items."""
    auxiliary: Annotated[dict[str, NonNegativeFloat], LossName] = Field(default_factory=dict)
    """Additional registered losses and their weights, such as {norm_reg: 0.1}."""
    weights: dict[str, NonNegativeFloat] = Field(default_factory=dict)
    """Weights of the task's loss terms, overriding its defaults."""
    focal_alpha: Fraction | None = 0.25
    """Class balance of the focal loss; null for none."""
    focal_gamma: NonNegativeFloat = 2.0
    """Focusing parameter of the focal loss, main or auxiliary."""


def require_own_loss(settings: LossSettings, task: str) -> None:
    """Raise InputError for loss options that have no effect, for tasks whose loss can't be chosen."""
    unset = LossSettings()
    for name in type(settings).model_fields:
        if name != "weights" and getattr(settings, name) != getattr(unset, name):
            raise InputError(
                f"training.loss.{name}: has no effect, because the task {task} has a fixed loss; remove it, or "
                "weight its terms with training.loss.weights"
            )
