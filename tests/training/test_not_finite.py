"""Losses and gradients that are not finite, under each `training.not_finite`: what is left, and what is told."""

from __future__ import annotations

import json
import logging
import signal

import pytest
import torch
from small_tasks import GanTask, RegressionTask
from test_failures import BadGradient, as_on_a_gpu  # noqa: F401 - a fixture
from test_trainer import lines, same, train, weights
from torch import nn

from phonate.config.errors import Interrupted, TrainingError
from phonate.training.callbacks import Callback
from phonate.training.ledger import read
from phonate.training.not_finite import MOST_LEFT_OUT
from phonate.training.optimizers import sgd
from phonate.training.step import TrainStep


class BadAt(RegressionTask):
    """The loss, or only its gradient, is not a number in the steps `bad`, numbered as in the log."""

    def __init__(self, *bad: int, gradient: bool = False) -> None:
        super().__init__()
        self.bad, self.gradient = bad, gradient
        self.ids: dict[int, list[str]] = {}

    def loss(self, model, batch, phase):
        terms = super().loss(model, batch, phase)
        if torch.is_grad_enabled() and self.step + 1 in self.bad:
            self.ids[self.step + 1] = list(batch["ids"])
            total, count = terms["mse"]
            spoilt = (model[3].weight * 0.0).pow(2).sum().sqrt() if self.gradient else torch.tensor(float("nan"))
            terms["mse"] = (total + spoilt, count)
        return terms


def events(folder, name):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["split"] == "event" and row["event"] == name]


def passing_over(folder, steps, **changes):
    """A run that passes over the batches of these steps without ever computing them."""
    call = TrainStep.__call__

    def called(self, group, step, ema):
        if step + 1 not in steps:
            call(self, group, step, ema)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainStep, "__call__", called)
        return train(folder, RegressionTask(), **changes)


@pytest.fixture(params=["at once", "as on a GPU"])
def reading(request):
    if request.param != "at once":
        request.getfixturevalue("as_on_a_gpu")


@pytest.mark.parametrize(
    ("optimizer", "gradient"), [("adamw", False), ("adamw", True), ("sgd", False), ("lion", False)]
)
def test_a_skipped_step_leaves_weights_and_optimizer_as_they_are(tmp_path, reading, gradient, optimizer, caplog):
    changes = {"optimizer": {"type": optimizer, "lr": 1e-3}, "logging": {"interval": 3}, "ema": None}
    changes["scheduler"] = {"type": "constant", "warmup_steps": 0}
    task = BadAt(1, 6, gradient=gradient)
    trainer = train(tmp_path / "run", task, not_finite="skip", max_steps=7, **changes)
    assert not any(tensor.isnan().any() for tensor in trainer.model.state_dict().values())
    found = events(tmp_path / "run", "skipped")
    assert [row["step"] for row in found] == [1, 6]
    assert [row["ids"] for row in found] == [task.ids[1], task.ids[6]]
    assert "at step 6" in caplog.text
    assert "the step was left out" in caplog.text
    assert all(torch.isfinite(torch.tensor(row["loss"])) for row in lines(tmp_path / "run", "train"))
    other = passing_over(tmp_path / "other", {1, 6}, max_steps=7, **changes)
    assert same(weights(trainer), weights(other))
    ours, theirs = (one.phases[0].optimizer.state_dict()["state"] for one in (trainer, other))
    assert all(torch.equal(torch.as_tensor(ours[i][k]), torch.as_tensor(theirs[i][k])) for i in ours for k in ours[i])


def test_what_is_finite_counts_in_the_log_of_a_step_that_was_left_out(tmp_path, reading):
    train(tmp_path / "run", BadAt(2), not_finite="skip", max_steps=4, logging={"interval": 2})
    row = lines(tmp_path / "run", "train")[0]
    assert row["mse"] > 0
    assert row["size"] > 0


def test_a_run_that_is_skipped_step_after_step_ends(tmp_path, reading):
    bad = range(3, 60)
    with pytest.raises(TrainingError, match=f"as in the {MOST_LEFT_OUT - 1} steps before: nothing is learnt"):
        train(tmp_path / "run", BadAt(*bad), not_finite="skip", max_steps=60, checkpoint={"interval": 100})


def test_what_a_skip_can_not_undo_is_an_error(tmp_path):
    class Normalised(BadAt):
        def model(self, device):
            return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.BatchNorm1d(16), nn.Linear(16, 4))

        def loss(self, model, batch, phase):
            x = batch["x"][batch["mask"]]
            if torch.is_grad_enabled() and self.step + 1 in self.bad:
                x = x * float("nan")
            error = model(x) - batch["y"][batch["mask"]]
            return {"mse": (error.square().sum(), float(batch["frames"] * 4))}

        def loss_weights(self, step):
            return {}

    with pytest.raises(TrainingError, match=r"left NaN in 2\.running_mean .*not_finite=rollback"):
        train(tmp_path / "run", Normalised(3), not_finite="skip", max_steps=4)
    run = train(tmp_path / "back", Normalised(6), not_finite="rollback", max_steps=8)
    assert not any(t.isnan().any() for t in run.model.state_dict().values() if t.is_floating_point())


