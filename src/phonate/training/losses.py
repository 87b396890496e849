"""Losses of a recipe: by name, a main one with auxiliary ones, or weighted terms of a model's outputs.

Losses by name, and what they return over a batch. All keep to (sum, count), see `phonate.nn.losses`.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from phonate.config.errors import InputError
from phonate.config.registry import listed, nearest
from phonate.nn.losses import STFT_LOSSES, SumCount, expanded
from phonate.training.registries import LOSSES
from phonate.training.settings import LossSettings
from phonate.training.task import Count, CountedTerms, Coupling, Terms

logger = logging.getLogger(__name__)


# --------------------------------------------------- Losses by name, and what they return over a batch


class LossRegistry:
    """The losses that recipes can name."""

    @staticmethod
    def register(name: str, loss: type[nn.Module]) -> None:
        """Make `loss` known as `name`. Its forward(outputs, targets[, mask]) returns a scalar mean over the
        batch, or the sum and the count. Without `mask` it is called for each item, see `compute`."""
        LOSSES.register(name, loss)

    @staticmethod
    def get(name: str) -> type[nn.Module]:
        """The loss called `name`. Raises InputError with the nearest name."""
        loss: type[nn.Module] = LOSSES.get(name)
        return loss

    @staticmethod
    def names() -> list[str]:
        """Every name."""
        return LOSSES.names()


def compute(loss: nn.Module, outputs: Tensor, targets: Tensor, mask: Tensor | None = None) -> SumCount:
    """Sum and count of any loss over a batch whose first dimension is the items.

    A loss that returns a scalar counts as that mean times the items. One that takes no mask is called for each item
    alone, with the values that `mask` keeps, (1, N, ...): emptied padding would still count in its mean. Items of
    which nothing is kept don't count. Raises InputError for a result of another form, and for a loss without a mask
    that compares items with each other.
    """
    if mask is None or _takes_mask(loss):
        return _sum_and_count(loss, outputs, targets, *(() if mask is None else (mask,)))
    if getattr(loss, "couples_items", False):
        raise InputError(f"{type(loss).__name__} couples the items of a batch, so its forward must take a mask")
    for values in (outputs, targets):
        expanded(mask, values)  # refuses shapes that do not fit
    total: Tensor = outputs[:0].sum()
    count: Tensor | float = 0.0
    for number in range(len(outputs)):
        item = slice(number, number + 1)
        if mask[item].any():
            of_item, counted = _sum_and_count(loss, *(_pick(values[item], mask[item]) for values in (outputs, targets)))
            total, count = total + of_item, count + counted
    return total, count


def _pick(values: Tensor, mask: Tensor) -> Tensor:
    """The values (1, N, ...) of one item, (1, T, ...), that a mask (1, T) keeps."""
    return values[mask.bool()] if mask.dim() == 1 else values[mask.bool()][None]


def _sum_and_count(loss: nn.Module, *arguments: Tensor) -> SumCount:
    """What a loss returns of arguments whose first dimension is the items, as a sum and a count."""
    result = loss(*arguments)
    if isinstance(result, tuple):
        return result
    if not isinstance(result, Tensor) or result.numel() != 1:
        raise InputError(f"{type(loss).__name__} must return a scalar or (sum, count), not {_described(result)}")
    items = float(len(arguments[0]))
    return result.reshape(()) * items, items


def apply_loss(
    loss: nn.Module,
    *,
    outputs: Callable[[], tuple[Tensor, Tensor, Tensor | None]],
    embeddings: Callable[[], tuple[Tensor, Tensor]],
    model: Callable[[], nn.Module],
) -> SumCount:
    """Sum and count of a loss from what it takes: outputs with targets and mask, embeddings with labels, or the model.
    Only that function is called; it raises InputError where there is no such thing."""
    takes = getattr(loss, "takes", "outputs")
    if takes == "model":
        result: SumCount = loss(model())
        return result
    if takes == "embeddings":
        result = loss(*embeddings())
        return result
    return compute(loss, *outputs())


def coupling_of(losses: Iterable[nn.Module]) -> Coupling:
    """The coupling of a task that is trained by `losses`. A loss module sees one micro-batch, so that is what its
    `couples_items` is about."""
    coupled = any(getattr(loss, "couples_items", False) for loss in losses)
    return Coupling.MICRO_BATCH if coupled else Coupling.NONE


def _takes_mask(loss: nn.Module) -> bool:
    parameters = inspect.signature(loss.forward).parameters.values()
    return any(p.name == "mask" or p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters)


def _described(result: Any) -> str:
    return f"a tensor of {tuple(result.shape)}" if isinstance(result, Tensor) else type(result).__name__


# ------------------------------ A main loss and auxiliary ones, as a recipe's `training.loss` asks for


class CompositeLoss(nn.Module):
    """A main loss and auxiliary ones, as `training.loss` asks for. `build_loss` makes it.

    `weights` belongs into the task's `loss_weights`; `coupling` and `own_counts` into the task's attributes of those
    names.
    """

    def __init__(
        self, main: str, losses: Mapping[str, nn.Module], settings: LossSettings, units: Collection[str] = ()
    ) -> None:
        super().__init__()
        self.units = units
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
        """Sum and count (a unit, where the batches have it) of each loss, by its name.

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
        terms: dict[str, tuple[Tensor, Count | str]] = {}
        for name, loss in self.losses.items():
            mistake = f"training.loss.auxiliary.{name}: this task does not give the loss"
            total, count = apply_loss(
                loss,
                outputs=lambda: (outputs, targets, mask),
                embeddings=partial(_labelled, embeddings, labels, mistake),
                model=partial(given, model, f"{mistake} its model; leave it out"),
            )
            terms[name] = (total, self._unit(loss) or (float(len(outputs)) if self._summed(loss) else count))
        return terms

    def _summed(self, loss: nn.Module) -> bool:
        return self.reduction == "sum" and getattr(loss, "takes", "outputs") == "outputs"

    def _unit(self, loss: nn.Module) -> str | None:
        """The unit of the batch that the count of `loss` is. None: it has its own."""
        unit = "items" if self._summed(loss) else getattr(loss, "unit", None)
        return unit if unit in self.units else None

    @property
    def own_counts(self) -> bool:
        """Whether a loss has a number as its count."""
        return not all(map(self._unit, self.losses.values()))


