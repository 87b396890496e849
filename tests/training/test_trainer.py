"""The trainer, seen from outside: what it trains, writes and restores, on small tasks of every kind."""

from __future__ import annotations

import errno
import json
import logging
import math
import re
import shlex
from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from small_tasks import (
    AdapterTask,
    CoupledTask,
    GanTask,
    OutsideMetricTask,
    RandomFeaturesTask,
    RegressionTask,
    Sequences,
)

from phonate.compute.distributed import Ranks
from phonate.compute.system import unwritten
from phonate.config.errors import InputError, Interrupted, TrainingError, command_line
from phonate.training.callbacks import Callback
from phonate.training.run import Run
from phonate.training.settings import TrainingSettings
from phonate.training.setup import merged_for
from phonate.training.task import Sound
from phonate.training.tracking import read_events
from phonate.training.trainer import Trainer


def settings(**changes) -> TrainingSettings:
    values = {
        "max_steps": 12,
        "batch_size": 4,
        "optimizer": {"lr": 1e-2},
        "checkpoint": {"interval": 4},
        "validation": {"interval": 4, "previews": False},
        "logging": {"interval": 2, "tensorboard": False, "verbosity": "quiet", "system": False},
    }
    for key, value in changes.items():
        values[key] = {**values[key], **value} if isinstance(values.get(key), dict) else value
    return TrainingSettings(**values)


def train(folder, task=None, *, resume=None, callbacks=(), recipe=None, **changes) -> Trainer:
    run = Run(folder)
    run.create(resuming=resume is not None)
    trainer = Trainer(task or RegressionTask(), settings(**changes), run, callbacks=callbacks, recipe=recipe)
    checkpoint = trainer.checkpoints.load_checkpoint(resume) if resume else None
    trainer.fit(checkpoint)
    return trainer


def lines(folder, split=None):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["split"] != "event" and split in (None, row["split"])]


def weights(trainer):
    return {name: t.clone() for name, t in trainer.model.state_dict().items()}


def same(a, b) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def test_learns_and_writes_what_a_run_promises(tmp_path):
    trainer = train(tmp_path / "run", max_steps=200, validation={"interval": 50}, logging={"interval": 10})
    rows = lines(tmp_path / "run", "train")
    assert rows[-1]["mse"] < 0.3 * rows[0]["mse"]
    assert [row["step"] for row in rows] == list(range(10, 201, 10))
    assert rows[0].keys() >= {"step", "split", "epoch", "loss", "mse", "learning_rate", "grad_norm"}
    assert [row["step"] for row in lines(tmp_path / "run", "validation")] == [50, 100, 150, 200]
    for name in ("hyperparameters.json", "model_summary.txt", "system.json", "checkpoints/step-00000200"):
        assert (tmp_path / "run" / name).exists()
    assert trainer.step == 200


@pytest.mark.parametrize("epochs", [1, 2])
def test_the_console_names_epochs_where_there_are_several(tmp_path, capsys, epochs):
    steps = train(tmp_path / "first", max_steps=1).steps_per_epoch
    train(tmp_path / "run", max_steps=epochs * steps, logging={"verbosity": "normal", "interval": 1})
    assert (f"step 1/{epochs * steps}  epoch 1  train" in capsys.readouterr().err) == (epochs > 1)


@pytest.mark.parametrize("resumed", [False, True])
def test_a_checkpoint_between_validations_has_no_metrics_of_one(tmp_path, resumed):
    """Those of the latest validation are of other weights, also in what a resumed run saves."""
    options = {"checkpoint": {"interval": 3, "save_total_limit": 9}, "validation": {"interval": 4}}
    if resumed:
        train(tmp_path / "run", max_steps=5, **options)
    trainer = train(tmp_path / "run", resume="step-00000004" if resumed else None, **options)
    validated = {row["step"]: row["loss"] for row in lines(tmp_path / "run", "validation")}
    saved = {one.step: one.metadata for one in trainer.checkpoints.list_checkpoints() if one.step != 5}
    assert {4, 6, 9, 12} <= saved.keys()
    assert {4, 8, 12} <= validated.keys()
    for step, metadata in saved.items():
        assert metadata.val_loss == pytest.approx(validated.get(step)), step
        assert any(name.startswith("val_") for name in metadata.metrics) == (step in validated)
        assert metadata.train_loss is not None
    assert [one.step for one in trainer.checkpoints.list_checkpoints("val_loss")][:2] != [6, 9]
    assert trainer.checkpoints.load_checkpoint("best").metadata.val_loss == pytest.approx(min(validated.values()))