def test_a_rollback_is_a_run_that_never_saw_the_batch(tmp_path, reading, caplog):
    caplog.set_level(logging.WARNING)
    task = BadAt(7, 10)
    trainer = train(tmp_path / "run", task, not_finite="rollback", max_steps=14)
    assert "at step 7" in caplog.text
    assert "back to step 4, to train on without this batch" in caplog.text
    assert [(row["step"], row["after"]) for row in events(tmp_path / "run", "rolled back")] == [(4, 7), (8, 10)]
    assert [row["ids"] for row in events(tmp_path / "run", "rolled back")] == [task.ids[7], task.ids[10]]
    other = passing_over(tmp_path / "other", {7, 10}, max_steps=14)
    assert same(weights(trainer), weights(other))
    losses = [[(row["step"], row["split"], row["loss"]) for row in lines(tmp_path / name)] for name in ("run", "other")]
    assert losses[0] == losses[1], "each step is there once"
    assert read(tmp_path / "run" / "time.jsonl")["lost"] > 0


def test_a_step_whose_save_found_what_is_not_finite_is_saved_after_the_rollback(tmp_path, as_on_a_gpu):  # noqa: F811
    rare = {"logging": {"interval": 50}, "validation": {"interval": 50}}
    train(tmp_path / "run", BadAt(7), not_finite="rollback", max_steps=9, **rare)
    assert [row["after"] for row in events(tmp_path / "run", "rolled back")] == [7]
    assert (tmp_path / "run/checkpoints/step-00000008").is_dir()


class At(Callback):
    """Does something after a step."""

    def __init__(self, step, action) -> None:
        self.at, self.action = step, action

    def on_optimizer_step(self, trainer):
        if trainer.step == self.at:
            self.at = None
            self.action(trainer)


def test_a_signal_right_after_what_is_not_finite_stops_the_run_where_it_goes_back_to(tmp_path, as_on_a_gpu):  # noqa: F811
    options = {"not_finite": "rollback", "max_steps": 9, "logging": {"interval": 50}}
    term = At(7, lambda trainer: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(Interrupted, match="stopped at step 4; saved to") as stopped:
        train(tmp_path / "run", BadAt(7), callbacks=[term], **options)
    assert stopped.value.checkpoint.is_dir()
    resumed = train(tmp_path / "run", BadAt(7), resume="latest", **options)
    assert same(weights(resumed), weights(passing_over(tmp_path / "other", {7}, max_steps=9)))


def test_a_rollback_past_a_damaged_checkpoint_saves_its_step_again(tmp_path):
    def damage(trainer):
        trainer.checkpoints.flush()
        (tmp_path / "run/checkpoints/step-00000008/weights.safetensors").write_bytes(b"nothing")

    rare = {"max_steps": 11, "validation": {"interval": 50}}
    run = train(tmp_path / "run", BadAt(10), callbacks=[At(9, damage)], not_finite="rollback", **rare)
    assert [row["step"] for row in events(tmp_path / "run", "rolled back")] == [4]
    assert run.checkpoints.verify(8) == []
    assert same(weights(run), weights(passing_over(tmp_path / "other", {10}, **rare)))


def test_a_rollback_needs_a_checkpoint_and_ends_some_time(tmp_path):
    with pytest.raises(TrainingError, match=r"there is nothing to return to; there is no checkpoint yet"):
        train(tmp_path / "early", BadAt(2), not_finite="rollback")
    with pytest.raises(TrainingError, match=f"{MOST_LEFT_OUT + 1}th return"):
        train(tmp_path / "run", BadAt(*range(6, 60)), not_finite="rollback", max_steps=60)


def test_of_several_phases_and_parts_only_what_is_bad_is_skipped(tmp_path, reading):
    class BadGan(GanTask):
        def loss(self, model, batch, phase):
            terms = super().loss(model, batch, phase)
            if torch.is_grad_enabled() and self.step == 4 and phase == "generator":
                return {"generator": (terms["generator"][0] * float("inf"), terms["generator"][1])}
            return terms

    trainer = train(tmp_path / "run", BadGan(), not_finite="skip", max_steps=6, gradient_accumulation_steps=2)
    assert not any(tensor.isnan().any() for tensor in trainer.model.state_dict().values())
    assert {row["step"] for row in events(tmp_path / "run", "skipped")} == {5}


def test_a_finite_run_is_the_same_under_every_policy(tmp_path, reading):
    runs = [train(tmp_path / name, max_steps=6, not_finite=name) for name in ("stop", "skip", "rollback")]
    assert same(weights(runs[0]), weights(runs[1]))
    assert same(weights(runs[0]), weights(runs[2]))


def test_an_overflow_in_the_first_step_of_sgd_leaves_no_trace(tmp_path):
    """torch's fused SGD goes on from a momentum that nothing wrote where its first step is left out."""
    weight = nn.Parameter(torch.ones(1000))
    optimizer = sgd([("weight", weight)], lr=0.1, weight_decay=0.0, fused=True)
    weight.grad = torch.ones(1000)
    for overflow in (1.0, 0.0):
        optimizer.grad_scale, optimizer.found_inf = None, torch.tensor(overflow)
        optimizer.step()
    assert torch.equal(weight.detach(), torch.full((1000,), 0.9))


def test_the_gradient_that_is_not_finite_from_some_step_on_is_skipped_in_fp16_by_the_scaler(tmp_path):
    with pytest.raises(TrainingError, match="fp16"):
        train(tmp_path / "run", BadGradient(1), mixed_precision="fp16", max_steps=60, not_finite="skip")
