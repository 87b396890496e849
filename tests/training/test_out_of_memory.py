"""Memory that runs out in a forward or backward pass: the same batch in parts, with the same gradient."""

from __future__ import annotations

import logging
import weakref

import numpy as np
import pytest
import torch
from small_tasks import CoupledTask, GanTask, RegressionTask, Sequences
from test_trainer import lines, same, settings, train, weights

from phonate.compute.distributed import Ranks
from phonate.config.errors import InputError, TrainingError
from phonate.data.loading import BatchSource, MicroBatch, halves_of
from phonate.training.callbacks import Callback
from phonate.training.memory import MicroBatchState, Recovery
from phonate.training.run import Run
from phonate.training.settings import TrainingConfig
from phonate.training.step import TrainStep
from phonate.training.trainer import Trainer
from phonate.training.voice_trainer import VoiceTrainer


class Full(torch.autograd.Function):
    """A backward pass that has no room."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")


def small(where, room=3, base=RegressionTask):
    """A task on a device that has room for `room` items, in the forward or the backward pass."""

    class Small(base):
        dropout = 0.0
        sizes: list[int]

        def __init__(self) -> None:
            super().__init__()
            self.sizes, self.remains, self.alive = [], [], 0

        def loss(self, model, batch, phase):
            if not torch.is_grad_enabled():
                return super().loss(model, batch, phase)
            self.alive += sum(ref() is not None for ref in self.remains)
            self.remains = []
            items = len(batch["ids"])
            self.sizes.append(items)
            terms = super().loss(model, batch, phase)
            if items <= room:
                return terms
            activations = model(batch["x"]) if phase == "main" else next(iter(terms.values()))[0]
            self.remains = [weakref.ref(activations), *(weakref.ref(total) for total, _ in terms.values())]
            if where == "forward":
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
            return {name: (Full.apply(total), count) for name, (total, count) in terms.items()}

    return Small()


class Gradients(Callback):
    def __init__(self) -> None:
        self.seen = []

    def on_backward_end(self, trainer):
        self.seen.append(torch.cat([p.grad.flatten() for p in trainer.model.parameters()]).double())


def fail(planned):
    raise AssertionError("this batch must not be split")


def gradients(folder, task, **changes):
    seen = Gradients()
    train(folder, task, callbacks=[seen], gradient_clipping=None, **changes)
    return seen.seen


def alike(first, second):
    cosine = torch.nn.functional.cosine_similarity(first, second, dim=0)
    return abs(1 - cosine.item()) < 1e-6 and (first - second).norm() < 1e-6 * first.norm()


@pytest.mark.slow
@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize(("batch_size", "accumulation"), [(8, 1), (12, 2), (1, 1)])
def test_the_same_batch_in_parts_gives_the_same_gradient(tmp_path, where, batch_size, accumulation):
    class Whole(RegressionTask):
        dropout = 0.0

    changes = {"max_steps": 4, "batch_size": batch_size, "gradient_accumulation_steps": accumulation}
    task = small(where)
    whole = gradients(tmp_path / "whole", Whole(), **changes)
    parts = gradients(tmp_path / "parts", task, **changes)
    assert len(whole) == len(parts) == 4
    assert all(alike(a, b) for a, b in zip(whole, parts, strict=True))
    assert task.alive == 0, "something of a failed attempt was alive in the next one"
    mses = [[row["mse"] for row in lines(tmp_path / name, "train")] for name in ("whole", "parts")]
    assert mses[0] == pytest.approx(mses[1])


@pytest.mark.slow
def test_halving_goes_down_to_single_items(tmp_path, caplog):
    task = small("backward", room=1)
    train(tmp_path / "run", task, max_steps=1, batch_size=8)
    assert task.sizes[:3] == [8, 4, 2]
    assert task.sizes[-8:] == [1] * 8
    told = next(record.getMessage() for record in caplog.records if "out of memory" in record.getMessage())
    assert "step 1" in told
    assert "item-1-" in told
    assert "in 8 parts of at most 1 items" in told
    for remedy in ("training.batch_size", "model.checkpoint_segments", "training.mixed_precision"):
        assert remedy in told


def test_what_fitted_is_remembered_and_logged_once(tmp_path, caplog):
    """Later batches are split before they fail; shorter ones are tried whole."""

    class SameLength(type(small("forward"))):
        def dataset(self, split):
            made = super().dataset(split)
            made.lengths[:] = 7  # all of one length
            made.inputs = [np.zeros((7, 4), np.float32)] * len(made.ids)
            made.targets = made.inputs
            return made

    task = SameLength()
    train(tmp_path / "run", task, max_steps=6, batch_size=8)
    assert [size for size in task.sizes if size > 2] == [8, 4, 4]  # all of them in the first step
    assert sum("out of memory" in record.getMessage() for record in caplog.records) == 1


def test_shorter_batches_than_the_one_that_failed_are_tried_whole():
    def split(planned):
        return tuple(MicroBatch(["x"] * 2, {"x": planned.batch["x"][:2]}) for _ in range(2))

    recovery = Recovery(torch.device("cpu"), split)

    def batch(items, length):
        return MicroBatch(["x"] * items, {"x": torch.zeros(items, length)})

    failed = recovery.halves(MicroBatchState(batch(4, 100), batch(4, 100).batch), step=0)
    recovery.learn(0, failed)
    loaded = [[len(part.planned.ids) for part in recovery.load([batch(4, length)])] for length in (99, 100, 101)]
    assert loaded == [[4], [2, 2], [2, 2]]


def test_an_error_says_which_checkpoint_is_left(tmp_path):
    class FailsLater(RegressionTask):
        def loss(self, model, batch, phase):
            terms = super().loss(model, batch, phase)
            if self.step < self.fails_at:
                return terms
            return {name: (total * float("nan"), count) for name, (total, count) in terms.items()}

    for step, said in ((1, "there is no checkpoint yet"), (6, r"the last checkpoint is .*step-00000004")):
        task = FailsLater()
        task.fails_at = step
        with pytest.raises(TrainingError, match=rf"at step {step + 1}.*; {said}"):
            train(tmp_path / str(step), task)


def test_a_gradient_that_was_half_added_is_caught(tmp_path, monkeypatch):
    """The usual fault: the retry goes on from the gradients of the failed attempt."""
    kept = TrainStep._gradients

    def faulty(self, state, parts, step, last):
        parameters, state.parameters = state.parameters, []
        try:
            kept(self, state, parts, step, last)
        finally:
            state.parameters = parameters

    class Whole(RegressionTask):
        dropout = 0.0

    changes = {"max_steps": 2, "batch_size": 5, "gradient_accumulation_steps": 2}
    whole = gradients(tmp_path / "whole", Whole(), **changes)
    monkeypatch.setattr(TrainStep, "_gradients", faulty)
    # the second micro-batch of a step fails, or the first one's retry: a gradient is there already
    parts = gradients(tmp_path / "parts", small("backward"), **changes)
    assert not all(alike(a, b) for a, b in zip(whole, parts, strict=True))


def test_a_loss_that_couples_items_is_never_split(tmp_path):
    task = small("forward", base=CoupledTask)
    with pytest.raises(TrainingError, match=r"step 1 \(batch: item-1-.*other items") as error:
        train(tmp_path / "run", task)
    assert task.sizes == [4]
    assert "training.batch_size" in str(error.value)


def test_on_several_ranks_a_batch_that_fitted_before_ends_the_run_with_what_to_change(tmp_path):
    """Its gradients are exchanged within the backward pass: one rank alone can't begin anew."""
    trainer = train(tmp_path / "run", max_steps=1)
    window = [next(trainer.train_source.epoch(0))]

    class Two(Ranks):
        def sum(self, numbers):
            return list(numbers)

        def wrap(self, module):
            return module

    task = small("forward")
    step = TrainStep(task, trainer.model, trainer.phases, trainer.settings, trainer.device, Two(1, 2), split=fail)
    for _ in range(2):  # the first update makes the optimizer's state
        step.recovery.note_fitting("main", [MicroBatchState(window[0], window[0].batch)])
    with pytest.raises(TrainingError, match=r"rank 1.*training\.batch_size"):
        step(window, 1, None)