def test_a_resumed_checkpoint_of_a_version_that_noted_no_step_keeps_only_the_metrics_of_the_best(tmp_path):
    trainer = train(tmp_path / "run")
    state = {**trainer.progress.state(), "best": {**trainer.progress.best.state(), "step": 8}}
    del state["validated"]
    progress = trainer.progress
    for step, known in ((8, True), (12, False)):
        progress.restore({**state, "step": step})
        assert bool(progress.metrics()) == known


def test_loss_is_the_weighted_sum_of_the_terms(tmp_path):
    train(tmp_path / "run")
    for row in lines(tmp_path / "run"):
        assert row["loss"] == pytest.approx(row["mse"] + 1e-3 * row["size"])
    train(tmp_path / "other", loss={"weights": {"size": 0.5}})
    for row in lines(tmp_path / "other"):
        assert row["loss"] == pytest.approx(row["mse"] + 0.5 * row["size"])


def test_accumulation_gives_the_gradient_of_the_whole_batch(tmp_path):
    """Sums with counts: 1 x 12 items and 3 x 4 items step alike, although their lengths differ."""

    class Task(RegressionTask):
        dropout = 0.0
        count = 12

        def dataset(self, split):
            return Sequences(12, 1, noise=0.0)

    whole = train(tmp_path / "a", Task(), max_steps=5, batch_size=12)
    parts = train(tmp_path / "b", Task(), max_steps=5, gradient_accumulation_steps=3)
    for name, tensor in whole.model.state_dict().items():
        assert torch.allclose(tensor, parts.model.state_dict()[name], atol=1e-6), name


def test_mean_of_means_is_caught_by_the_accumulation_test(tmp_path):
    """The usual fault, each micro-batch's own mean averaged, gives another gradient."""

    class MeanOfMeans(RegressionTask):
        dropout = 0.0

        def dataset(self, split):
            return Sequences(12, 1, noise=0.0)

        def loss(self, model, batch, phase):
            terms = super().loss(model, batch, phase)
            return {name: (total / count, 1.0) for name, (total, count) in terms.items()}

    whole = train(tmp_path / "a", MeanOfMeans(), max_steps=5, batch_size=12)
    parts = train(tmp_path / "b", MeanOfMeans(), max_steps=5, gradient_accumulation_steps=3)
    pairs = zip(whole.model.parameters(), parts.model.parameters(), strict=True)
    assert not all(torch.allclose(a, b, atol=1e-6) for a, b in pairs)


def test_the_last_window_of_an_epoch_is_used_too(tmp_path):
    task = RegressionTask()  # 24 items in 6 batches: windows of 4 and 2
    trainer = train(tmp_path / "run", task, max_steps=None, epochs=2, gradient_accumulation_steps=4)
    assert trainer.step == 4
    for epoch in (task.seen[:6], task.seen[6:]):
        assert sorted(name for batch in epoch for name in batch) == Sequences(24, 1).ids


EVERYTHING = {
    "gradient_accumulation_steps": 2,
    "ema": {"decay": 0.9},
    "scheduler": {"type": "plateau", "patience": 0, "gamma": 0.5, "warmup_steps": 2},
    "validation": {"interval": 3},
    "checkpoint": {"interval": 1, "save_total_limit": 100},
    "early_stopping": {"patience": 50},
    "logging": {"interval": 4},
}


@pytest.mark.parametrize("workers", [0, 2])
def test_resume_is_exact_to_the_bit_from_every_step(tmp_path, workers):
    changes = {**EVERYTHING, "performance": {"num_workers": workers}}
    straight = train(tmp_path / "run", **changes)
    undisturbed = [_plain(row) for row in lines(tmp_path / "run")]
    for step in range(1, 12, 1 if workers == 0 else 4):
        resumed = train(tmp_path / "run", resume=tmp_path / "run/checkpoints" / f"step-{step:08d}", **changes)
        assert same(weights(straight), weights(resumed)), step
        assert same(straight.ema.state(), resumed.ema.state())
        assert [_plain(row) for row in lines(tmp_path / "run")] == undisturbed, step


def _plain(row):
    clock = {"steps_per_second", "samples_per_second", "data_wait", "time"}
    return {k: v for k, v in row.items() if k not in clock and not k.startswith("time/")}


