"""What a run says of itself: to W&B under the documented names, and in the log when something is off."""

from __future__ import annotations

import logging
import time

import pytest
import torch
from small_tasks import RegressionTask, Sequences
from test_tracking import wandb as wandb
from test_trainer import lines, settings, train

from phonate.config.errors import TrainingError
from phonate.config.resolve import resolve
from phonate.tasks.speech.task import SpeechTask
from phonate.training.run import Run
from phonate.training.trainer import Trainer


class Named(RegressionTask):
    """Its terms are called as those of an autoregressive speech model."""

    def loss(self, model, batch, phase):
        terms = super().loss(model, batch, phase)
        return {"mel": terms["mse"], "duration": terms["size"], "stop": terms["size"]}

    def loss_weights(self, step):
        return {"mel": 1.0, "duration": 0.1, "stop": 1.0}

    def metric_names(self):
        return SpeechTask(resolve("speech-autoregressive", {"data.path": "."}).recipe).metric_names()


def test_wandb_has_every_tenth_batch_under_the_documented_names(tmp_path, wandb):
    changes = {"max_steps": 24, "mixed_precision": "fp16", "batch_size": 2}
    train(tmp_path / "run", Named(), logging={"wandb": True, "interval": 50, "system": True}, **changes)
    logged = [values for call, values in wandb if call == "log"]
    batches = [values for values in logged if "train/batch_total_loss" in values]
    assert [values["step"] for values in batches] == [10, 20]
    assert batches[0].keys() >= {
        "train/batch_total_loss", "train/batch_mel_loss", "train/batch_duration_loss", "train/batch_stop_loss",
        "train/learning_rate", "train/grad_scale", "train/throughput",
        "memory/pressure", "memory/cleanup_count", "memory/cleanup_overhead_percent",
    }  # fmt: skip
    epochs = [values for values in logged if "train/epoch_total_loss" in values]
    assert [values["step"] for values in epochs] == [12, 24]
    assert epochs[0].keys() >= {"train/epoch_mel_loss", "train/epoch_duration_loss", "train/epoch_stop_loss"}
    assert wandb[-1] == ("finish", None)


@pytest.mark.parametrize("asked", [True, False])
def test_checkpoints_go_to_wandb_when_asked(tmp_path, wandb, asked):
    train(tmp_path / "run", logging={"wandb": True, "log_model": asked}, validation={"interval": 100})
    uploaded = [value[1] for call, value in wandb if call == "artifact"]
    expected = [str(tmp_path / f"run/checkpoints/step-{step:08d}") for step in (4, 8, 12)] if asked else []
    assert uploaded[: len(expected)] == expected
    assert bool(uploaded) == asked


class Slow(Sequences):
    def get(self, index, rng):
        time.sleep(0.02)
        return super().get(index, rng)


def test_waiting_for_data_is_said_once_with_the_remedies(tmp_path, caplog):
    caplog.set_level(logging.WARNING)

    class Task(RegressionTask):
        def dataset(self, split):
            return Slow(24, 1) if split == "train" else Sequences(6, 2)

    train(tmp_path / "slow", Task())
    (said,) = [record.getMessage() for record in caplog.records if "slow data" in record.getMessage()]
    for remedy in (
        "training.performance.num_workers",
        "phonate data prepare",
        "training.batch_size",
        "profile_batches",
    ):
        assert remedy in said


def test_a_few_steps_after_a_resume_say_nothing_of_speed(tmp_path, caplog):
    caplog.set_level(logging.WARNING)

    class Task(RegressionTask):
        def dataset(self, split):
            return Slow(24, 1) if split == "train" else Sequences(6, 2)

    options = {"logging": {"interval": 4}, "validation": {"interval": 100}}
    train(tmp_path / "run", Task(), max_steps=6, **options)
    resumed = {"resume": tmp_path / "run/checkpoints/step-00000006", **options}
    train(tmp_path / "run", Task(), max_steps=8, **resumed)
    assert "slow data" not in caplog.text
    train(tmp_path / "run", Task(), max_steps=12, **resumed)
    rows = lines(tmp_path / "run", "train")
    assert {row["step"]: "steps_per_second" in row for row in rows} == {4: True, 8: False, 12: True}
    assert all(("samples_per_second" in row) == ("steps_per_second" in row) for row in rows)
    assert "slow data" in caplog.text


class Spoilt(RegressionTask):
    """The loss of the seventh step is not a number."""

    def loss(self, model, batch, phase):
        terms = super().loss(model, batch, phase)
        if self.step == 6 and torch.is_grad_enabled():
            self.spoilt = list(batch["ids"])
            return {name: (total * float("nan"), count) for name, (total, count) in terms.items()}
        return terms


@pytest.mark.parametrize("reads_losses", [True, False])
def test_a_loss_that_is_not_a_number_names_step_batch_and_remedies(tmp_path, reads_losses):
    """On a GPU, too, where losses are looked at only when a line or a save is due."""
    task = Spoilt()
    run = Run(tmp_path / "run")
    run.create(resuming=False)
    options = settings(logging={"interval": 50}, validation={"interval": 100}, checkpoint={"interval": 2})
    trainer = Trainer(task, options, run)
    trainer.train_step.finite._reads_at_once = reads_losses
    with pytest.raises(TrainingError) as error:
        trainer.fit()
    said = str(error.value)
    assert "at step 7" in said
    assert all(name in said for name in task.spoilt)
    for remedy in (
        "training.optimizer.lr",
        "mixed_precision=fp32",
        "phonate data check",
    ):
        assert remedy in said
    kept = trainer.checkpoints.load_checkpoint("latest")
    assert kept.path.name == "step-00000006"
    assert all(tensor.isfinite().all() for tensor in kept.weights.values())
