"""Losses by name, the composite of a recipe, and the loss manager."""

from __future__ import annotations

import pytest
import torch
from small_tasks import GanTask
from test_trainer import train
from torch import nn

from phonate.config.errors import InputError, RecipeError
from phonate.config.resolve import resolve
from phonate.training import TrainingConfig, VoiceTrainer
from phonate.training.losses import LossManager, LossRegistry, build_loss, compute
from phonate.training.registries import LOSSES
from phonate.training.settings import LossSettings
from phonate.training.task import Coupling


class MyLoss(nn.Module):
    def forward(self, outputs, targets):
        return (outputs - targets).abs().mean()


@pytest.fixture
def my_loss(monkeypatch):
    monkeypatch.setattr(LOSSES, "_registered", dict(LOSSES._registered))
    LossRegistry.register("my_loss", MyLoss)
    return "my_loss"


def test_every_documented_loss_can_be_built():
    documented = (
        "cross_entropy mse mae l1 bce bce_with_logits nll kl_div smooth_l1 huber focal label_smoothing spectral "
        "multi_resolution_stft contrastive norm_reg perceptual"
    )
    assert set(documented.split()) <= set(LossRegistry.names())
    for name in LOSSES.own():
        assert isinstance(LossRegistry.get(name)(), nn.Module)


def test_a_registered_loss_counts_as_its_mean_times_the_items(my_loss):
    outputs, targets = torch.tensor([[1.0, 3.0], [0.0, 0.0], [2.0, 2.0]]), torch.zeros(3, 2)
    terms = build_loss(LossSettings(main=my_loss))(outputs, targets)
    total, count = terms[my_loss]
    assert (float(total), count) == (pytest.approx(8 / 6 * 3), 3.0)


@pytest.mark.parametrize("shape", [(), (3,)])
def test_padding_does_not_reach_a_loss_without_a_mask(shape):
    """Neither what padding holds nor how much of it there is changes value or gradient."""
    real = torch.randn(2, 5, *shape, requires_grad=True)
    padded = torch.cat([real, torch.full((2, 9, *shape), torch.nan)], dim=1)
    mask = torch.zeros(2, 14, dtype=torch.bool)
    mask[0, :5] = mask[1, :2] = True
    total, count = compute(MyLoss(), padded, torch.zeros_like(padded), mask)
    expected = real[0].abs().mean() + real[1, :2].abs().mean()
    assert (total.item(), count) == (pytest.approx(expected.item()), 2.0)
    (gradient,) = torch.autograd.grad(total, real)
    (wanted,) = torch.autograd.grad(expected, real)
    torch.testing.assert_close(gradient, wanted)


def test_items_that_are_all_padding_do_not_count():
    outputs = torch.ones(2, 4, requires_grad=True)
    total, count = compute(MyLoss(), outputs, torch.zeros(2, 4), torch.tensor([[True] * 4, [False] * 4]))
    assert (float(total), count) == (1.0, 1.0)
    total, count = compute(MyLoss(), outputs, torch.zeros(2, 4), torch.zeros(2, 4, dtype=torch.bool))
    assert (float(total), count, total.requires_grad) == (0.0, 0.0, True)
    total, count = compute(MyLoss(), outputs, torch.zeros(2, 4), torch.tensor([True, False]))
    assert (float(total), count) == (1.0, 1.0)


def test_a_loss_that_compares_items_must_take_a_mask():
    class Compares(MyLoss):
        couples_items = True

    with pytest.raises(InputError, match=r"Compares .*mask"):
        compute(Compares(), torch.zeros(2, 3), torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.bool))


def test_a_loss_that_returns_something_else_is_refused():
    class Vector(nn.Module):
        def forward(self, outputs, targets):
            return outputs - targets

    with pytest.raises(InputError, match=r"Vector .*scalar"):
        compute(Vector(), torch.zeros(2, 3), torch.zeros(2, 3))


def test_unknown_losses_are_named_with_the_nearest():
    with pytest.raises(InputError, match=r"training\.loss\.main.*did you mean cross_entropy"):
        build_loss(LossSettings(main="cross_entrpy"))
    with pytest.raises(InputError, match=r"training\.loss\.auxiliary.*did you mean norm_reg"):
        build_loss(LossSettings(main="mse", auxiliary={"norm_regg": 1.0}))
    with pytest.raises(InputError, match=r"training\.loss\.main"):
        build_loss(LossSettings())


def test_the_tasks_own_loss_is_the_default():
    assert build_loss(LossSettings(), default="l1").main == "l1"
    assert build_loss(LossSettings(main="mse"), default="l1").main == "mse"