@pytest.mark.parametrize("way", [(4, 3), (6, 2), (3, 4), (24, 1), (5, 1)])
@pytest.mark.parametrize("stop", [1, 3, 5])
def test_other_micro_batches_at_a_resume_lose_and_repeat_no_sample(tmp_path, way, stop):
    """Stopped in the middle of an epoch with batches of 12 of 30 samples; each is seen once per epoch all the same."""

    class Thirty(RegressionTask):
        count = 30
        dropout = 0.0

    first, second = Thirty(), Thirty()
    constant = {"scheduler": {"type": "constant"}}
    straight = train(tmp_path / "a", Thirty(), max_steps=6, batch_size=12, **constant)
    train(tmp_path / "b", first, max_steps=stop, batch_size=12, **constant)
    size, times = way
    resumed = train(
        tmp_path / "b",
        second,
        resume=tmp_path / f"b/checkpoints/step-{stop:08d}",
        max_steps=None if size * times != 12 else 6,
        epochs=2,
        batch_size=size,
        gradient_accumulation_steps=times,
        **constant,
    )
    assert resumed.progress.epoch == 2
    seen = sorted(name for batch in (*first.seen, *second.seen) for name in batch)
    assert seen == sorted([*Sequences(30, 1).ids] * 2)
    if size * times == 12:
        for name, tensor in straight.model.state_dict().items():
            assert torch.allclose(tensor, resumed.model.state_dict()[name], atol=1e-5), name


def test_a_resumed_epoch_of_which_nothing_remains_ends(tmp_path):
    class Fewer(RegressionTask):
        count = 12

    train(tmp_path / "run", max_steps=5)  # of 6
    ends = []

    class Watch(Callback):
        def on_epoch_end(self, trainer, epoch, metrics):
            ends.append((trainer.step, epoch))

    resumed = train(
        tmp_path / "run",
        Fewer(),
        resume=tmp_path / "run/checkpoints/step-00000005",
        callbacks=[Watch()],
        max_steps=9,
        checkpoint={"allow_changed_data": True},
    )
    assert resumed.step == 9
    assert ends == [(5, 0), (8, 1), (9, 2)]


@pytest.mark.parametrize(("size", "left"), [(4, 4), (3, 4), (8, 4)])
def test_a_checkpoint_that_counted_micro_batches_is_resumed(tmp_path, size, left):
    """Of earlier versions: `batch` is their number. Its recipe says how many samples each had."""
    task = RegressionTask()
    train(tmp_path / "run", max_steps=5)  # 20 of 24 samples
    trainer = Trainer(task, settings(max_steps=None, epochs=1, batch_size=size), Run(tmp_path / "run"))
    checkpoint = trainer.checkpoints.load_checkpoint(tmp_path / "run/checkpoints/step-00000005")
    assert checkpoint.state["trainer"].pop("consumed") == ((None, 20),)
    checkpoint.state["trainer"]["batch"] = 5
    trainer.fit(replace(checkpoint, recipe_yaml="training: {batch_size: 4}"))
    assert sum(map(len, task.seen)) == left


@pytest.mark.parametrize("layers", [4, 6])
def test_a_model_of_other_layers_is_refused_in_one_line(tmp_path, layers):
    class Deep(RegressionTask):
        layers = 5

        def model(self, device):
            return torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(self.layers))).to(device)

    train(tmp_path / "run", Deep())
    changed = Deep()
    changed.layers = layers
    of = tmp_path / "run/checkpoints/step-00000012"
    what = rf"step-00000012 .*: {min(layers, 5)}\.(weight|bias)"
    with pytest.raises(InputError, match=what) as refused:
        train(tmp_path / "run", changed, resume=of, max_steps=13)
    assert "training.init_from=" in str(refused.value)


class Named(RegressionTask):
    """Agrees with checkpoints of the same speakers; `heard` counts what a resume restores."""

    earlier_keys: ClassVar = {"speakers": "voices", "own_state": "heard"}
    own_state = None

    def __init__(self, *speakers, kind="dense"):
        super().__init__()
        self.speakers, self.kind, self.own_state = [*speakers], kind, Heard()

    def identity(self):
        return {"speakers": self.speakers, "kind": self.kind}


class Heard:
    count = 0

    def state(self):
        return self.count

    def restore(self, state):
        self.count = state