def test_a_single_item_that_does_not_fit_ends_the_run(tmp_path):
    with pytest.raises(TrainingError, match=r"single item.*data\.audio\.max_seconds.*training\.batch_size"):
        train(tmp_path / "run", small("forward", room=0))


def test_a_gan_goes_on_in_parts(tmp_path):
    class Fixed(GanTask):
        def loss(self, model, batch, phase):
            torch.manual_seed(0)
            return super().loss(model, batch, phase)

    trainer = train(tmp_path / "run", small("backward", base=Fixed), max_steps=4)
    assert trainer.step == 4
    assert lines(tmp_path / "run", "train")[-1].keys() >= {"generator", "discriminator"}


def test_other_errors_pass_as_they_are(tmp_path):
    class Broken(RegressionTask):
        def loss(self, model, batch, phase):
            raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        train(tmp_path / "run", Broken())


def test_memory_that_runs_out_elsewhere_is_one_line_with_the_mend(tmp_path):
    class Greedy(RegressionTask):
        def evaluate(self, model, dataset, positions):
            raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(TrainingError, match=r"out of memory after step 4.*training\.batch_size"):
        train(tmp_path / "run", Greedy())


def test_callbacks_see_each_part_once(tmp_path):
    seen = {"begin": [], "end": []}

    class Watch(Callback):
        def on_batch_begin(self, trainer, batch):
            seen["begin"].append(len(batch["ids"]))

        def on_batch_end(self, trainer, batch, metrics):
            seen["end"].append(len(batch["ids"]))

    train(tmp_path / "run", small("backward"), callbacks=[Watch()], max_steps=1, batch_size=4,
          gradient_accumulation_steps=2)  # fmt: skip
    assert seen["end"] == [2, 2, 2, 2]
    assert seen["begin"] == [4, 2, 2, 4, 2, 2]


