"""Label types: the meaning of the model's scores, the targets that they are compared with, and the loss between them.

Every label type also converts scores to the activity of each speaker, which is all that inference and scoring use.

Shapes: B items, T feature frames, U output frames, S speakers of the reference, K speakers of the model, C scores per
frame, D model, N attractors. Masks are True for real frames.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phonate.config.errors import InputError
from phonate.nn.diarization import (
    Powerset,
    among_present,
    best_permutation,
    most_active,
    pairwise_cost,
    permuted,
    subsampled,
)
from phonate.nn.losses import IGNORED, BCEWithLogitsLoss, KLDivLoss
from phonate.nn.sequences import frame_mask
from phonate.tasks.diarization.settings import LOSSES, SECOND, DiarizationModel, LabelTypeName
from phonate.training.losses import CompositeLoss, LossRegistry, build_loss, compute
from phonate.training.settings import LossSettings
from phonate.training.task import Count, Terms

# ----------------------------------------------------------------------------------------- Label types


@dataclass(frozen=True)
class Output:
    """The model's output for a batch."""

    scores_BUC: Tensor
    """Logits."""
    hidden_BUD: Tensor
    """The transformer's output, from which the scores are computed."""
    mask_BU: Tensor
    existence_BN: Tensor | None = None
    """Label type attractors: existence logits of the N = K + 1 attractors."""


@dataclass(frozen=True)
class Reference:
    """The reference speaker activity at the output frame rate."""

    activity_BUS: Tensor
    speakers_BS: Tensor
    """Indices of the speakers; -1 for padding and for speakers not in the training set."""
    mask_BU: Tensor
    labels: Tensor | None = None
    """Labels of a custom collator: classes (B, U), or multiple labels (B, U, C)."""


@dataclass(frozen=True)
class Targets:
    """Targets of the loss."""

    values: Tensor
    """Classes (B, U), class probabilities (B, U, C), or activity (B, U, C)."""
    mask: Tensor
    """True for elements that enter the loss: (B, U) or (B, U, C)."""


def reference_of(batch: Mapping[str, Any], stride: int) -> Reference:
    """The reference of a batch for output frames of `stride` feature frames each."""
    mask_BT = frame_mask(batch["lengths"], batch["features"].shape[1])
    activity_BUS, mask_BU = subsampled(batch["activity"], mask_BT, stride)
    labels = batch.get("labels")
    if labels is not None:
        labels = _middle_frames(labels, batch["lengths"], stride, activity_BUS.shape[1])
    return Reference(activity_BUS, batch["speakers"], mask_BU, labels)


def unit_counts(labels: LabelType, stride: int, batch: Mapping[str, Any]) -> dict[str, float]:
    """The counts of a batch for a model whose output frames are of `stride` feature frames each (see `UnitCounts`)."""
    return labels.unit_counts(reference_of(batch, stride))


