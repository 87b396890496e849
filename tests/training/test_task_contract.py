"""What a task may say, and what the trainer makes of it."""

from __future__ import annotations

import math

import pytest
import torch
from small_tasks import RegressionTask
from test_trainer import lines, train

from phonate.compute.distributed import Ranks
from phonate.config.errors import InputError
from phonate.training.task import Coupling, losses


class Curriculum(RegressionTask):
    """The weight of `size` rises with the step."""

    dropout = 0.0

    def loss_weights(self, step):
        return {"size": 0.1 * step}


def test_loss_weights_are_read_in_every_step(tmp_path):
    train(tmp_path / "run", Curriculum(), max_steps=3, logging={"interval": 1})
    for row in lines(tmp_path / "run", "train"):
        assert row["loss"] == pytest.approx(row["mse"] + 0.1 * (row["step"] - 1) * row["size"])


def test_the_recipes_weights_come_before_the_tasks(tmp_path):
    train(tmp_path / "run", Curriculum(), max_steps=3, logging={"interval": 1}, loss={"weights": {"size": 2.0}})
    for row in lines(tmp_path / "run", "train"):
        assert row["loss"] == pytest.approx(row["mse"] + 2.0 * row["size"])


class Ramp(RegressionTask):
    """`size` comes in slowly, and the task counts the steps it has seen; an item counts as three samples."""

    dropout = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.own = Counter()

    @property
    def own_state(self):
        return self.own

    def loss(self, model, batch, phase):
        if torch.is_grad_enabled():
            self.own.seen += 1
        return super().loss(model, batch, phase)

    def loss_shares(self, step):
        return {"size": min(1.0, step / 4)}

    def samples(self, batch, items):
        assert items == len(batch["ids"])
        return 3 * items


class Counter:
    seen = 0

    def state(self):
        return {"seen": self.seen}

    def restore(self, state):
        self.seen = state["seen"]


def test_shares_are_of_the_recipes_weights_too_and_own_state_is_resumed(tmp_path):
    options = {"logging": {"interval": 1}, "loss": {"weights": {"size": 2.0}}}
    train(tmp_path / "run", Ramp(), max_steps=3, **options)
    rows = lines(tmp_path / "run", "train")
    for row in rows:
        assert row["loss"] == pytest.approx(row["mse"] + 0.5 * (row["step"] - 1) * row["size"])
    items = rows[0]["samples_per_second"] / rows[0]["steps_per_second"]
    assert items == pytest.approx(12)  # a batch of four
    resumed = Ramp()
    train(tmp_path / "run", resumed, max_steps=5, resume=tmp_path / "run/checkpoints/step-00000003", **options)
    assert resumed.own.seen == 5


class Judged(RegressionTask):
    """Metrics in sums and counts, and what follows from them."""

    def evaluate(self, model, dataset, positions):
        assert not model.training
        return {"length": (float(sum(dataset.lengths[i] for i in positions)), len(positions)), "never": (1.0, 0)}

    def derived(self, metrics):
        return {"perplexity": math.exp(metrics["mse"]), "double": 2 * metrics["length"]}


def test_a_tasks_metrics_are_ratios_of_sums_and_what_follows_from_them(tmp_path):
    task = Judged()
    trainer = train(
        tmp_path / "run",
        task,
        max_steps=2,
        validation={"metric_for_best_model": "val_double", "greater_is_better": False},
    )
    last = lines(tmp_path / "run", "validation")[-1]
    mean = float(task.dataset("validation").lengths.mean())
    assert last["length"] == pytest.approx(mean)
    assert last["double"] == pytest.approx(2 * mean)
    assert last["perplexity"] == pytest.approx(math.exp(last["mse"]))
    assert "never" not in last
    assert trainer.progress.best.value == last["double"]


def test_a_model_on_another_device_than_the_one_given_is_refused(tmp_path):
    class Elsewhere(RegressionTask):
        def model(self, device):
            return super().model(torch.device("meta"))

    with pytest.raises(InputError, match=r"0\.weight is on meta"):
        train(tmp_path / "run", Elsewhere())


class CoupledWithinMicroBatches(RegressionTask):
    """Like a contrastive loss with negatives per rank."""

    coupling = Coupling.MICRO_BATCH


def test_coupling_within_micro_batches_allows_ranks_and_coupling_of_the_batch_does_not(tmp_path):
    trainer = train(tmp_path / "run", CoupledWithinMicroBatches(), max_steps=1)
    two = Ranks(0, 2)
    from phonate.training.setup import check_settings

    check_settings(CoupledWithinMicroBatches(), trainer.settings, two)
    whole = CoupledWithinMicroBatches()
    whole.coupling = Coupling.BATCH
    with pytest.raises(InputError, match="whole batch"):
        check_settings(whole, trainer.settings, two)


def test_one_micro_batch_on_one_rank_is_never_counted_beforehand(tmp_path):
    class Counting(RegressionTask):
        dropout = 0.0
        asked = 0
        forward = 0

        def loss(self, model, batch, phase):
            if model.training:
                self.forward += 1
            return super().loss(model, batch, phase)

        def counts(self, batch, phase):
            self.asked += 1

    single, several = Counting(), Counting()
    train(tmp_path / "single", single, max_steps=4)
    assert (single.asked, single.forward) == (0, 4)
    train(tmp_path / "several", several, max_steps=2, gradient_accumulation_steps=2)
    assert (several.asked, several.forward) == (4, 8)


class Declared(Judged):
    """A task that knows what its validation reports."""

    metrics = losses(["mse", "size", "length", "never", "perplexity", "double"])


@pytest.mark.parametrize(
    "changes",
    [
        {"validation": {"metric_for_best_model": "val_perplexty"}},
        {"checkpoint": {"monitor_metric": "perplexty"}},
        {"scheduler": {"type": "plateau", "metric": "val_perplexty"}},
        {"early_stopping": {"metric": "val_perplexty", "restore_best_weights": False}},
    ],
)
def test_a_mistyped_metric_is_refused_before_training_where_the_task_knows_its_metrics(tmp_path, changes):
    with pytest.raises(InputError, match=r"no metric '(val_)?perplexty'; did you mean (val_)?perplexity\?"):
        train(tmp_path / "run", Declared(), **changes)
    assert not (tmp_path / "run/checkpoints").exists()
    train(tmp_path / "right", Declared(), max_steps=4, validation={"metric_for_best_model": "val_perplexity"})