def test_parts_of_a_batch_are_the_same_to_the_bit():
    """Augmentation and crops too: they follow from seed, epoch and id."""
    source = BatchSource(Sequences(9, 1), seed=3, batch_size=5)
    planned = next(source.epoch(2))
    first, second = source.halves(planned, 2)
    assert first.ids + second.ids == planned.ids
    assert (len(first.ids), len(second.ids)) == (3, 2)
    for i, part in ((0, first), (3, second)):
        for j in range(len(part.ids)):
            frames = part.batch["mask"][j].sum()
            assert torch.equal(part.batch["x"][j, :frames], planned.batch["x"][i + j, :frames])
    assert source.halves(source.halves(source.halves(planned, 2)[1], 2)[0], 2) is None


def test_a_loaders_batch_is_cut_by_its_items():
    batch = {"features": torch.arange(6).reshape(3, 2), "ids": ["a", "b", "c"], "rate": 22050, "none": None}
    first, second = halves_of(batch, 3)
    assert first["features"].tolist() == [[0, 1], [2, 3]]
    assert second["ids"] == ["c"]
    assert first["rate"] == second["rate"] == 22050
    with pytest.raises(InputError, match=r"'edges' .*3 items"):
        halves_of({**batch, "edges": torch.zeros(7)}, 3)


def test_a_callers_loader_goes_on_in_parts(tmp_path, caplog):
    class Model(torch.nn.Linear):
        def forward(self, x):
            if len(x) > 2 and torch.is_grad_enabled():
                raise torch.OutOfMemoryError("CUDA out of memory")
            return super().forward(x)

    generator = torch.Generator().manual_seed(0)
    items = [
        {"features": torch.randn(5, 4, generator=generator), "target_features": torch.randn(5, 4, generator=generator)}
        for _ in range(12)
    ]
    results = []
    for name, kind in (("whole", torch.nn.Linear), ("parts", Model)):
        torch.manual_seed(0)
        config = TrainingConfig(num_epochs=2, output_dir=str(tmp_path), verbosity="quiet", early_stopping_patience=None)
        trainer = VoiceTrainer(kind(4, 4), config, experiment_name=name)
        trainer.train(torch.utils.data.DataLoader(items, batch_size=4))
        results.append(trainer.model.state_dict())
    assert all(torch.allclose(results[0][name], results[1][name], atol=1e-6) for name in results[0])
    assert "in 2 parts of at most 2 items" in caplog.text


def test_a_run_with_room_is_the_run_it_was(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    first, second = (weights(train(tmp_path / str(i), max_steps=4)) for i in range(2))
    assert same(first, second)
    assert "out of memory" not in caplog.text


@pytest.mark.parametrize("room", [3, 8])
def test_a_validation_batch_that_does_not_fit_is_split(tmp_path, room):
    class Small(RegressionTask):
        def loss(self, model, batch, phase):
            if not torch.is_grad_enabled() and len(batch["ids"]) > room:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
            return super().loss(model, batch, phase)

    train(tmp_path / "whole", max_steps=2, batch_size=8)
    train(tmp_path / "parts", Small(), max_steps=2, batch_size=8)
    whole, parts = (lines(tmp_path / name, "validation") for name in ("whole", "parts"))
    assert whole[-1]["loss"] == pytest.approx(parts[-1]["loss"], rel=1e-6)


def test_a_validation_item_that_does_not_fit_is_named(tmp_path):
    class Full(RegressionTask):
        def loss(self, model, batch, phase):
            if not torch.is_grad_enabled():
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
            return super().loss(model, batch, phase)

    with pytest.raises(TrainingError, match=r"batch: item-\S+\), and the batch is a single item"):
        train(tmp_path, Full(), max_steps=2)


@pytest.mark.gpu
def test_on_a_real_gpu_a_batch_that_does_not_fit_is_split(tmp_path, caplog):
    device = torch.device("cuda", 0)
    free, _ = torch.cuda.mem_get_info(device)

    class Large(RegressionTask):
        dropout = 0.0

        def loss(self, model, batch, phase):
            hold = torch.ones(len(batch["ids"]), free // 6, dtype=torch.uint8, device=device)  # 8 items: 1.3 times
            terms = super().loss(model, batch, phase)
            return {name: (total + hold[0, 0] * 0, count) for name, (total, count) in terms.items()}

    run = Run(tmp_path / "run")
    run.create(resuming=False)
    trainer = Trainer(Large(), settings(max_steps=2, batch_size=8), run, device=device)
    trainer.fit()
    assert trainer.step == 2
    assert "in 2 parts of at most 4 items" in caplog.text