@pytest.mark.parametrize("earlier", [False, True])
@pytest.mark.parametrize(
    ("task", "words"),
    [
        (Named("ann", "ben"), None),
        (Named("ben", "cleo"), "same speakers (new: cleo, missing: ann)"),
        (Named("ben", "ann"), "same speakers (in another order)"),
        (Named("ann", "ben", kind="deep"), 'same kind ("dense" there, "deep" here)'),
    ],
)
def test_a_checkpoint_agrees_with_the_identity_of_its_task_or_is_refused(tmp_path, earlier, task, words):
    """Those of earlier versions hold its facts among what inference needs, under other names."""
    begun = Named("ann", "ben")
    begun.own_state.count = 3
    train(tmp_path / "run", begun, max_steps=2)
    trainer = Trainer(task, settings(max_steps=3), Run(tmp_path / "run"))
    checkpoint = trainer.checkpoints.load_checkpoint(tmp_path / "run/checkpoints/step-00000002")
    assert checkpoint.state["identity"] == begun.identity()
    if earlier:
        del checkpoint.state["identity"]
        checkpoint.state["task"] = None
        known = {"voices": {"ann": [1.0], "ben": [2.0]}, "kind": "dense", "heard": 3}
        checkpoint = replace(checkpoint, inference=known)
    if words is None:
        trainer.fit(checkpoint)
        assert (trainer.step, task.own_state.count) == (3, 3)
        return
    with pytest.raises(InputError) as refused:
        trainer.fit(checkpoint)
    for said in (f"step-00000002 can't be resumed: it was not trained with the {words}", "put back", "another folder"):
        assert said in str(refused.value)
    assert "\n" not in str(refused.value)


class Renewed(RegressionTask):
    """Of the 24 items one was replaced, one removed and two were added."""

    def dataset(self, split):
        samples = super().dataset(split)
        if split == "train":
            samples = Sequences(26, 1)
            samples.ids[0] = "another"
        samples.digests = {name: self.changed.get(name, 0) for name in samples.ids}
        return samples

    changed: ClassVar[dict[str, int]] = {}


class Digested(RegressionTask):
    def dataset(self, split):
        samples = super().dataset(split)
        samples.digests = dict.fromkeys(samples.ids, 0)
        return samples


def test_changed_data_are_not_resumed_without_being_told(tmp_path, caplog):
    train(tmp_path / "run", Digested(), max_steps=5)
    renewed = Renewed()
    renewed.changed = {"item-1-003": 1}
    of = {"resume": tmp_path / "run/checkpoints/step-00000005"}
    with pytest.raises(InputError) as refused:
        train(tmp_path / "run", renewed, **of)
    for words in (
        "step-00000005",
        "1 differ (item-1-003)",
        "3 are new (such as another)",
        "1 of the 24 before are gone",
        "training.checkpoint.allow_changed_data=true",
    ):
        assert words in str(refused.value)
    assert "\n" not in str(refused.value)
    with caplog.at_level("INFO"):
        resumed = train(tmp_path / "run", renewed, **of, checkpoint={"allow_changed_data": True})
    assert resumed.step == 12
    assert "3 are new" in caplog.text
    # what the run has been told to go on with is what it is compared with from now on
    train(tmp_path / "run", renewed, resume=tmp_path / "run/checkpoints/step-00000012", max_steps=13)


def test_changed_validation_data_are_said(tmp_path, caplog):
    class Judged(Digested):
        def dataset(self, split):
            samples = super().dataset(split)
            if split == "validation":
                samples.digests[samples.ids[0]] = 1
            return samples

    train(tmp_path / "run", Digested(), max_steps=5)
    caplog.clear()
    train(tmp_path / "run", Digested(), resume=tmp_path / "run/checkpoints/step-00000005", max_steps=6)
    assert "validation data" not in caplog.text
    train(tmp_path / "run", Judged(), resume=tmp_path / "run/checkpoints/step-00000006", max_steps=7)
    assert "validation data have changed: of 6 validation items, 1 differ" in caplog.text


def test_a_checkpoint_that_does_not_know_its_data_is_resumed_with_a_line(tmp_path, caplog):
    train(tmp_path / "run", Digested(), max_steps=5)
    trainer = Trainer(Digested(), settings(), Run(tmp_path / "run"))
    checkpoint = trainer.checkpoints.load_checkpoint(tmp_path / "run/checkpoints/step-00000005")
    del checkpoint.state["data"]
    with caplog.at_level("INFO"):
        trainer.fit(checkpoint)
    assert "does not say what data" in caplog.text
    assert trainer.step == 12


def test_global_randomness_in_a_sample_is_what_breaks_resume(tmp_path):
    """The usual fault: augmentation from a global generator. The exactness test must see it."""

    class Global(Sequences):
        def get(self, index, rng):
            x, y, name = super().get(index, rng)
            return x + 0.1 * torch.randn(x.shape, generator=self.generator).numpy(), y, name

        generator = torch.Generator().manual_seed(0)

    class Faulty(RegressionTask):
        def dataset(self, split):
            return Global(24, 1)

    straight = train(tmp_path / "run", Faulty(), checkpoint={"interval": 4})
    resumed = train(
        tmp_path / "run",
        Faulty(),
        resume=tmp_path / "run/checkpoints/step-00000004",
        checkpoint={"interval": 4},
    )
    assert not same(weights(straight), weights(resumed))


