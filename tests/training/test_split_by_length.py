"""`training.performance.split_by_length`: batches in parts of similar length, with the same gradient."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from small_tasks import CoupledTask, GanTask, RegressionTask, Sequences
from test_out_of_memory import alike, gradients, small
from test_trainer import lines, same, settings, train, weights
from torch import nn

from phonate.compute.distributed import Ranks
from phonate.config.errors import InputError
from phonate.training.adversarial import AdversarialTask, Pair
from phonate.training.setup import batch_source

SPLIT = {"performance": {"split_by_length": True}}


class Exact(RegressionTask):
    """Without dropout, whose random numbers differ between parts and wholes."""

    dropout = 0.0


class Means(Exact):
    """The mistake that the trainer's sums and counts avoid: a mean for each part, however large."""

    def loss(self, model, batch, phase):
        return {name: (total / count, 1.0) for name, (total, count) in super().loss(model, batch, phase).items()}


def items(task):
    """The number of items in each forward pass with gradients."""
    return [len(names) for names in task.seen]


@pytest.mark.parametrize("accumulation", [1, 2])
def test_the_gradient_is_that_of_the_whole_batch(tmp_path, accumulation):
    changes = {"max_steps": 4, "batch_size": 12, "gradient_accumulation_steps": accumulation}
    whole, task = gradients(tmp_path / "whole", Exact(), **changes), Exact()
    parts = gradients(tmp_path / "parts", task, **changes, **SPLIT)
    assert len(items(task)) > 4 * accumulation
    assert len(whole) == len(parts) == 4
    assert all(alike(a, b) for a, b in zip(whole, parts, strict=True))
    logged = [[row["mse"] for row in lines(tmp_path / name, "train")] for name in ("whole", "parts")]
    assert logged[0] == pytest.approx(logged[1])
    faulty = [gradients(tmp_path / f"means-{name}", Means(), **changes, **more) for name, more in ((0, {}), (1, SPLIT))]
    assert not any(alike(a, b) for a, b in zip(*faulty, strict=True))


def test_a_step_is_a_batch_of_the_plan_however_many_parts_it_has(tmp_path):
    whole, parts = Exact(), Exact()
    ends = [
        train(tmp_path / str(i), task, max_steps=None, epochs=2, batch_size=8, **more)
        for i, (task, more) in enumerate(((whole, {}), (parts, SPLIT)))
    ]
    assert [trainer.step for trainer in ends] == [6, 6]
    assert [trainer.epoch for trainer in ends] == [2, 2]
    seen = [[name for names in task.seen for name in names] for task in (whole, parts)]
    for start in range(0, len(seen[0]), 8):
        assert sorted(seen[0][start : start + 8]) == sorted(seen[1][start : start + 8])


@pytest.mark.parametrize("task", [RegressionTask, GanTask])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_resumed_run_has_the_same_bits(tmp_path, task, accumulation):
    changes = {"batch_size": 8, "gradient_accumulation_steps": accumulation, **SPLIT}
    through = train(tmp_path / "run", task(), max_steps=10, **changes)
    middle = tmp_path / "run/checkpoints/step-00000004"
    resumed = train(tmp_path / "run", task(), resume=middle, max_steps=10, **changes)
    assert same(weights(through), weights(resumed))


def test_a_part_that_does_not_fit_is_halved(tmp_path, caplog):
    changes = {"max_steps": 4, "batch_size": 12}
    task = small("backward", room=2)
    whole = gradients(tmp_path / "whole", Exact(), **changes)
    parts = gradients(tmp_path / "parts", task, **changes, **SPLIT)
    assert "out of memory" in caplog.text
    assert all(alike(a, b) for a, b in zip(whole, parts, strict=True))


