"""A main loss and auxiliary ones, as a recipe's `training.loss` asks for."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import Tensor, nn

from phonate.config.errors import InputError
from phonate.training.losses.registry import LossRegistry, apply_loss, coupling_of
from phonate.training.optimization_settings import LossSettings
from phonate.training.registries import LOSSES
from phonate.training.task import Terms


class CompositeLoss(nn.Module):
    """A main loss and auxiliary ones, as `training.loss` asks for. `build_loss` makes it.

    `weights` belongs into the task's `loss_weights`; `coupling` into the task's attribute of that name.
    """

    def __init__(self, main: str, losses: Mapping[str, nn.Module], settings: LossSettings) -> None:
        super().__init__()
        self.main = main
        self.losses = nn.ModuleDict(losses)
        self.reduction = settings.reduction
        self.weights: dict[str, float] = {main: 1.0, **settings.auxiliary}
        self.coupling = coupling_of(losses.values())

    def forward(
        self,
        outputs: Tensor,
        targets: Tensor,
        mask: Tensor | None = None,
        *,
        model: nn.Module | None = None,
        embeddings: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> Terms:
        """Sums and counts of each loss, by its name.

        Args:
            outputs: What the model returned; the first dimension is the items.
            targets: What it should have returned.
            mask: A boolean prefix of their shape, True where something is real.
            model: For norm_reg.
            embeddings: (items, features), for contrastive.
            labels: (items,), which embeddings belong together.

        Raises:
            InputError: shapes that do not fit, or a loss that needs what the task does not give.
        """
        terms: Terms = {}
        for name, loss in self.losses.items():
            mistake = f"training.loss.auxiliary.{name}: this task does not give the loss"
            total, count = apply_loss(
                loss,
                outputs=lambda: (outputs, targets, mask),
                embeddings=partial(_labelled, embeddings, labels, mistake),
                model=partial(given, model, f"{mistake} its model; leave it out"),
            )
            summed = self.reduction == "sum" and getattr(loss, "takes", "outputs") == "outputs"
            terms[name] = (total, float(len(outputs)) if summed else count)
        return terms


def _labelled(embeddings: Tensor | None, labels: Tensor | None, mistake: str) -> tuple[Tensor, Tensor]:
    labels = given(labels, f"{mistake} labels of embeddings; leave it out")
    return given(embeddings, f"{mistake} embeddings; leave it out"), labels


def given(value: Any, mistake: str) -> Any:
    if value is None:
        raise InputError(mistake)
    return value


def build_loss(
    settings: LossSettings, default: str | None = None, known: Mapping[str, Any] | None = None
) -> CompositeLoss:
    """The loss that a recipe asks for.

    Args:
        settings: The recipe's `training.loss`.
        default: The task's own loss, where `main` is null.
        known: What the task knows of its outputs, such as `fmin` and `fmax` of mel frames. Each loss is given those
            that its constructor has names for.

    Raises:
        InputError: an unknown loss, or label smoothing with one that has no classes.
    """
    main = settings.main or default
    if main is None:
        raise InputError("training.loss.main: this task has no loss of its own; there is: " + ", ".join(LOSSES.names()))
    known = known or {}
    losses = {main: main_loss(main, settings, known)}
    for name in settings.auxiliary:
        if name == main:
            raise InputError(f"training.loss.auxiliary.{name}: it is the main loss already")
        loss = _named(name, "training.loss.auxiliary")
        losses[name] = loss(**_taken(loss, known), **_own(name, settings))
    return CompositeLoss(main, losses, settings)


def _named(name: str, place: str) -> type[nn.Module]:
    try:
        return LossRegistry.get(name)
    except InputError as error:
        raise InputError(f"{place}: {error}") from error


def _taken(loss: type[nn.Module], known: Mapping[str, Any]) -> dict[str, Any]:
    accepted = inspect.signature(loss).parameters
    return {name: value for name, value in known.items() if name in accepted}


def main_loss(name: str, settings: LossSettings, known: Mapping[str, Any]) -> nn.Module:
    loss = _named(name, "training.loss.main")
    options = _taken(loss, known)
    if settings.label_smoothing:
        if "label_smoothing" not in inspect.signature(loss).parameters:
            raise InputError(f"training.loss.label_smoothing: {name} has no classes to smooth; leave it at 0")
        options["label_smoothing"] = settings.label_smoothing
    return loss(**options, **_own(name, settings))


def _own(name: str, settings: LossSettings) -> dict[str, Any]:
    """Options that the recipe has for this one loss, main or auxiliary."""
    return {"alpha": settings.focal_alpha, "gamma": settings.focal_gamma} if name == "focal" else {}