@pytest.mark.parametrize("name", ["cross_entropy", "nll", "bce", "bce_with_logits"])
def test_label_smoothing_changes_the_loss(name):
    scores = torch.tensor([[2.0, -1.0], [0.5, 0.3]])
    outputs = scores.sigmoid() if name == "bce" else scores.log_softmax(-1) if name == "nll" else scores
    targets = torch.tensor([0, 1]) if name in {"cross_entropy", "nll"} else torch.tensor([[1.0, 0], [0, 1]])
    plain = build_loss(LossSettings(main=name))(outputs, targets)[name][0]
    smooth = build_loss(LossSettings(main=name, label_smoothing=0.1))(outputs, targets)[name][0]
    assert float(plain) != pytest.approx(float(smooth))


def test_label_smoothing_without_classes_is_refused():
    with pytest.raises(InputError, match="label_smoothing: mse"):
        build_loss(LossSettings(main="mse", label_smoothing=0.1))


def test_focal_options_reach_the_loss():
    outputs, targets = torch.tensor([[2.0, -1.0]]), torch.tensor([[1.0, 1.0]])

    def value(**options: object) -> float:
        return float(build_loss(LossSettings(main="focal", **options))(outputs, targets)["focal"][0])

    assert len({value(), value(focal_alpha=0.5), value(focal_alpha=None), value(focal_gamma=1.0)}) == 4


def test_focal_options_reach_an_auxiliary_one_too():
    options = {"focal_alpha": None, "focal_gamma": 5.0}
    composite = build_loss(LossSettings(main="bce_with_logits", auxiliary={"focal": 0.5}, **options))
    manager = LossManager("mse", {"reconstruction": 1.0, "focal": 0.5}, LossSettings(**options, label_smoothing=0.0))
    for loss in (composite.losses["focal"], manager.losses["focal"]):
        assert (loss.alpha, loss.gamma) == (None, 5.0)


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (
            "{main: cross_entrpy}",
            r"yaml:4:16 training\.loss\.main: .*did you mean cross_entropy",
        ),
        (
            "{auxiliary: {norm_regg: 0.1}}",
            r"yaml:4:\d+ training\.loss\.auxiliary\.norm_regg: .*did you mean norm_reg",
        ),
    ],
)
def test_a_recipes_losses_are_looked_up_when_it_is_read(loss, said, tmp_path):
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(f"task: conversion\ndata: {{path: recordings}}\ntraining:\n  loss: {loss}\n")
    with pytest.raises(RecipeError, match=said):
        resolve(recipe)


def test_a_weight_of_no_term_is_refused_at_the_first_step(tmp_path):
    with pytest.raises(InputError, match=r"training\.loss\.weights\.mze: .*did you mean mse"):
        train(tmp_path / "run", loss={"weights": {"mze": 3.0}})
    weights = {"generator": 2.0, "discriminator": 0.5}
    train(tmp_path / "gan", GanTask(), loss={"weights": weights})
    with pytest.raises(InputError, match=r"weights\.generater: .*did you mean generator"):
        train(tmp_path / "bad", GanTask(), loss={"weights": {"generater": 2.0}})


def test_the_sum_is_that_of_each_item_averaged_over_items():
    outputs, targets = torch.ones(2, 3), torch.zeros(2, 3)
    total, count = build_loss(LossSettings(main="mse", reduction="sum"))(outputs, targets)["mse"]
    assert float(total) / float(count) == 3.0
    total, count = build_loss(LossSettings(main="mse"))(outputs, targets)["mse"]
    assert float(total) / float(count) == 1.0


def test_auxiliary_losses_have_their_terms_and_weights():
    model = nn.Linear(3, 2)
    loss = build_loss(LossSettings(main="cross_entropy", auxiliary={"norm_reg": 0.1, "contrastive": 0.05}))
    embeddings = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 0, 1, 1])
    terms = loss(model(embeddings), labels, model=model, embeddings=embeddings, labels=labels)
    assert loss.weights == {"cross_entropy": 1.0, "norm_reg": 0.1, "contrastive": 0.05}
    assert loss.coupling is Coupling.MICRO_BATCH
    assert terms.keys() == loss.weights.keys()
    assert all(total.item() > 0 for total, _ in terms.values())
    with pytest.raises(InputError, match=r"auxiliary\.contrastive.*embeddings"):
        loss(model(embeddings), labels, model=model)


def test_the_main_loss_can_not_be_its_own_auxiliary():
    with pytest.raises(InputError, match="already"):
        build_loss(LossSettings(main="mse", auxiliary={"mse": 1.0}))


def test_losses_are_told_what_the_task_knows_of_its_outputs():
    known = {"fmin": 50.0, "fmax": 7600.0}
    main = build_loss(LossSettings(main="perceptual", auxiliary={"l1": 1.0}), known=known).losses
    auxiliary = build_loss(LossSettings(main="l1", auxiliary={"perceptual": 1.0}), known=known).losses
    assert [(one["perceptual"].fmin, one["perceptual"].fmax) for one in (main, auxiliary)] == [(50.0, 7600.0)] * 2