def _labelled(embeddings: Tensor | None, labels: Tensor | None, mistake: str) -> tuple[Tensor, Tensor]:
    labels = given(labels, f"{mistake} labels of embeddings; leave it out")
    return given(embeddings, f"{mistake} embeddings; leave it out"), labels


def given(value: Any, mistake: str) -> Any:
    if value is None:
        raise InputError(mistake)
    return value


def build_loss(
    settings: LossSettings,
    default: str | None = None,
    known: Mapping[str, Any] | None = None,
    units: Collection[str] = (),
) -> CompositeLoss:
    """The loss that a recipe asks for.

    Args:
        settings: The recipe's `training.loss`.
        default: The task's own loss, where `main` is null.
        known: What the task knows of its outputs, such as `fmin` and `fmax` of mel frames. Each loss is given those
            that its constructor has names for.
        units: Which of "elements", "targets" and "items" the task's data sets count (see `UnitCounts`).

    Raises:
        InputError: an unknown loss, or label smoothing with one that has no classes.
    """
    main = settings.main or default
    if main is None:
        raise InputError(f"training.loss.main: this task has no loss of its own; choose from {listed(LOSSES.names())}")
    known = known or {}
    losses = {main: main_loss(main, settings, known)}
    for name in settings.auxiliary:
        if name == main:
            raise InputError(f"training.loss.auxiliary.{name}: it is the main loss already")
        loss = _named(name, "training.loss.auxiliary")
        losses[name] = loss(**_taken(loss, known), **_own(name, settings))
    return CompositeLoss(main, losses, settings, units)


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


# --------------------------------- Named, weighted loss terms between what a model returns and a batch