def test_gan_trains_both_phases_and_only_their_own_parameters(tmp_path):
    before = weights(train(tmp_path / "a", GanTask(), max_steps=1))
    task = GanTask()
    trainer = train(tmp_path / "b", task, max_steps=300, logging={"interval": 50})
    rows = lines(tmp_path / "b", "train")
    assert rows[-1].keys() >= {"generator", "discriminator", "learning_rate/generator", "grad_norm/generator"}
    after = weights(trainer)
    assert all(not torch.equal(before[name], after[name]) for name in before)
    with torch.no_grad():
        made = trainer.model.generator(torch.randn(500, 4))
    real = torch.cat([torch.from_numpy(y) for y in Sequences(24, 1).targets])
    assert (made.mean(0) - real.mean(0)).norm() < 0.6


def test_gan_phase_every_second_step(tmp_path):
    class Count(GanTask):
        calls: ClassVar[list[str]] = []

        def loss(self, model, batch, phase):
            if torch.is_grad_enabled():
                self.calls.append(phase)
            return super().loss(model, batch, phase)

    train(tmp_path / "run", Count(), max_steps=4)
    assert Count.calls.count("discriminator") == 4
    assert Count.calls.count("generator") == 2


def test_gan_resumes_exactly(tmp_path):
    straight = train(tmp_path / "run", GanTask())
    resumed = train(tmp_path / "run", GanTask(), resume=tmp_path / "run/checkpoints/step-00000004")
    assert same(weights(straight), weights(resumed))


def test_adapter_checkpoint_holds_the_adapter_alone(tmp_path):
    straight = train(tmp_path / "run", AdapterTask())
    path = tmp_path / "run/checkpoints/step-00000004"
    saved = straight.checkpoints.load_checkpoint(path)
    assert set(saved.weights) == {"down.weight", "up.weight"}
    resumed = train(tmp_path / "run", AdapterTask(), resume=path)
    assert same(weights(straight), weights(resumed))


def test_redrawn_features_are_redrawn_saved_and_resumed(tmp_path):
    changes = {"feature_redraw_interval": 3}
    first = weights(train(tmp_path / "a", RandomFeaturesTask(), max_steps=2, **changes))
    straight = train(tmp_path / "run", RandomFeaturesTask(), **changes)
    assert not torch.equal(first["0.projection"], weights(straight)["0.projection"])
    resumed = train(
        tmp_path / "run", RandomFeaturesTask(), resume=tmp_path / "run/checkpoints/step-00000004", **changes
    )
    assert same(weights(straight), weights(resumed))
    fixed = train(tmp_path / "b", RandomFeaturesTask(), fixed_projection=True, **changes)
    assert torch.equal(first["0.projection"], weights(fixed)["0.projection"])


def test_outside_metric_chooses_the_best(tmp_path):
    choose = {"interval": 1, "metric_for_best_model": "quality", "greater_is_better": True}
    trainer = train(tmp_path / "run", OutsideMetricTask(), max_steps=60, validation=choose)
    rows = lines(tmp_path / "run", "validation")
    by_metric = max(rows, key=lambda row: row["quality"])["step"]
    by_loss = min(rows, key=lambda row: row["loss"])["step"]
    assert by_metric != by_loss
    assert trainer.progress.best.step == by_metric
    best = trainer.checkpoints.load_best_checkpoint()
    assert best.metadata.global_step == by_metric


def test_step_as_the_metric_makes_the_newest_checkpoint_the_best(tmp_path):
    class Worse(RegressionTask):
        """The loss grows from validation to validation."""

        def loss(self, model, batch, phase):
            terms = super().loss(model, batch, phase)
            return terms if model.training else {"mse": (torch.tensor(float(self.step)), 1)}

    by_loss = train(tmp_path / "loss", Worse(), max_steps=6, validation={"interval": 2})
    assert by_loss.checkpoints.load_best_checkpoint().metadata.global_step == 2
    newest = {"interval": 2, "metric_for_best_model": "step"}
    run = train(tmp_path / "step", Worse(), max_steps=6, validation=newest)
    assert run.checkpoints.load_best_checkpoint().metadata.global_step == 6
    assert "step" not in run.progress.last_validation
    better = train(tmp_path / "better", Worse(), max_steps=6, validation=newest, ema={"validate_with": "better"})
    assert better.checkpoints.load_best_checkpoint().metadata.global_step == 6


def test_unknown_metric_is_named_with_what_there_is(tmp_path):
    with pytest.raises(InputError, match=r"metric_for_best_model.*'val_wer'.*val_loss"):
        train(tmp_path / "run", validation={"metric_for_best_model": "val_wer"})