def test_the_manager_weighs_its_terms():
    manager = LossManager("l1", {"reconstruction": 2.0, "perceptual": 0.5, "stft": 0.1})
    outputs = {"features": torch.ones(2, 4, 80), "waveform": torch.randn(2, 4096)}
    batch = {
        "target_features": torch.zeros(2, 4, 80),
        "waveform": torch.randn(2, 4096),
        "lengths": torch.tensor([4, 2]),
    }
    losses = manager(outputs, batch)
    assert set(losses) == {"reconstruction", "perceptual", "stft", "total"}
    assert float(losses["reconstruction"]) == pytest.approx(1.0)
    weighted = 2 * losses["reconstruction"] + 0.5 * losses["perceptual"] + 0.1 * losses["stft"]
    torch.testing.assert_close(losses["total"], weighted)


@pytest.mark.parametrize("loss_type", ["mse", "l1", "huber", "reconstruction", "perceptual"])
def test_the_manager_masks_padding(loss_type):
    manager = LossManager(loss_type)
    batch = {"features": torch.zeros(2, 4, 80), "lengths": torch.tensor([4, 2])}
    outputs = torch.zeros(2, 4, 80)
    outputs[1, 2:] = 100.0
    assert float(manager(outputs, batch)["total"]) == 0.0


@pytest.mark.parametrize("loss_type", ["spectral", "multi_resolution_stft", "stft"])
def test_the_manager_tells_mel_frames_from_waveforms(loss_type):
    manager = LossManager(loss_type)
    batch = {"features": torch.zeros(2, 33, 80), "waveform": torch.zeros(2, 8192)}
    with pytest.raises(InputError, match=r"waveforms .*mel"):
        manager(torch.zeros(2, 33, 80), batch)
    with pytest.raises(InputError, match="`waveform`"):
        manager(torch.zeros(2, 8192), {"features": torch.zeros(2, 33, 80)})


def test_the_manager_refuses_names_that_nothing_has():
    with pytest.raises(InputError, match=r"loss_weights.*did you mean reconstruction"):
        LossManager("mse", {"reconstuction": 1.0})
    with pytest.raises(InputError, match=r"loss_type.*did you mean huber"):
        LossManager("hubr")


def test_an_adversarial_weight_without_an_adversary_is_said(caplog):
    manager = LossManager("mse", {"reconstruction": 1.0, "adversarial": 0.1})
    batch = {"features": torch.zeros(1, 4, 80)}
    assert set(manager(torch.zeros(1, 4, 80), batch)) == {"reconstruction", "total"}
    assert "adversarial" in caplog.text
    losses = manager({"features": torch.zeros(1, 4, 80), "scores": torch.tensor([0.0, 1.0])}, batch)
    assert float(losses["adversarial"]) == 0.5
    assert float(losses["total"]) == pytest.approx(0.05)


def test_the_manager_gives_each_loss_what_it_takes():
    manager = LossManager("mse", {"reconstruction": 1.0, "norm_reg": 0.1, "contrastive": 0.05})
    model = nn.Linear(3, 2, bias=False)
    features = torch.randn(4, 5, 3, generator=torch.Generator().manual_seed(0))
    outputs = {"features": model(features), "embeddings": model(features).mean(1)}
    batch = {"target_features": torch.zeros(4, 5, 2), "speaker_id": torch.tensor([0, 0, 1, 1])}
    losses = manager(outputs, batch, model=model)
    assert float(losses["norm_reg"].detach()) == pytest.approx(float(model.weight.detach().square().mean()))
    assert float(losses["contrastive"].detach()) > 0
    assert manager.coupling is Coupling.MICRO_BATCH
    with pytest.raises(InputError, match=r"norm_reg: .*model"):
        manager(outputs, batch)
    with pytest.raises(InputError, match=r"contrastive: .*`embeddings`"):
        manager(outputs["features"], batch, model=model)


def test_the_voice_trainer_gives_them_too(tmp_path):
    class Embedding(nn.Linear):
        def forward(self, inputs, speaker_id=None):
            return {"features": super().forward(inputs), "embeddings": super().forward(inputs).mean(1)}

    batch = {
        "features": torch.randn(4, 5, 3),
        "target_features": torch.zeros(4, 5, 2),
        "speaker_id": torch.tensor([0, 0, 1, 1]),
    }
    weights = {"reconstruction": 1.0, "norm_reg": 0.1, "contrastive": 0.05}
    config = TrainingConfig(num_epochs=1, loss_weights=weights, output_dir=str(tmp_path), verbosity="quiet")
    metrics = VoiceTrainer(Embedding(3, 2), config).train([batch] * 3, [batch])
    assert {"val_norm_reg", "val_contrastive", "val_reconstruction"} <= metrics.keys()
