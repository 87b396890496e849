"""Named, weighted loss terms between what a model returns and a batch."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from phonate.config.errors import InputError
from phonate.config.registry import nearest
from phonate.nn.losses._base import SumCount
from phonate.nn.losses._stft import STFT_LOSSES
from phonate.training.losses.composite import given, main_loss
from phonate.training.losses.registry import apply_loss, coupling_of
from phonate.training.optimization_settings import LossSettings
from phonate.training.registries import LOSSES
from phonate.training.task import Coupling, Terms

logger = logging.getLogger(__name__)


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


def _least_squares(scores: Tensor) -> SumCount:
    return (scores - 1).square().sum(), float(scores.numel())
