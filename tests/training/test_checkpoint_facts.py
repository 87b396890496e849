"""What a run writes into its checkpoints about itself, and which of them it keeps."""

from __future__ import annotations

import pytest
from small_tasks import RegressionTask
from test_trainer import lines, train

from phonate.training.checkpoints import CheckpointManager


def infos(run):
    with CheckpointManager(run / "checkpoints") as store:
        return {item.metadata.global_step: item.metadata for item in store.list_checkpoints()}


def test_a_checkpoint_knows_the_loss_that_it_was_saved_at(tmp_path):
    """Of the epoch so far; at its end, of the epoch."""
    train(tmp_path / "run", epochs=2, max_steps=None, checkpoint={"interval": 2, "save_total_limit": 50},
          logging={"interval": 3})  # fmt: skip
    saved = infos(tmp_path / "run")
    epochs = {row["step"]: row for row in lines(tmp_path / "run", "epoch")}
    assert len(epochs) == 2
    first, last = sorted(epochs)
    assert saved[last].train_loss == pytest.approx(epochs[last]["loss"])
    assert saved[last].metrics["train_mse"] == pytest.approx(epochs[last]["mse"])
    assert saved[2].train_loss is not None, "a save before the first log line"
    assert saved[2].train_loss > saved[last].train_loss
    assert all(info.train_loss is not None for info in saved.values())
    assert first in epochs


def test_a_checkpoint_says_that_it_has_everything_to_go_on(tmp_path):
    train(tmp_path / "run", max_steps=3)
    (info,) = infos(tmp_path / "run").values()
    assert info.optimizer_state_available
    assert info.scheduler_state_available, "a schedule that only counts steps is saved too"


class WorseAndWorse(RegressionTask):
    """Its first validation is its best."""

    def evaluate(self, model, dataset, positions):
        self.validations = getattr(self, "validations", 0) + 1
        return {"error": (float(self.validations), 1)}


def test_the_best_is_kept_although_it_is_not_among_the_newest(tmp_path):
    train(
        tmp_path / "run",
        WorseAndWorse(),
        max_steps=8,
        checkpoint={"interval": 1, "save_total_limit": 2},
        validation={"interval": 2, "metric_for_best_model": "error", "greater_is_better": False},
    )
    saved = infos(tmp_path / "run")
    assert sorted(saved) == [2, 7, 8]
    assert [step for step, info in saved.items() if info.is_best] == [2]
    with CheckpointManager(tmp_path / "run/checkpoints") as store:
        assert store.load_checkpoint("best").path.name == "step-00000002"