@pytest.mark.parametrize("workers", [0, 2])
def test_parts_are_the_same_with_workers_and_from_any_position(workers):
    def source(**performance):
        options = settings(batch_size=8, performance={"split_by_length": True, **performance})
        return batch_source(Sequences(40, 1), options, Ranks(), torch.device("cpu"))

    expected = list(source(num_workers=0).epoch(1))
    made = source(num_workers=workers)
    found = list(made.epoch(1))
    assert [(one.ids, one.planned) for one in found] == [(one.ids, one.planned) for one in expected]
    assert all(torch.equal(one.batch["x"], other.batch["x"]) for one, other in zip(found, expected, strict=True))
    assert sum(one.planned for one in found) == made.steps(1) == 5
    ends = np.cumsum([one.planned for one in expected])
    later = [one.ids for one, end in zip(expected, ends, strict=True) if end - one.planned >= 2 and end > 2]
    assert [one.ids for one in made.epoch(1, ((None, 16),))][-len(later) :] == later
    made.close()


def test_parts_are_of_few_shapes_where_batches_are_to_be():
    class WithLengths(Sequences):
        def collate(self, items):
            batch = super().collate(items)
            return {**batch, "lengths": batch["mask"].sum(1)}

    samples = WithLengths(100, 1)
    samples.lengths = samples.lengths * 20
    samples.inputs, samples.targets = ([one.repeat(20, 0) for one in all] for all in (samples.inputs, samples.targets))
    shapes = {}
    for few in (True, False):
        options = settings(batch_size=16, performance={"split_by_length": True, "batch_shim": few})
        made = batch_source(samples, options, Ranks(), torch.device("cpu"))
        # the last batch has four samples
        shapes[few] = {tuple(one.batch["x"].shape[:2]) for epoch in range(4) for one in made.epoch(epoch)}
    assert all(items % 4 == 0 and frames % 32 == 0 for items, frames in shapes[True])
    assert len({items for items, _ in shapes[True]}) > 1
    assert len(shapes[True]) < len(shapes[False]) / 2


@pytest.mark.parametrize(
    ("device", "ranks", "validation"),
    [("cuda", Ranks(), False), ("cpu", Ranks(rank=1, world_size=2), False), ("cpu", Ranks(), True)],
)
def test_elsewhere_batches_stay_whole(device, ranks, validation):
    options = settings(batch_size=8, **SPLIT)
    made = batch_source(Sequences(40, 1), options, ranks, torch.device(device), validation=validation)
    assert [one.planned for one in made.epoch(0)] == [1] * 5


def test_coupled_losses_are_refused(tmp_path):
    with pytest.raises(InputError, match="split_by_length: "):
        train(tmp_path / "run", CoupledTask(), **SPLIT)


class Adversarial(AdversarialTask[torch.Tensor]):
    """A generator that counts its batches, and a discriminator of its outputs."""

    generator, discriminator = "generator", "discriminator"
    generated = 0

    def __init__(self):
        super().__init__(SimpleNamespace(adversarial_start=1, adversarial_weight=1.0, feature_matching_weight=1.0))

    def model(self, device):
        class Judge(nn.Linear):
            def forward(self, inputs):
                scores = super().forward(inputs)
                return [(scores, [scores])]

        return nn.ModuleDict({"generator": nn.Linear(2, 2), "discriminator": Judge(2, 2)}).to(device)

    def dataset(self, split):
        return Sequences(4, 1)

    def generate(self, model, batch):
        self.generated += 1
        return model["generator"](batch["x"])

    def generator_terms(self, model, output, batch):
        return {"distance": ((output - batch["x"]).abs().sum(), output.numel())}

    def pair(self, output, batch):
        return Pair(output, batch["x"])


def test_what_was_generated_is_judged_for_all_batches_of_the_step():
    task, model = Adversarial(), Adversarial().model(torch.device("cpu"))
    first, second = {"x": torch.zeros(3, 2)}, {"x": torch.zeros(3, 2)}
    for task.step in (0, 1):
        for batch in (first, second):
            terms = task.loss(model, batch, "generator")
    assert {*terms} == {"distance", "adversarial", "features"}
    for batch, generated in ((second, 4), (first, 4), (first, 5)):
        assert {*task.loss(model, batch, "discriminator")} == {"discriminator"}
        assert task.generated == generated, "only what was judged already is generated anew"
    task.loss(model, first, "generator")
    task.loss(model, dict(first), "discriminator")
    assert task.generated == 7, "equal, but another batch"
    task.step = 2
    task.loss(model, first, "discriminator")
    assert task.generated == 8, "of the step before"