def test_best_survives_resume(tmp_path):
    """A worse model after the resume must not become the best."""
    train(tmp_path / "run", max_steps=40, validation={"interval": 4})
    path = tmp_path / "run/checkpoints/step-00000040"
    resumed = train(tmp_path / "run", resume=path, max_steps=44, optimizer={"lr": 10.0}, validation={"interval": 4})
    assert resumed.progress.best.step <= 40
    assert resumed.checkpoints.load_best_checkpoint().metadata.global_step <= 40


def test_early_stopping_restores_the_best_weights(tmp_path):
    changes = {
        "max_steps": 200,
        "optimizer": {"lr": 0.5, "weight_decay": 0.0},
        "scheduler": {"type": "constant"},
        "validation": {"interval": 1},
    }
    trainer = train(tmp_path / "run", early_stopping={"patience": 3}, **changes)
    assert trainer.step < 200
    assert trainer.progress.best.step < trainer.step
    best = trainer.checkpoints.load_best_checkpoint()
    assert same(best.weights, weights(trainer))
    kept = train(tmp_path / "kept", early_stopping={"patience": 3, "restore_best_weights": False}, **changes)
    assert kept.step == trainer.step
    assert not same(best.weights, weights(kept))


def test_every_hook_is_called_in_order(tmp_path):
    calls = []

    class Record(Callback):
        def __getattribute__(self, name):
            return object.__getattribute__(self, name)

    for hook in [name for name in dir(Callback) if name.startswith("on_")]:
        setattr(Record, hook, lambda self, *args, hook=hook: calls.append(hook))
    train(tmp_path / "run", max_steps=None, epochs=1, validation={"interval": "1 epochs"}, callbacks=[Record()])
    step = ["on_batch_begin", "on_batch_end", "on_backward_end", "on_optimizer_step"]
    assert calls[:2] == ["on_train_begin", "on_epoch_begin"]
    assert calls[2:6] == step
    assert calls[-5:] == [
        "on_optimizer_step",
        "on_validation_begin",
        "on_validation_end",
        "on_epoch_end",
        "on_train_end",
    ]
    assert calls.count("on_optimizer_step") == 6


def test_the_documented_callback_signature(tmp_path):
    seen = []

    class MyCallback(Callback):
        def on_epoch_end(self, trainer, epoch, metrics):
            seen.append((trainer.step, epoch, sorted(metrics)))

    train(
        tmp_path / "run",
        max_steps=None,
        epochs=2,
        validation={"interval": "1 epochs"},
        callbacks=[MyCallback()],
    )
    assert [entry[:2] for entry in seen] == [(6, 0), (12, 1)]
    assert {"train_loss", "val_loss"} <= set(seen[0][2])


class Epochs(Callback):
    """Remembers its calls of `on_epoch_end`, in checkpoints too."""

    def __init__(self):
        self.seen = []
        self.metrics = []

    def on_epoch_end(self, trainer, epoch, metrics):
        self.seen.append([trainer.step, epoch])
        self.metrics.append(metrics)

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = [*state["seen"]]


def test_training_that_ends_inside_an_epoch_reports_its_part(tmp_path):
    """And goes on from there as if it had never been stopped."""
    constant = {"scheduler": {"type": "constant"}}
    straight, short, resumed, again = Epochs(), Epochs(), Epochs(), Epochs()
    whole = train(tmp_path / "straight", max_steps=12, **constant, callbacks=[straight])
    part = train(tmp_path / "run", max_steps=9, **constant, callbacks=[short])  # of 6 to an epoch
    assert short.seen == [[6, 0], [9, 1]]
    saved = part.checkpoints.load_checkpoint("latest").metadata.metrics
    assert short.metrics[-1]["train_loss"] == saved["train_loss"] != short.metrics[0]["train_loss"]
    assert short.metrics[-1]["val_loss"] == saved["val_loss"]
    train(tmp_path / "run", resume="latest", max_steps=9, **constant, callbacks=[again])  # which has nothing left to do
    assert again.seen == [[6, 0]]
    rest = train(tmp_path / "run", resume="latest", max_steps=12, **constant, callbacks=[resumed])
    assert same(weights(rest), weights(whole))
    assert resumed.seen == straight.seen == [[6, 0], [12, 1]]
    assert resumed.metrics[-1] == straight.metrics[-1]


def test_a_loss_that_is_not_finite_ends_the_run_naming_the_batch(tmp_path):
    class Poisoned(RegressionTask):
        def dataset(self, split):
            samples = Sequences(24, 1)
            if split == "train":
                samples.inputs[7][0, 0] = math.nan
            return samples

    with pytest.raises(TrainingError, match=r"loss is nan at step \d+ \(mse.*item-1-007"):
        train(tmp_path / "run", Poisoned(), max_steps=12)