def _middle_frames(labels: Tensor, lengths_B: Tensor, stride: int, frames: int) -> Tensor:
    """Labels (B, T) or (B, T, C) -> (B, U) or (B, U, C): the label of the middle feature frame of each output frame,
    IGNORED in padding."""
    index_U = torch.arange(frames, device=labels.device) * stride
    index_BU = (index_U + stride // 2).minimum(lengths_B[:, None] - 1).clamp_min(0)
    real_BU = index_U < lengths_B[:, None]
    if labels.dim() == 2:
        return labels.gather(1, index_BU).masked_fill(~real_BU, IGNORED)
    index_BUC = index_BU[:, :, None].expand(-1, -1, labels.shape[2])
    return labels.gather(1, index_BUC).masked_fill(~real_BU[:, :, None], IGNORED)


class LabelType(nn.Module, ABC):
    """A label type for a model of K speakers.

    Args:
        over_classes: Whether scores are those of exclusive classes (softmax) or of independent labels (sigmoid).
    """

    width: int
    """C."""
    speakers: int
    """K."""

    def __init__(self, over_classes: bool) -> None:
        super().__init__()
        self.over_classes = over_classes

    @abstractmethod
    def targets(self, output: Output, reference: Reference) -> Targets:
        """The targets of the scores."""

    def mask(self, reference: Reference) -> Tensor:
        """True for elements that enter the loss: (B, U) or (B, U, C)."""
        return reference.mask_BU

    def unit_counts(self, reference: Reference) -> dict[str, float]:
        """Items, and targets: frames where scores are those of classes, else labels."""
        mask = self.mask(reference)
        each = self.width if mask.dim() == 2 and not self.over_classes else 1
        return {"items": len(mask), "targets": int(mask.sum()) * each}

    @abstractmethod
    def activity_logits(self, output: Output) -> Tensor:
        """(B, U, K): log odds that each speaker is active."""

    def correct(self, output: Output, targets: Targets) -> tuple[Tensor, Tensor]:
        """The number of frames in which all predictions equal the targets, and the number of frames that count."""
        if self.over_classes:
            best_BU = output.scores_BUC.argmax(-1)
            shared = targets.values.dim() == 3
            right_BU = targets.values.gather(2, best_BU[..., None])[..., 0] > 0 if shared else targets.values == best_BU
            return (right_BU & targets.mask).sum(), targets.mask.sum()
        wrong_BUC = (output.scores_BUC > 0) != (targets.values > 0.5)
        mask_BUC = targets.mask if targets.mask.dim() == 3 else targets.mask[..., None].expand_as(wrong_BUC)
        counted_BU = mask_BUC.any(-1)
        return (counted_BU & ~(wrong_BUC & mask_BUC).any(-1)).sum(), counted_BU.sum()


class Binary(LabelType):
    """Speech or not."""

    speakers = 1

    def __init__(self, over_classes: bool) -> None:
        super().__init__(over_classes)
        self.width = 2 if over_classes else 1

    def targets(self, output: Output, reference: Reference) -> Targets:
        """Classes (B, U), or activity (B, U, 1): 1 where at least one speaker is active."""
        speech_BU = reference.activity_BUS.sum(-1) > 0
        return Targets(speech_BU.long() if self.over_classes else speech_BU[..., None].float(), reference.mask_BU)

    def activity_logits(self, output: Output) -> Tensor:
        """(B, U, 1)."""
        scores_BUC = output.scores_BUC.float()
        return scores_BUC[..., 1:] - scores_BUC[..., :1] if self.over_classes else scores_BUC


class SpeakerIds(LabelType):
    """Which speaker of the training set is active: class 0 is silence, class k + 1 speaker k.

    If several are active, each has an equal share of the target. Frames with a speaker outside the training set do not
    enter the loss.
    """

    def __init__(self, speakers: int, over_classes: bool) -> None:
        super().__init__(over_classes)
        self.speakers = speakers
        self.width = speakers + 1 if over_classes else speakers

    def targets(self, output: Output, reference: Reference) -> Targets:
        """Class probabilities (B, U, K + 1), or activity (B, U, K)."""
        active_BUS, number_BS = reference.activity_BUS, reference.speakers_BS
        known_BS = number_BS >= 0
        one_hot_BSK = F.one_hot(number_BS.clamp_min(0), self.speakers) * known_BS[..., None]
        active_BUK = (active_BUS @ one_hot_BSK.to(active_BUS.dtype)).clamp_max(1)
        mask_BU = self.mask(reference)
        if not self.over_classes:
            return Targets(active_BUK, mask_BU)
        count_BU1 = active_BUK.sum(-1, keepdim=True)
        shares_BUC = torch.cat([count_BU1 == 0, active_BUK / count_BU1.clamp_min(1)], dim=-1)
        return Targets(shares_BUC, mask_BU)

    def mask(self, reference: Reference) -> Tensor:
        """(B, U)."""
        unknown_BS = reference.speakers_BS < 0
        return reference.mask_BU & (reference.activity_BUS * unknown_BS[:, None, :]).sum(-1).eq(0)

    def activity_logits(self, output: Output) -> Tensor:
        """(B, U, K). For classes, the margin of a speaker over the best other class."""
        scores_BUC = output.scores_BUC.float()
        return _margins(scores_BUC)[..., 1:] if self.over_classes else scores_BUC


class Multilabel(LabelType):
    """The activity of each of K speakers, permutation-invariant."""

    def __init__(self, speakers: int) -> None:
        super().__init__(over_classes=False)
        self.speakers = self.width = speakers

    def targets(self, output: Output, reference: Reference) -> Targets:
        """(B, U, K). If the reference has more than K speakers, the K most active ones."""
        return Targets(self.aligned(output, reference), reference.mask_BU)

    def aligned(self, output: Output, reference: Reference) -> Tensor:
        """(B, U, K): the reference activity, in the speaker order that has the lowest cost for this output."""
        activity_BUK, _ = most_active(reference.activity_BUS, self.speakers)
        cost_BKK = pairwise_cost(self.activity_logits(output).detach(), activity_BUK, reference.mask_BU)
        return permuted(activity_BUK, best_permutation(cost_BKK))

    def activity_logits(self, output: Output) -> Tensor:
        """(B, U, K)."""
        return output.scores_BUC.float()


class PowersetLabels(Multilabel):
    """One class for each set of simultaneous speakers, permutation-invariant."""

    def __init__(self, speakers: int, at_once: int) -> None:
        super().__init__(speakers)
        self.over_classes = True
        self.powerset = Powerset(speakers, at_once)
        self.width = len(self.powerset)

    def targets(self, output: Output, reference: Reference) -> Targets:
        """Classes (B, U)."""
        return Targets(self.powerset.classes(self.aligned(output, reference)), reference.mask_BU)

    def activity_logits(self, output: Output) -> Tensor:
        """(B, U, K)."""
        return self.powerset.activity_logits(output.scores_BUC.float())


class Arrival(Multilabel):
    """The activity of each of K speakers in order of arrival (Park et al. 2024, "Sortformer")."""

    def targets(self, output: Output, reference: Reference) -> Targets:
        """(B, U, K)."""
        activity_BUK, _ = most_active(reference.activity_BUS, self.speakers)
        return Targets(activity_BUK, reference.mask_BU)


class AttractorLabels(Multilabel):
    """The activity of an estimated number of speakers, at most K; permutation-invariant."""

    def targets(self, output: Output, reference: Reference) -> Targets:
        """(B, U, K). Only the first columns enter the loss, one for each speaker present."""
        activity_BUK, present_B = self.present(reference)
        cost_BKK = pairwise_cost(output.scores_BUC.detach(), activity_BUK, reference.mask_BU)
        order_BK = best_permutation(among_present(cost_BKK, present_B))
        return Targets(permuted(activity_BUK, order_BK), self._among(present_B, reference))

    def mask(self, reference: Reference) -> Tensor:
        """(B, U, K)."""
        return self._among(self.present(reference)[1], reference)

    def _among(self, present_B: Tensor, reference: Reference) -> Tensor:
        column_K = torch.arange(self.speakers, device=present_B.device)
        return reference.mask_BU[:, :, None] & (column_K < present_B[:, None])[:, None, :]

    def unit_counts(self, reference: Reference) -> dict[str, float]:
        """Attractors, too, whose existence enters the loss."""
        return {**super().unit_counts(reference), "attractors": int(self.existence(reference).mask.sum())}

    def present(self, reference: Reference) -> tuple[Tensor, Tensor]:
        """Activity (B, U, K) with silent speakers moved to the end, and the number of other speakers (B,)."""
        activity_BUK, _ = most_active(reference.activity_BUS, self.speakers)
        silent_BK = activity_BUK.sum(1) == 0
        order_BK = silent_BK.long().argsort(dim=-1, stable=True)
        return permuted(activity_BUK, order_BK), (~silent_BK).sum(-1)

    def existence(self, reference: Reference) -> Targets:
        """(B, K + 1): 1 for as many attractors as speakers are present, 0 for the next one; the rest is masked."""
        _, present_B = self.present(reference)
        index_N = torch.arange(self.speakers + 1, device=present_B.device)
        return Targets((index_N < present_B[:, None]).float(), index_N <= present_B[:, None])

    def activity_logits(self, output: Output) -> Tensor:
        """(B, U, K): minus infinity from the first attractor on that does not exist."""
        assert output.existence_BN is not None
        exists_BK = (output.existence_BN[:, :-1] > 0).cumprod(-1).bool()
        return output.scores_BUC.float().masked_fill(~exists_BK[:, None, :], -torch.inf)


class Custom(LabelType):
    """The `labels` that `data.collator` adds to a batch: classes (B, T), where 0 is silence, or multiple binary labels
    (B, T, C). IGNORED elements do not enter the loss."""

    def __init__(self, classes: int, over_classes: bool) -> None:
        super().__init__(over_classes)
        self.width = classes
        self.speakers = classes - 1 if over_classes else classes

    def targets(self, output: Output, reference: Reference) -> Targets:
        """Classes (B, U), or labels (B, U, C). Raises InputError for other shapes."""
        labels = self._labels(reference)
        expected = output.scores_BUC.shape[: 2 if self.over_classes else 3]
        if labels.shape != expected:
            form = "classes (B, T)" if self.over_classes else f"binary labels (B, T, {self.width})"
            raise InputError(
                f"label_type custom: for this loss `labels` must be {form}; at the output frame rate their shape is "
                f"{tuple(labels.shape)}; choose another training.loss.main, or change data.collator"
            )
        mask = self.mask(reference)
        return Targets(labels.masked_fill(~mask, 0) if self.over_classes else labels.float(), mask)

    def _labels(self, reference: Reference) -> Tensor:
        if reference.labels is None:
            raise InputError("label_type custom: the batch has no `labels`; data.collator must add them")
        return reference.labels

    def mask(self, reference: Reference) -> Tensor:
        """(B, U), or (B, U, C)."""
        labels = self._labels(reference)
        mask = reference.mask_BU if labels.dim() == 2 else reference.mask_BU[..., None].expand_as(labels)
        return mask & (labels != IGNORED)

    def activity_logits(self, output: Output) -> Tensor:
        """(B, U, K). For classes, those of all but class 0."""
        scores_BUC = output.scores_BUC.float()
        return _margins(scores_BUC)[..., 1:] if self.over_classes else scores_BUC


def _margins(scores_BUC: Tensor) -> Tensor:
    """(B, U, C): each score minus the highest of the others; positive for the most likely class only."""
    best_BU2, index_BU2 = scores_BUC.topk(2, dim=-1)
    is_best_BUC = F.one_hot(index_BU2[..., 0], scores_BUC.shape[-1]).bool()
    return scores_BUC - torch.where(is_best_BUC, best_BU2[..., 1:], best_BU2[..., :1])


_FORMS: Mapping[LabelTypeName, tuple[tuple[bool, ...], bool]] = {
    "binary": ((False, True), False),
    "speaker_id": ((False, True), False),
    "multilabel": ((False,), False),
    "powerset": ((True,), True),
    "arrival": ((False,), False),
    "attractors": ((False,), False),
    "custom": ((False, True), True),
}
"""Which forms of targets a label type has (over classes or not), and the form for a loss that takes both (focal)."""
_ALTERNATIVES = {
    True: "choose bce_with_logits or focal, or label type powerset, speaker_id or binary",
    False: "choose cross_entropy or focal, or label type multilabel, arrival or attractors",
}


def over_classes(name: LabelTypeName, loss: str, required: bool | None) -> bool:
    """Whether the targets of label type `name` are classes for the main loss `loss`.

    Args:
        wanted: Whether the loss takes classes; None if it takes both forms.

    Raises InputError if the label type does not have such targets.
    """
    allowed, either = _FORMS[name]
    form = either if required is None else required
    if form not in allowed:
        what = "one class per frame" if form else "independent labels per speaker"
        raise InputError(
            f"training.loss.main: {loss} needs {what}, which label_type {name} does not have; {_ALTERNATIVES[form]}"
        )
    return form


def build_labels(
    name: LabelTypeName, settings: DiarizationModel, classes: bool, training_speakers: Sequence[str] = ()
) -> LabelType:
    """The label type called `name`.

    Args:
        settings: The recipe's `model` part.
        classes: The result of `over_classes`.
        training_speakers: Names of the speakers of the training set, for `speaker_id`.

    Raises InputError if `num_classes` does not fit the label type.
    """
    speakers, scores = settings.num_speakers, settings.output_settings.num_classes
    labels: LabelType
    if name == "binary":
        labels = Binary(classes)
    elif name == "speaker_id":
        labels = SpeakerIds(len(training_speakers), classes)
    elif name == "powerset":
        labels = PowersetLabels(speakers, settings.max_simultaneous)
    elif name == "custom":
        if scores is None:
            raise InputError(
                "label_type custom: set num_classes of the encoder or decoder to the number of classes or labels"
            )
        labels = Custom(scores, classes)
    else:
        labels = {"multilabel": Multilabel, "arrival": Arrival, "attractors": AttractorLabels}[name](speakers)
    if scores not in (None, labels.width):
        raise InputError(
            f"num_classes is {scores}, but label_type {name} has {labels.width} scores per frame; leave it out"
        )
    return labels


# -------------------------------------------- The loss: the recipe's losses between scores and targets

PERMUTATION, EXISTENCE = SECOND["arrival"], SECOND["attractors"]
_ARRIVAL_SHARE = 0.5


def targets_are_classes(label_type: LabelTypeName, settings: LossSettings) -> bool:
    """Whether the targets of `label_type` are classes for the recipe's main loss.

    Raises InputError for a main or auxiliary loss that does not fit the label type.
    """
    main = settings.main or LOSSES[label_type]
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
        units = ["items", "targets"]
        self.composite: CompositeLoss = build_loss(settings, default=LOSSES[label_type], units=units)
        for name, loss in self.composite.losses.items():
            if getattr(loss, "takes", "outputs") == "outputs":
                self.composite.losses[name] = FromScores(loss, self.classes)
        self.coupling, self.own_counts = self.composite.coupling, self.composite.own_counts
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
        terms: dict[str, tuple[Tensor, Count | str]] = self.composite(
            output.scores_BUC, targets.values, targets.mask, model=model, embeddings=embeddings, labels=speakers
        )
        if isinstance(labels, Arrival):
            aligned = Targets(labels.aligned(output, reference), reference.mask_BU)
            main = self.composite.main
            total, own = compute(self.composite.losses[main], output.scores_BUC, aligned.values, aligned.mask)
            count = terms[main][1]
            follows = isinstance(count, str) or self.composite.reduction == "sum"
            terms[PERMUTATION] = (total, count if follows else own)
        if isinstance(labels, AttractorLabels):
            exists = labels.existence(reference)
            total, _ = self.existence(output.existence_BN, exists.values, exists.mask)
            terms[EXISTENCE] = (total, "attractors")
        return terms


class FromScores(nn.Module):
    """Converts scores (logits) to what a loss reads, such as probabilities, and computes the loss."""

    def __init__(self, loss: nn.Module, classes: bool) -> None:
        super().__init__()
        self.loss = loss
        self.classes = classes
        self.couples_items = getattr(loss, "couples_items", False)
        self.unit = "targets" if getattr(loss, "unit", None) is not None else None

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
    usable_BS = (frames_2BS > 0).all(0)
    return means_2BSD[:, usable_BS].flatten(0, 1), label_BS[usable_BS].repeat(2)
