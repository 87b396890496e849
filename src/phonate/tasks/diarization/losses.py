"""The loss of diarization: the recipe's losses between the model's scores and the targets of its label type.

Shapes: B items, U output frames, D model, S speakers of the reference, C scores per frame, N attractors.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phonate.config.errors import InputError
from phonate.nn.losses import BCEWithLogitsLoss, KLDivLoss, Loss
from phonate.tasks.diarization.labels import (
    Arrival,
    AttractorLabels,
    LabelType,
    Output,
    Reference,
    Targets,
    default_loss,
    over_classes,
)
from phonate.tasks.diarization.settings import LabelTypeName
from phonate.training.losses import CompositeLoss, LossRegistry, build_loss, compute
from phonate.training.settings import LossSettings
from phonate.training.task import Count, Terms

PERMUTATION = "permutation"
"""Second loss term of label type arrival: the main loss, permutation-invariant."""
EXISTENCE = "existence"
"""Second loss term of label type attractors: whether each attractor represents a speaker."""
_ARRIVAL_SHARE = 0.5


def targets_are_classes(label_type: LabelTypeName, settings: LossSettings) -> bool:
    """Whether the targets of `label_type` are classes for the recipe's main loss.

    Raises InputError for a main or auxiliary loss that does not fit the label type.
    """
    main = settings.main or default_loss(label_type)
    loss = LossRegistry.get(main)
    if getattr(loss, "takes", "outputs") != "outputs":
        raise InputError(
            f"training.loss.main: {main} does not compare scores with labels; use it in training.loss.auxiliary"
        )
    _check_scores(main, loss, "main")
    classes = over_classes(label_type, main, getattr(loss, "over_classes", None))
    for name in settings.auxiliary:
        auxiliary = LossRegistry.get(name)
        if getattr(auxiliary, "takes", "outputs") == "outputs":
            _check_scores(name, auxiliary, f"auxiliary.{name}")
            form = getattr(auxiliary, "over_classes", None)
            if form not in (None, classes) or (form is None and classes and label_type == "speaker_id"):
                raise InputError(
                    f"training.loss.auxiliary.{name}: needs other targets than the main loss {main} has with "
                    f"label_type {label_type}; leave it out"
                )
        elif name == "contrastive" and label_type == "custom":
            raise InputError("training.loss.auxiliary.contrastive: custom labels have no speakers; leave it out")
    return classes


def _check_scores(name: str, loss: type[nn.Module], place: str) -> None:
    if getattr(loss, "reads", "logits") == "audio":
        raise InputError(f"training.loss.{place}: {name} compares audio or mel frames, not labels; leave it out")


class DiarizationLoss(nn.Module):
    """The main loss, auxiliary losses, and the second term of the label types arrival and attractors.

    Args:
        settings: The recipe's `training.loss`.
        label_type: Name of the label type.
    """

    def __init__(self, settings: LossSettings, label_type: LabelTypeName) -> None:
        super().__init__()
        self.classes = targets_are_classes(label_type, settings)
        self.composite: CompositeLoss = build_loss(settings, default=default_loss(label_type))
        for name, loss in self.composite.losses.items():
            if getattr(loss, "takes", "outputs") == "outputs":
                self.composite.losses[name] = FromScores(loss, self.classes)
        self.coupling = self.composite.coupling
        self.weights = dict(self.composite.weights)
        if label_type == "arrival":
            self.weights |= {self.composite.main: _ARRIVAL_SHARE, PERMUTATION: _ARRIVAL_SHARE}
        if label_type == "attractors":
            self.weights |= {EXISTENCE: 1.0}
        self.existence = BCEWithLogitsLoss()

    def forward(self, labels: LabelType, output: Output, reference: Reference, model: nn.Module) -> Terms:
        """Sum and count of each term over a micro-batch."""
        targets = labels.targets(output, reference)
        embeddings, speakers = None, None
        if "contrastive" in self.composite.losses:
            embeddings, speakers = speaker_views(output.hidden_BUD, reference)
        terms: Terms = self.composite(
            output.scores_BUC, targets.values, targets.mask, model=model, embeddings=embeddings, labels=speakers
        )
        if isinstance(labels, Arrival):
            aligned = Targets(labels.aligned(output, reference), reference.mask_BU)
            terms[PERMUTATION] = self._again(output.scores_BUC, aligned)
        if isinstance(labels, AttractorLabels):
            exists = labels.existence(reference)
            terms[EXISTENCE] = self.existence(output.existence_BN, exists.values, exists.mask)
        return terms

    def _again(self, scores_BUC: Tensor, targets: Targets) -> tuple[Tensor, Tensor | float]:
        """The main loss with other targets."""
        total, count = compute(self.composite.losses[self.composite.main], scores_BUC, targets.values, targets.mask)
        return total, float(len(scores_BUC)) if self.composite.reduction == "sum" else count

    def counts(self, labels: LabelType, reference: Reference) -> dict[str, Count] | None:
        """The counts of `forward`, if they can be computed from the labels alone; None otherwise."""
        losses = [getattr(loss, "loss", loss) for loss in self.composite.losses.values()]
        if not all(isinstance(loss, Loss) and loss.takes == "outputs" for loss in losses):
            return None
        batch, frames, _ = reference.activity_BUS.shape
        nothing_BUC = reference.activity_BUS.new_zeros(batch, frames, labels.width)
        mask = labels.targets(Output(nothing_BUC, nothing_BUC, reference.mask_BU), reference).mask
        counted = float(mask.sum()) * (labels.width if mask.dim() == 2 and not self.classes else 1)
        counts = dict.fromkeys(self.composite.losses, float(batch) if self.composite.reduction == "sum" else counted)
        if isinstance(labels, Arrival):
            counts[PERMUTATION] = counts[self.composite.main]
        if isinstance(labels, AttractorLabels):
            counts[EXISTENCE] = float(labels.existence(reference).mask.sum())
        return dict(counts)


class FromScores(nn.Module):
    """Converts scores (logits) to what a loss reads, such as probabilities, and computes the loss."""

    def __init__(self, loss: nn.Module, classes: bool) -> None:
        super().__init__()
        self.loss = loss
        self.classes = classes
        self.couples_items = getattr(loss, "couples_items", False)

    def forward(self, scores: Tensor, targets: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor | float]:
        """Sum and count. Scores (B, U, C); targets and mask as in `Targets`."""
        scores = scores.float()
        reads = getattr(self.loss, "reads", "logits")
        if reads in {"probabilities", "values"}:
            scores = scores.softmax(-1) if self.classes else scores.sigmoid()
        elif reads == "log_probabilities":
            scores = scores.log_softmax(-1)
        if isinstance(self.loss, KLDivLoss) and targets.dim() < scores.dim():
            targets = F.one_hot(targets, scores.shape[-1]).to(scores.dtype)
        return compute(self.loss, scores, targets, mask)


def speaker_views(hidden_BUD: Tensor, reference: Reference) -> tuple[Tensor, Tensor]:
    """Two embeddings of each speaker of each item, (V, D), and their speaker labels (V,).

    The embeddings are means over the first and the second half of the frames in which only that speaker is active.
    Speakers with fewer than two such frames are left out. Speakers not in the training set get a distinct label in each
    item.
    """
    active_BUS = reference.activity_BUS
    alone_BUS = active_BUS * (active_BUS.sum(-1, keepdim=True) == 1)
    half_BUS = alone_BUS.cumsum(1) * 2 <= alone_BUS.sum(1, keepdim=True)
    parts_2BUS = torch.stack([alone_BUS * half_BUS, alone_BUS * ~half_BUS])
    frames_2BS = parts_2BUS.sum(2)
    sums_2BSD = parts_2BUS.transpose(-1, -2) @ hidden_BUD.float().masked_fill(~reference.mask_BU[..., None], 0)
    means_2BSD = sums_2BSD / frames_2BS.clamp_min(1)[..., None]
    speaker_BS = reference.speakers_BS
    stranger_BS = -1 - torch.arange(speaker_BS.numel(), device=speaker_BS.device).view_as(speaker_BS)
    label_BS = torch.where(speaker_BS >= 0, speaker_BS, stranger_BS)
    kept_BS = (frames_2BS > 0).all(0)
    return means_2BSD[:, kept_BS].flatten(0, 1), label_BS[kept_BS].repeat(2)
