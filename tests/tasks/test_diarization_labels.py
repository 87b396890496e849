"""Label types and losses of diarization: permutations, padding, and every loss that a recipe can name."""

from __future__ import annotations

from typing import Any, get_args

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from phonate.config.errors import InputError
from phonate.tasks.diarization.labels import (
    EXISTENCE,
    PERMUTATION,
    DiarizationLoss,
    Output,
    PowersetLabels,
    Reference,
    build_labels,
    reference_of,
    speaker_views,
)
from phonate.tasks.diarization.model import SpeakerActivityModel
from phonate.tasks.diarization.settings import DiarizationModel, LabelTypeName
from phonate.training.losses import LossRegistry
from phonate.training.registries import LOSSES
from phonate.training.settings import LossSettings
from phonate.training.task import CountedTerms, counted

LABEL_TYPES = get_args(LabelTypeName)
ANY_ORDER = ["multilabel", "powerset", "attractors"]
"""Label types whose loss is the same in any order of the speakers."""
FEATURES, CLASSES = 23, 3
SPEAKERS = ["ann", "bob", "cy", "dee"]


def settings(label_type: str, **changes: Any) -> DiarizationModel:
    """A small model of three speakers."""
    part: dict[str, Any] = {"d_model": 32, "num_layers": 1, "num_heads": 4, "dropout": 0.0}
    if label_type == "custom":
        part["num_classes"] = CLASSES
    return DiarizationModel(global_config=part, num_speakers=3, **changes)


class Trained:
    """A loss with a model in float64."""

    def __init__(self, label_type: str, loss: LossSettings | None = None, **changes: Any) -> None:
        torch.manual_seed(0)
        self.criterion = DiarizationLoss(loss or LossSettings(), label_type)  # type: ignore[arg-type]
        own = settings(label_type, **changes)
        self.labels = build_labels(label_type, own, self.criterion.classes, SPEAKERS)  # type: ignore[arg-type]
        self.model = SpeakerActivityModel(own, FEATURES, self.labels).double().eval()

    def output(self, batch: dict[str, Tensor]) -> Output:
        out: Output = self.model(batch["features"], batch["lengths"])
        return out

    def terms(self, batch: dict[str, Tensor]) -> CountedTerms:
        reference = reference_of(batch, self.model.stride)
        terms = self.criterion(self.labels, self.output(batch), reference, self.model)
        return counted(terms, self.labels.unit_counts(reference))