def test_gradients_are_unscaled_before_they_are_clipped(tmp_path):
    """fp16 with a loss scale of 4096 clips at the same norm as fp32; clipping scaled gradients would not."""
    norms = {}

    class Watch(Callback):
        def __init__(self, name):
            self.name = name

        def on_backward_end(self, trainer):
            grads = [p.grad for p in trainer.model.parameters()]
            norms.setdefault(self.name, []).append(torch.cat([g.flatten() for g in grads]).norm().item())

    for name, precision in (("fp32", "fp32"), ("fp16", "fp16")):
        train(
            tmp_path / name,
            max_steps=3,
            mixed_precision=precision,
            amp_loss_scale=4096.0,
            gradient_clipping=0.01,
            callbacks=[Watch(name)],
        )
    assert norms["fp16"] == pytest.approx(norms["fp32"], rel=0.05)
    rows = lines(tmp_path / "fp16", "train")
    assert rows[0]["grad_scale"] == 4096.0


def test_init_from_takes_what_fits_and_says_what_did_not(tmp_path, caplog):
    caplog.set_level(logging.INFO, "phonate")
    source = train(tmp_path / "source")
    train(tmp_path / "a", max_steps=1, init_from=str(tmp_path / "source"))
    assert "tensors fit" in caplog.text
    assert f"weights of {source.checkpoints.load_best_checkpoint().path}: all " in caplog.text

    class Wider(RegressionTask):
        def model(self, device):
            model = super().model(device)
            model.append(torch.nn.Linear(4, 4))
            return model

    path = tmp_path / "source"
    fresh = train(tmp_path / "b", Wider(), max_steps=1, optimizer={"lr": 0.0}, init_from=str(path))
    best = source.checkpoints.load_best_checkpoint().weights
    assert torch.equal(fresh.model[0].weight, best["0.weight"])
    assert f"tensors fit; new and untrained: 4.weight, 4.bias; {tmp_path / 'b/init_from.txt'} lists them" in caplog.text
    table = (tmp_path / "b/init_from.txt").read_text()
    assert "matched   0.weight" in table
    assert "new       4.weight" in table

    class Other(RegressionTask):
        def model(self, device):
            return torch.nn.ModuleDict({"odd": torch.nn.Linear(3, 3)})

    with pytest.raises(InputError, match=r"no weight of .* fits"):
        train(tmp_path / "c", Other(), init_from=str(path))
    assert "new       odd.weight" in (tmp_path / "c/init_from.txt").read_text()


def test_ema_is_validated_and_saved_for_inference(tmp_path, caplog):
    changes = {"max_steps": 30, "optimizer": {"lr": 0.1}, "validation": {"interval": 30}}
    averaged = train(tmp_path / "a", ema={"decay": 0.95}, **changes)
    raw = train(tmp_path / "b", ema={"decay": 0.95, "validate_with": "raw"}, **changes)
    with caplog.at_level("INFO"):
        better = train(tmp_path / "c", ema={"decay": 0.95, "validate_with": "better"}, **changes)
    assert same(weights(averaged), weights(raw))
    losses = [lines(tmp_path / name, "validation")[-1]["loss"] for name in "abc"]
    assert losses[0] != losses[1]
    assert losses[2] == min(losses[:2])
    taken = "average" if losses[0] < losses[1] else "newest"
    assert re.search(rf"average of the latest weights, .* by the newest; the {taken} will be used", caplog.text)
    saved = averaged.checkpoints.load_best_checkpoint().weights
    assert all(torch.equal(saved[name], tensor) for name, tensor in averaged.ema.state().items())
    assert same(raw.checkpoints.load_best_checkpoint().weights, weights(raw))
    assert better.step == 30


def test_a_coupled_loss_is_not_split_over_ranks(tmp_path):
    with pytest.raises(InputError, match="whole batch"):
        Trainer(CoupledTask(), settings(), Run(tmp_path), ranks=Ranks(world_size=2))


def test_a_run_folder_with_something_in_it_is_refused(tmp_path):
    train(tmp_path / "run")
    with pytest.raises(InputError, match=r'holds a run of 12 steps.*resume="auto".*output=".*run-2"'):
        train(tmp_path / "run")


def test_a_finished_run_resumes_to_itself(tmp_path):
    first = train(tmp_path / "run")
    before = lines(tmp_path / "run")
    again = train(tmp_path / "run", resume=tmp_path / "run/checkpoints/step-00000012")
    assert again.step == 12
    assert same(weights(first), weights(again))
    assert lines(tmp_path / "run") == before


