"""Losses by name, and the two ways in which they are put together.

`build_loss` makes what a recipe's `training.loss` asks for; `LossManager` weighs named terms between what a
model returns and a batch. Both keep to (sum, count), see `phonate.nn.losses._base`.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from phonate.config.errors import InputError
from phonate.config.registry import nearest
from phonate.nn.losses._base import SumCount, expanded
from phonate.nn.losses._stft import STFT_LOSSES
from phonate.training.loss_names import LOSSES
from phonate.training.settings import LossSettings

log = logging.getLogger(__name__)

Terms = dict[str, SumCount]


class LossRegistry:
    """The losses that recipes can name."""

    @staticmethod
    def register(name: str, loss: type[nn.Module]) -> None:
        """Make `loss` known as `name`. Its forward(outputs, targets[, mask]) returns a scalar mean over the
        batch, or the sum and the count."""
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

    A loss that returns a scalar counts as that mean times the items. One that takes no mask gets its outputs
    and targets emptied where `mask` is False: 0, and -100 for whole-number targets.
    """
    if mask is None:
        result = loss(outputs, targets)
    elif _takes_mask(loss):
        result = loss(outputs, targets, mask)
    else:
        empty = 0 if targets.is_floating_point() else -100
        result = loss(
            outputs.masked_fill(~expanded(mask, outputs), 0),
            targets.masked_fill(~expanded(mask, targets), empty),
        )
    if isinstance(result, tuple):
        return result
    if not isinstance(result, Tensor) or result.numel() != 1:
        raise InputError(f"{type(loss).__name__} must return a scalar or (sum, count), not {_described(result)}")
    items = float(len(outputs))
    return result.reshape(()) * items, items


def _takes_mask(loss: nn.Module) -> bool:
    parameters = inspect.signature(loss.forward).parameters.values()
    return any(p.name == "mask" or p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters)


def _described(result: Any) -> str:
    return f"a tensor of {tuple(result.shape)}" if isinstance(result, Tensor) else type(result).__name__


class CompositeLoss(nn.Module):
    """A main loss and auxiliary ones, as `training.loss` asks for. `build_loss` makes it.

    `weights` belongs into the task's `loss_weights`; `couples_items` into the task's attribute of that name.
    """

    def __init__(self, main: str, losses: Mapping[str, nn.Module], settings: LossSettings) -> None:
        super().__init__()
        self.main = main
        self.losses = nn.ModuleDict(losses)
        self.reduction = settings.reduction
        self.weights: dict[str, float] = {main: 1.0, **settings.auxiliary}
        self.couples_items = any(getattr(loss, "couples_items", False) for loss in losses.values())

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
            takes = getattr(loss, "takes", "outputs")
            place = f"training.loss.auxiliary.{name}: this task does not give the loss"
            if takes == "model":
                terms[name] = loss(_given(model, f"{place} its model; leave it out"))
            elif takes == "embeddings":
                labels = _given(labels, f"{place} labels of embeddings; leave it out")
                terms[name] = loss(_given(embeddings, f"{place} embeddings; leave it out"), labels)
            else:
                total, count = compute(loss, outputs, targets, mask)
                terms[name] = (total, float(len(outputs)) if self.reduction == "sum" else count)
        return terms


def _given(value: Any, mistake: str) -> Any:
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
    losses = {main: _main(main, settings, known)}
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


def _main(name: str, settings: LossSettings, known: Mapping[str, Any]) -> nn.Module:
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
            losses[name] = _main(kind, settings if name == "reconstruction" else plain, {})
        self.losses = nn.ModuleDict(losses)

    @property
    def couples_items(self) -> bool:
        """Whether a term depends on several items at once."""
        return any(getattr(loss, "couples_items", False) for loss in self.losses.values())

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
    ) -> Terms:
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
        terms: Terms = {}
        for name in self.weights:
            if name == "adversarial":
                if isinstance(outputs, Mapping) and "scores" in outputs:
                    terms[name] = _least_squares(outputs["scores"])
                elif not self._warned:
                    self._warned = True
                    log.warning("loss_weights.adversarial: the model returns no discriminator scores; left out")
                continue
            loss = self.losses[name]
            takes = getattr(loss, "takes", "outputs")
            if takes == "model":
                terms[name] = loss(_given(model, f"{name}: it needs the model; call with model="))
            elif takes == "embeddings":
                terms[name] = loss(*_embeddings(name, outputs, batch))
            else:
                wave = self._kinds[name] in STFT_LOSSES
                terms[name] = compute(loss, *(_waveforms if wave else _features)(name, outputs, batch))
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


def _least_squares(scores: Tensor) -> SumCount:
    return (scores - 1).square().sum(), float(scores.numel())