class LossManager(nn.Module):
    """Named, weighted terms between what a model returns and a batch.

    The terms are the names in `loss_weights`: `reconstruction` (the loss called `loss_type`), `perceptual`
    (mel bands weighed by hearing), `stft` (multi-resolution STFT of waveforms), any registered loss, and
    `adversarial` (least squares, Mao et al. 2017) for models that return a discriminator's `scores`.

    Args:
        loss_type: The loss behind `reconstruction`.
        loss_weights: Term -> weight. None: {"reconstruction": 1}.
        settings: Options of the losses (label smoothing of that one, focal); `main` and `auxiliary` are not used.
    """

    def __init__(
        self,
        loss_type: str = "mse",
        loss_weights: Mapping[str, float] | None = None,
        settings: LossSettings | None = None,
    ) -> None:
        super().__init__()
        self.weights = dict(loss_weights or {"reconstruction": 1.0})
        self._kinds = {name: loss_type if name == "reconstruction" else name for name in self.weights}
        self._warned = False
        settings = settings or LossSettings()
        plain = settings.model_copy(update={"label_smoothing": 0.0})
        losses = {}
        for name, kind in self._kinds.items():
            if name == "adversarial":
                continue
            if kind not in LOSSES.names():
                place = "loss_type" if name == "reconstruction" else "loss_weights"
                raise InputError(f"{place}: no loss is called {kind!r}; {nearest(kind, LOSSES.names())}")
            losses[name] = main_loss(kind, settings if name == "reconstruction" else plain, {})
        self.losses = nn.ModuleDict(losses)

    @property
    def coupling(self) -> Coupling:
        """Whether a term depends on several items of its micro-batch."""
        return coupling_of(self.losses.children())

    def forward(
        self, outputs: Tensor | Mapping[str, Tensor], batch: Mapping[str, Any], model: nn.Module | None = None
    ) -> dict[str, Tensor]:
        """The mean of each term, and `total`, their weighted sum. For the arguments see `terms`."""
        means = {
            name: total / torch.as_tensor(count, device=total.device).clamp_min(1)
            for name, (total, count) in self.terms(outputs, batch, model).items()
        }
        return {
            **means,
            "total": torch.stack([self.weights[name] * mean for name, mean in means.items()]).sum(),
        }

    def terms(
        self, outputs: Tensor | Mapping[str, Tensor], batch: Mapping[str, Any], model: nn.Module | None = None
    ) -> CountedTerms:
        """Sum and count of each term, without its weight.

        Args:
            outputs: Mel frames (B, T, F), waveforms (B, S), or both as {"features": ..., "waveform": ...};
                with `scores` where there is a discriminator, and `embeddings` (B, D) for contrastive.
            batch: `target_features` (or `features`) and `lengths` in frames for mel frames, `waveform` and
                `waveform_lengths` in samples for waveforms, `labels` (or `speaker_id`) for contrastive.
            model: For norm_reg.

        Raises:
            InputError: a term that needs what the model or the batch does not hold.
        """
        terms: CountedTerms = {}
        for name in self.weights:
            if name == "adversarial":
                if isinstance(outputs, Mapping) and "scores" in outputs:
                    scores = outputs["scores"]
                    terms[name] = (scores - 1).square().sum(), float(scores.numel())
                elif not self._warned:
                    self._warned = True
                    logger.warning("loss_weights.adversarial: the model returns no discriminator scores; left out")
                continue
            pairs = _waveforms if self._kinds[name] in STFT_LOSSES else _features
            terms[name] = apply_loss(
                self.losses[name],
                outputs=partial(pairs, name, outputs, batch),
                embeddings=partial(_embeddings, name, outputs, batch),
                model=partial(given, model, f"{name}: it needs the model; call with model="),
            )
        if not terms:
            raise InputError("loss_weights: no term is left; add reconstruction")
        return terms


def _features(
    name: str, outputs: Tensor | Mapping[str, Tensor], batch: Mapping[str, Any]
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Output, target and mask of the terms over frames."""
    output = outputs["features"] if isinstance(outputs, Mapping) and "features" in outputs else outputs
    target = batch.get("target_features", batch.get("features"))
    if not isinstance(output, Tensor) or target is None:
        raise InputError(f"{name}: it needs the output `features` and, in the batch, `target_features`")
    return output, target, _mask(batch.get("lengths"), target)


def _waveforms(
    name: str, outputs: Tensor | Mapping[str, Tensor], batch: Mapping[str, Any]
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Output, target and mask of the terms over waveforms."""
    output = outputs["waveform"] if isinstance(outputs, Mapping) and "waveform" in outputs else outputs
    if not isinstance(output, Tensor) or output.dim() > 3 or (output.dim() == 3 and output.shape[1] != 1):
        raise InputError(
            f"{name} compares waveforms and this model returns mel frames; choose mse or l1, or a model with "
            "a `waveform` output"
        )
    if "waveform" not in batch:
        raise InputError(f"{name}: the batch holds no `waveform` to compare with")
    target = batch["waveform"].reshape(output.shape[0], -1)
    return output.reshape(output.shape[0], -1), target, _mask(batch.get("waveform_lengths"), target)


def _embeddings(name: str, outputs: Tensor | Mapping[str, Tensor], batch: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """Embeddings and their labels, of the terms that compare items."""
    embeddings = outputs.get("embeddings") if isinstance(outputs, Mapping) else None
    labels = batch.get("labels", batch.get("speaker_id"))
    if embeddings is None or labels is None:
        raise InputError(f"{name}: it needs the output `embeddings` and, in the batch, `labels` or `speaker_id`")
    return embeddings, labels


def _mask(lengths: Tensor | None, values: Tensor) -> Tensor | None:
    if lengths is None:
        return None
    return torch.arange(values.shape[1], device=values.device) < lengths.to(values.device)[:, None]