class StopsAt(Callback):
    """Acts as a signal in step 5."""

    def on_optimizer_step(self, trainer):
        if trainer.step == 5:
            trainer.signals.received = 15


def test_an_interrupted_run_gives_where_it_stopped_as_data(tmp_path):
    with pytest.raises(Interrupted) as stopped:
        train(tmp_path / "run", callbacks=[StopsAt()])
    error = stopped.value
    assert (error.signal_number, error.exit_code, error.step, error.command) == (15, 143, 5, None)
    assert error.checkpoint == tmp_path / "run/checkpoints/step-00000005"
    train(tmp_path / "run", resume=error.checkpoint)
    (event,) = read_events(tmp_path / "run/metrics.jsonl")
    assert (event["event"], event["step"], event["checkpoint"]) == ("resumed", 5, str(error.checkpoint))


def test_a_run_with_a_recipe_says_how_it_is_resumed(tmp_path):
    run = Run(tmp_path / "my run")
    run.create(resuming=False)
    assert run.resume_command() is None
    run.write("recipe.yaml", "task: plugin\n")
    run.write_json("plugins.json", {"plugins": [{"path": "/my task.py", "sha256": "0"}]})
    assert shlex.split(run.resume_command()) == [
        *("phonate", "--plugin", "/my task.py", "train", str(run.path), "--resume", "auto")
    ]
    for words, rest in (
        (["train", "mine.yaml", "a.b=1"], []),
        (["train", "mine.yaml", "--device=cpu"], ["--device=cpu"]),
    ):
        with command_line(words):
            assert shlex.split(run.resumed_with) == [*shlex.split(run.resume_command()), *rest]
    assert run.resumed_with == 'resume="auto"'


@pytest.mark.parametrize(("steps", "said"), [(51, 1), (2, 0)])
def test_a_warm_up_that_outlasts_the_run_is_said_once_and_not_of_a_try(steps, said, tmp_path, caplog):
    train(tmp_path / "run", GanTask(), max_steps=steps, scheduler={"warmup_steps": 60})
    assert caplog.text.count(f"the run ends after {steps} steps, within the warm-up of 60") == said


@pytest.mark.parametrize(
    ("batch_size", "times", "ranks", "merged"),
    [(1, 8, 8, 8), (1, 8, 3, 2), (1, 8, 16, 8), (2, 8, 8, 4), (3, 4, 8, 2), (4, 8, 2, 1), (1, 1, 4, 1), (1, 8, 1, 1)],
)
def test_ranks_without_an_item_share_the_micro_batches_of_a_step(batch_size, times, ranks, merged):
    assert merged_for(settings(batch_size=batch_size, gradient_accumulation_steps=times), ranks) == merged


class CrampedTask(OutsideMetricTask):
    """Its evaluation, or its preview, finds the disk full."""

    full: ClassVar[str] = ""

    def evaluate(self, model, dataset, positions):
        if self.full == "evaluate":
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().evaluate(model, dataset, positions)

    def previews(self, model):
        return {"said": Sound(torch.zeros(100).numpy(), 16000)}


@pytest.mark.parametrize("full", ["evaluate", "preview"])
def test_a_disk_found_full_in_validation_costs_no_step(full, tmp_path, monkeypatch):
    changes = {"checkpoint": {"interval": 100}, "validation": {"previews": True}}
    whole = train(tmp_path / "whole", CrampedTask(), **changes)
    said = rf"disk full.*; the last checkpoint is {tmp_path}/run/checkpoints/step-00000004$"
    with monkeypatch.context() as patched:
        if full == "evaluate":
            patched.setattr(CrampedTask, "full", full)
            said = rf"^disk full after step 4 \(.*B free in {tmp_path}/run.*\); make room, then .*resume.*" + said[9:]
        else:
            no_room = unwritten(tmp_path, OSError(errno.ENOSPC, ""))
            no_room.__cause__ = OSError(errno.ENOSPC, "")
            patched.setattr("phonate.audio.decoding.write_audio", lambda *_: (_ for _ in ()).throw(no_room))
        with pytest.raises(TrainingError, match=said):
            train(tmp_path / "run", CrampedTask(), **changes)
    resumed = train(tmp_path / "run", CrampedTask(), resume="latest", **changes)
    assert same(weights(whole), weights(resumed))
    seen = [[row["quality"] for row in lines(tmp_path / name, "validation")] for name in ("whole", "run")]
    assert seen[0] == seen[1]


def test_another_error_of_a_file_stays_what_it_is(tmp_path, monkeypatch):
    def missing(*_):
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", "x")

    monkeypatch.setattr(CrampedTask, "evaluate", missing)
    with pytest.raises(FileNotFoundError):
        train(tmp_path / "run", CrampedTask())