def batch_of(lengths: tuple[int, ...] = (120, 77, 5), custom_classes: bool = True, seed: int = 0) -> dict[str, Tensor]:
    """Features and activity of three speakers, zeros in padding; of the second item a speaker is not in training."""
    generator = torch.Generator().manual_seed(seed)
    frames, items = max(lengths), len(lengths)
    mask = torch.arange(frames) < torch.tensor(lengths)[:, None]
    coarse = torch.rand(items, -(-frames // 20), 3, generator=generator) > 0.5
    activity = coarse.repeat_interleave(20, dim=1)[:, :frames].float() * mask[..., None]
    if custom_classes:
        labels = torch.randint(0, CLASSES, (items, frames), generator=generator)
    else:
        labels = (torch.rand(items, frames, CLASSES, generator=generator) > 0.5).double()
    return {
        "features": torch.randn(items, frames, FEATURES, generator=generator, dtype=torch.float64) * mask[..., None],
        "lengths": torch.tensor(lengths),
        "activity": activity,
        "speakers": torch.tensor([[0, 1, 3], [2, 0, -1], [1, 2, 0]])[:items],
        "labels": labels,
    }


def weighed(criterion: DiarizationLoss, terms: CountedTerms) -> Tensor:
    """The loss that the trainer minimises."""
    parts = [criterion.weights[name] * total / max(float(count), 1.0) for name, (total, count) in terms.items()]
    return torch.stack(parts).sum()


_PAIR = {"norm_reg": 0.1, "contrastive": 0.1}
COMBINATIONS = [
    *[(label_type, main, {}) for label_type in LABEL_TYPES for main in LOSSES.names()],
    *[(label_type, None, _PAIR) for label_type in LABEL_TYPES if label_type != "custom"],
    *[(label_type, None, {name: 0.5}) for label_type in LABEL_TYPES for name in LOSSES.names()],
]


def refusal(label_type: str, loss: LossSettings) -> str | None:
    """Why a loss can't train a label type. None: it can."""
    try:
        DiarizationLoss(loss, label_type)  # type: ignore[arg-type]
    except InputError as error:
        return str(error)
    return None


@pytest.mark.parametrize(("label_type", "main", "auxiliary"), COMBINATIONS)
def test_every_loss_trains_every_label_type_or_is_refused_by_name(
    label_type: str, main: str | None, auxiliary: dict[str, float]
) -> None:
    """Before training; never in the middle of it, never with values that are not finite."""
    if (refused := refusal(label_type, LossSettings(main=main, auxiliary=auxiliary))) is not None:
        name = main or next(iter(auxiliary))
        assert f"training.loss.{'main' if main else 'auxiliary'}" in refused
        assert name in refused
        return
    trained = Trained(label_type, LossSettings(main=main, auxiliary=auxiliary))
    trained.model.train()
    terms = trained.terms(batch_of(custom_classes=trained.criterion.classes))
    assert set(terms) == set(trained.criterion.weights)
    weighed(trained.criterion, terms).backward()
    for name, parameter in trained.model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


def test_what_can_be_trained_and_what_is_refused() -> None:
    """The combinations that the documentation names."""
    works = {
        "binary": {"cross_entropy", "bce_with_logits", "focal", "bce", "mse", "nll", "kl_div", "label_smoothing"},
        "speaker_id": {"cross_entropy", "bce_with_logits", "focal", "nll", "label_smoothing"},
        "multilabel": {"bce_with_logits", "bce", "focal", "mse", "mae", "huber", "smooth_l1"},
        "powerset": {"cross_entropy", "focal", "nll", "kl_div", "label_smoothing"},
        "arrival": {"bce_with_logits", "focal"},
        "attractors": {"bce_with_logits", "focal"},
        "custom": {"cross_entropy", "bce_with_logits", "focal"},
    }
    for label_type, losses in works.items():
        for main in losses:
            DiarizationLoss(LossSettings(main=main), label_type)  # type: ignore[arg-type]
    for label_type in ("multilabel", "arrival", "attractors"):
        with pytest.raises(InputError, match=f"cross_entropy .*{label_type}"):
            DiarizationLoss(LossSettings(main="cross_entropy"), label_type)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="bce_with_logits "):
        DiarizationLoss(LossSettings(main="bce_with_logits"), "powerset")
    with pytest.raises(InputError, match="smooth"):
        DiarizationLoss(LossSettings(main="focal", label_smoothing=0.1), "multilabel")


def test_the_documents_loss_is_smoothed_cross_entropy_of_two_classes() -> None:
    """`main: cross_entropy`, `label_smoothing: 0.1`, `label_type: binary`: torch's, over real frames alone."""
    trained = Trained("binary", LossSettings(main="cross_entropy", label_smoothing=0.1, auxiliary={"norm_reg": 0.1}))
    batch = batch_of()
    reference = reference_of(batch, trained.model.stride)
    scores = trained.output(batch).scores_BUC
    speech = reference.activity_BUS.sum(-1).gt(0).long()
    expected = F.cross_entropy(
        scores[reference.mask_BU].float(), speech[reference.mask_BU], label_smoothing=0.1, reduction="sum"
    )
    total, count = trained.terms(batch)["cross_entropy"]
    assert torch.isclose(total, expected)
    assert count == 12 + 8 + 1


class HingeLoss(torch.nn.Module):
    """A loss of another package: a scalar, and no mask."""

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean over the batch."""
        return (1 - outputs * (2 * targets - 1)).clamp_min(0).mean()


def test_a_registered_loss_gets_logits_and_aligned_activity() -> None:
    """`LossRegistry.register`, as the document has it."""
    LossRegistry.register("hinge", HingeLoss)
    trained = Trained("multilabel", LossSettings(main="hinge"))
    batch = batch_of()
    first = trained.terms(batch)["hinge"]
    other = trained.terms({**batch, "activity": batch["activity"][..., [1, 2, 0]]})["hinge"]
    assert torch.isclose(first[0], other[0])
    assert first[1] == 3
    assert trained.criterion.own_counts


def test_smoothed_labels_of_speakers_are_learnt() -> None:
    """`bce_with_logits` with label smoothing, of targets that were put in order."""
    smoothing = LossSettings(main="bce_with_logits", label_smoothing=0.1)
    trained = Trained("multilabel", smoothing)
    batch = batch_of()
    reference, output = reference_of(batch, 10), trained.output(batch)
    targets = trained.labels.targets(output, reference).values * 0.9 + 0.05
    cells = F.binary_cross_entropy_with_logits(output.scores_BUC.float(), targets, reduction="none")
    assert torch.isclose(trained.terms(batch)["bce_with_logits"][0], cells[reference.mask_BU].sum())


@pytest.mark.parametrize("label_type", LABEL_TYPES)
@pytest.mark.parametrize("upsampling", [1, 5])
def test_padding_reaches_no_loss(label_type: str, upsampling: int) -> None:
    """The loss and the gradient of an item are the same beside a longer one, whatever padding holds."""
    trained = Trained(label_type, upsampling=upsampling)
    alone = batch_of((77,))
    padded = batch_of((77, 120))
    for name in ("features", "activity", "labels"):
        padded[name][0, :77] = alone[name][0]
    padded["activity"][0, 77:] = -100.0  # as Lhotse pads speaker activity
    padded["features"][0, 77:] = 1e3
    other = {name: value[1:] for name, value in padded.items()}

    def loss_of(*batches: dict[str, Tensor]) -> tuple[dict[str, tuple[float, float]], list[Tensor]]:
        trained.model.zero_grad()
        sums: dict[str, tuple[float, float]] = {}
        for batch in batches:
            for name, (total, count) in trained.terms(batch).items():
                before = sums.get(name, (0.0, 0.0))
                sums[name] = (before[0] + float(total.detach()), before[1] + float(count))
                total.backward(retain_graph=True)
        return sums, [p.grad.clone() for p in trained.model.parameters() if p.grad is not None]

    together, gradients = loss_of(padded)
    apart, expected = loss_of(alone, other)
    for name in apart:
        assert together[name] == pytest.approx(apart[name], rel=1e-5)
    for gradient, one in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, one, rtol=1e-4, atol=1e-6)


def test_a_loss_over_lhotses_padding_would_be_ruled_by_it() -> None:
    """The faulty variant that the test above would catch: cross entropy of padding that is labelled -100."""
    scores = torch.zeros(2, 10, 3, requires_grad=True)
    targets = torch.zeros(2, 10, 3)
    targets[1, 4:] = -100.0
    F.binary_cross_entropy_with_logits(scores, targets, reduction="sum").backward()
    assert scores.grad is not None
    assert scores.grad[1, 4:].abs().min() > 100 * scores.grad[1, :4].abs().max()


@pytest.mark.parametrize("label_type", ANY_ORDER)
def test_the_order_of_speakers_is_nobodys_business(label_type: str) -> None:
    """The same loss and gradient."""
    trained = Trained(label_type)
    batch = batch_of()
    other = {**batch, "activity": batch["activity"][..., [2, 0, 1]], "speakers": batch["speakers"][:, [2, 0, 1]]}
    one, two = trained.terms(batch), trained.terms(other)
    for name in one:
        assert torch.isclose(one[name][0], two[name][0])
    head = list(trained.model.head.parameters())
    gradients = [torch.autograd.grad(weighed(trained.criterion, terms), head) for terms in (one, two)]
    assert all(torch.allclose(a, b) for a, b in zip(*gradients, strict=True))


def test_arrival_order_is_half_of_the_loss_and_any_order_the_other_half() -> None:
    """Park et al. 2024, equation 9; with the speakers in another order only the first half changes."""
    trained = Trained("arrival")
    batch = batch_of()
    other = {**batch, "activity": batch["activity"][..., [2, 0, 1]]}
    one, two = trained.terms(batch), trained.terms(other)
    assert trained.criterion.weights == {"bce_with_logits": 0.5, PERMUTATION: 0.5}
    assert torch.isclose(one[PERMUTATION][0], two[PERMUTATION][0])
    assert not torch.isclose(one["bce_with_logits"][0], two["bce_with_logits"][0])
    assert one[PERMUTATION][0] <= one["bce_with_logits"][0]
    reference, scores = reference_of(batch, 10), trained.output(batch).scores_BUC
    cells = F.binary_cross_entropy_with_logits(scores.float(), reference.activity_BUS, reduction="none")
    assert torch.isclose(one["bce_with_logits"][0], cells[reference.mask_BU].sum())


def output_of(scores: Tensor, mask: Tensor, existence: Tensor | None = None) -> Output:
    return Output(scores, scores, mask, existence)


@pytest.mark.parametrize("label_type", ["multilabel", "powerset"])
def test_a_model_that_is_right_in_another_order_is_right(label_type: str) -> None:
    """No loss, and an accuracy of 1."""
    trained = Trained(label_type)
    batch = batch_of()
    batch["activity"][..., 2] *= 1 - batch["activity"][..., 0]  # two at once, as the powerset has it
    reference = reference_of(batch, 10)
    moved = reference.activity_BUS[..., [1, 2, 0]]
    scores = moved * 2 - 1
    if isinstance(trained.labels, PowersetLabels):
        scores = F.one_hot(trained.labels.powerset.classes(moved), 7).float()
    output = output_of(scores * 30, reference.mask_BU)
    right, frames = trained.labels.correct(output, trained.labels.targets(output, reference))
    assert right == frames == 21
    terms = trained.criterion(trained.labels, output, reference, trained.model)
    assert weighed(trained.criterion, counted(terms, trained.labels.unit_counts(reference))) < 1e-6


def test_attractors_learn_how_many_speakers_there_are() -> None:
    """As many as speak, then one for nobody; the activity of the others does not count."""
    trained = Trained("attractors")
    batch = batch_of()
    batch["activity"][1, :, 1:] = 0
    batch["activity"][2] = 0
    exists = trained.labels.existence(reference_of(batch, 10))  # type: ignore[operator]
    assert exists.values.tolist() == [[1, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]]
    assert exists.mask.tolist() == [[True] * 4, [True, True, False, False], [True, False, False, False]]
    terms = trained.terms(batch)
    assert terms[EXISTENCE][1] == 7
    assert terms["bce_with_logits"][1] == 12 * 3 + 8 * 1


def test_speakers_behind_the_last_attractor_are_silent() -> None:
    """However active their attractor is."""
    labels = Trained("attractors").labels
    scores = torch.full((1, 5, 3), 4.0)
    mask = torch.ones(1, 5, dtype=torch.bool)
    output = output_of(scores, mask, torch.tensor([[3.0, -1.0, 2.0, -2.0]]))
    assert labels.activity_logits(output).sigmoid()[0, 0].tolist() == pytest.approx([0.982, 0.0, 0.0], abs=1e-3)


def test_speaker_ids_are_those_of_the_training_set() -> None:
    """A class each, shared where several talk; frames of somebody else are not learnt."""
    labels = Trained("speaker_id").labels
    activity = torch.tensor([[[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]], [[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]])
    reference = Reference(activity, torch.tensor([[2, 0], [1, -1]]), torch.ones(2, 3, dtype=torch.bool))
    targets = labels.targets(output_of(torch.zeros(2, 3, 5), reference.mask_BU), reference)
    assert targets.values[0].tolist() == [[0, 0, 0, 1, 0], [0, 0.5, 0, 0.5, 0], [1, 0, 0, 0, 0]]
    assert targets.mask.tolist() == [[True, True, True], [True, False, False]]
    scores = torch.tensor([[[0.0, 1.0, 0.0, 3.0, 0.0], [4.0, 1.0, 0.0, 3.0, 0.0]]])
    active = labels.activity_logits(output_of(scores, torch.ones(1, 2, dtype=torch.bool))) > 0
    assert active[0].tolist() == [[False, False, True, False], [False] * 4]


@pytest.mark.parametrize("label_type", LABEL_TYPES)
def test_an_item_in_which_nobody_speaks_is_learnt_too(label_type: str) -> None:
    """Also where the batch has no column for anybody."""
    trained = Trained(label_type)
    batch = batch_of((40, 30))
    batch |= {"activity": torch.zeros(2, 40, 0), "speakers": torch.zeros(2, 0, dtype=torch.long)}
    weighed(trained.criterion, trained.terms(batch)).backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in trained.model.parameters())


@pytest.mark.parametrize("label_type", LABEL_TYPES)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_counts_are_known_before_the_model_has_run(label_type: str, reduction: str) -> None:
    """So that several ranks and micro-batches cost no pass of the model beforehand."""
    trained = Trained(label_type, LossSettings(reduction=reduction))  # type: ignore[arg-type]
    batch = batch_of()
    assert not trained.criterion.own_counts
    by_units = {name: float(count) for name, (_, count) in trained.terms(batch).items()}
    trained.criterion.composite.units = ()
    trained.criterion.own_counts = True
    assert {name: float(count) for name, (_, count) in trained.terms(batch).items()} == by_units


def test_counts_that_need_the_model_are_left_to_it() -> None:
    """Those of norm_reg and contrastive."""
    for name in ("norm_reg", "contrastive"):
        assert Trained("multilabel", LossSettings(auxiliary={name: 0.1})).criterion.own_counts


def test_contrastive_compares_halves_of_what_somebody_says_alone() -> None:
    """Two views of each speaker, labelled by who it is; strangers are their own person in each item."""
    activity = torch.tensor([[[1.0, 0.0]] * 4 + [[1.0, 1.0]] * 2 + [[0.0, 1.0]] * 2, [[0.0, 1.0]] * 7 + [[1.0, 0.0]]])
    hidden = torch.arange(16.0).view(2, 8, 1)
    reference = Reference(activity, torch.tensor([[5, -1], [5, -1]]), torch.ones(2, 8, dtype=torch.bool))
    views, speakers = speaker_views(hidden, reference)
    assert views[:, 0].tolist() == [0.5, 6.0, 9.0, 2.5, 7.0, 12.5]
    assert speakers[:3].tolist() == speakers[3:].tolist()
    assert speakers[0] == 5
    assert len(set(speakers.tolist())) == 3


def test_custom_labels_of_other_shapes_are_refused() -> None:
    """And a batch without them."""
    trained = Trained("custom")
    with pytest.raises(InputError, match=r"\(B, T\)"):
        trained.terms(batch_of(custom_classes=False))
    batch = batch_of()
    del batch["labels"]
    with pytest.raises(InputError, match=r"data\.collator"):
        trained.terms(batch)
    with pytest.raises(InputError, match="num_classes"):
        build_labels("custom", settings("binary"), True)


def test_custom_labels_of_minus_100_are_not_learnt() -> None:
    """The label of the middle of an output frame is its label."""
    trained = Trained("custom")
    batch = batch_of((40,))
    batch["labels"][0, 10:20] = -100
    assert trained.terms(batch)["cross_entropy"][1] == 3


def test_numbers_that_do_not_fit_are_refused() -> None:
    """Classes that the label type does not have; and settings."""
    with pytest.raises(InputError, match=r"powerset .*7 "):
        build_labels("powerset", settings("custom"), True)
    with pytest.raises(InputError, match="num_speakers"):
        settings("powerset", max_simultaneous=5)
    with pytest.raises(InputError, match=r"upsampling 3 .*front_end\.subsampling 10"):
        settings("multilabel", upsampling=3)


@pytest.mark.parametrize("label_type", LABEL_TYPES)
@pytest.mark.parametrize("upsampling", [1, 5])
def test_every_label_type_gives_the_activity_of_speakers(label_type: str, upsampling: int) -> None:
    """From 0 to 1, in each output frame, and 0 in padding."""
    trained = Trained(label_type, upsampling=upsampling)
    batch = batch_of()
    activity = trained.model.activity_probabilities(batch["features"], batch["lengths"])
    speakers = {"binary": 1, "speaker_id": 4, "custom": 2}.get(label_type, 3)
    assert activity.shape == (3, 12 * upsampling, speakers)
    assert activity.min() >= 0
    assert activity.max() <= 1
    assert not activity[2, upsampling:].any()
