"""What a task may say, and what the trainer makes of it."""

from __future__ import annotations

import math
from typing import ClassVar

import pytest
import torch
from small_tasks import RegressionTask, Sequences
from test_trainer import lines, same, train, weights

from phonate.config.errors import InputError, TrainingError
from phonate.config.resolve import resolve
from phonate.data.batches import COLLATORS, Collator
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
    from phonate.training.checks import check_settings

    check_settings(CoupledWithinMicroBatches().traits, trainer.settings, 2)
    whole = CoupledWithinMicroBatches()
    whole.coupling = Coupling.BATCH
    with pytest.raises(InputError, match="whole batch"):
        check_settings(whole.traits, trainer.settings, 2)


class Forward(RegressionTask):
    """Its counts are numbers, which the model must run for where a step has several micro-batches."""

    forward = 0

    def loss(self, model, batch, phase):
        self.forward += model.training
        return super().loss(model, batch, phase)


class Counting(Sequences):
    def unit_counts(self, batch):
        return {"frames": batch["frames"], "elements": batch["frames"] * 4, "items": len(batch["ids"])}


class ByUnits(Forward):
    """The same, whose data set counts."""

    units: ClassVar = {"mse": "elements", "size": "items"}

    def dataset(self, split):
        return Counting(self.count, 1) if split == "train" else Counting(self.validation_count, 2)

    def loss(self, model, batch, phase):
        return {
            name: (total, self.units.get(name, count))
            for name, (total, count) in super().loss(model, batch, phase).items()
        }


class PartlyByUnits(ByUnits):
    """One term has a number all the same, and the name of a unit."""

    own_counts = True
    units: ClassVar = {"mse": "elements"}

    def loss(self, model, batch, phase):
        terms = super().loss(model, batch, phase)
        return {"mse": terms["mse"], "items": terms["size"]}

    def loss_weights(self, step):
        return {"items": 1e-3}


@pytest.mark.parametrize("steps", [{"max_steps": 4}, {"max_steps": 2, "gradient_accumulation_steps": 2}])
def test_counts_of_the_batch_and_of_the_loss_train_alike(tmp_path, steps):
    tasks = [Forward(), ByUnits(), PartlyByUnits()]
    runs = [train(tmp_path / type(task).__name__, task, **steps) for task in tasks]
    assert same(*map(weights, runs[:2]))
    assert same(*map(weights, runs[1:]))
    assert [line["loss"] for line in lines(runs[0].run.path, "validation")] == [
        line["loss"] for line in lines(runs[1].run.path, "validation")
    ]
    several = "gradient_accumulation_steps" in steps
    assert [task.forward for task in tasks] == [8 if several else 4, 4, 8 if several else 4]


def test_counts_are_those_of_the_batch_that_a_collator_makes(tmp_path):
    """It may leave out frames. The recipe names it, of which the task need not know."""
    cut = []

    class Cut(Collator):
        def __call__(self, items):
            cut.append(len(items))
            return super().__call__([(x[:3], y[:3], name) for x, y, name in items])

    COLLATORS.register("cut", Cut)
    recipe = resolve("vocoder", ["data.path=nowhere", "data.collator=cut"])
    try:
        runs = [
            train(tmp_path / str(i), task, recipe=recipe, max_steps=2, gradient_accumulation_steps=2)
            for i, task in enumerate((Forward(), ByUnits()))
        ]
    finally:
        COLLATORS._registered.pop("cut")
    assert cut
    assert same(*map(weights, runs))


def test_a_unit_that_nobody_counts_is_named(tmp_path):
    class Misspelt(ByUnits):
        units: ClassVar = {"mse": "element"}

    with pytest.raises(TrainingError, match="'mse' is a sum over 'element'"):
        train(tmp_path / "run", Misspelt())

    class Undeclared(ByUnits):
        units: ClassVar = {"mse": "elements"}

    with pytest.raises(TrainingError, match=r"'size' has a number as its count.*Undeclared\.own_counts"):
        train(tmp_path / "several", Undeclared(), gradient_accumulation_steps=2)


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
