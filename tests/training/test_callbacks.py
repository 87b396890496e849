"""Callbacks: their hooks, options and effects on a small loop."""

from __future__ import annotations

import json
import logging
import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
import torch
from small_tasks import GanTask, RegressionTask
from torch import nn

from phonate.config.errors import InputError
from phonate.config.resolve import resolve
from phonate.training.callbacks import Callback, CallbackList, build_callbacks
from phonate.training.optimizers import build_optimizer
from phonate.training.registries import CALLBACKS
from phonate.training.run import Run
from phonate.training.schedules import build_schedule
from phonate.training.settings import (
    CallbackSettings,
    CheckpointConfig,
    EarlyStoppingSettings,
    LoggingSettings,
    OptimizerSettings,
    SchedulerSettings,
    TrainingSettings,
    ValidationSettings,
)
from phonate.training.tracking import read_metrics
from phonate.training.trainer import Trainer
from phonate_process import run_python

ADAMW = OptimizerSettings(lr=0.1)
SETTINGS = TrainingSettings()
CPU = torch.device("cpu")


@dataclass
class Loop:
    """A loop that calls the hooks where the trainer calls them."""

    model: nn.Module
    callbacks: list[Callback]
    optimizer: OptimizerSettings = ADAMW
    settings: TrainingSettings = SETTINGS
    step: int = 0
    epoch: int = 0
    should_stop: bool = False
    restored: int = 0
    emitted: list[dict[str, float]] = field(default_factory=list)
    device: torch.device = CPU
    averages: dict[str, torch.Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.optimizers = {"main": build_optimizer(self.optimizer, self.model.named_parameters(), self.device)}
        self.schedules = {"main": build_schedule(SchedulerSettings(type="constant"), self.optimizer.lr, 100, 10)}
        self.hooks = CallbackList(self.callbacks)

    def emit(self, metrics: dict[str, float]) -> None:
        self.emitted.append({"step": self.step, **metrics})

    def restore_best(self) -> None:
        self.restored += 1

    def begin(self) -> None:
        for hook in self.hooks.on_train_begin:
            hook(self)

    def train(self, steps: int, scale: float = 1.0) -> None:
        for _ in range(steps):
            torch.manual_seed(self.step)
            loss = self.model(torch.randn(4, 6)).square().mean() * scale
            loss.backward()
            for hook in self.hooks.on_backward_end:
                hook(self)
            for optimizer in self.optimizers.values():
                for group in optimizer.param_groups:
                    group["lr"] = self.schedules["main"].lr(self.step)
                optimizer.step()
                optimizer.zero_grad()
            self.step += 1
            for hook in self.hooks.on_optimizer_step:
                hook(self)

    def validate(self, **metrics: float) -> None:
        for hook in self.hooks.on_validation_end:
            hook(self, metrics)

    def end(self) -> None:
        for hook in self.hooks.on_train_end:
            hook(self)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def build(name: str, **options: Any) -> Callback:
    return build_callbacks(TrainingSettings(callbacks=(CallbackSettings(type=name, options=options),)))[0]


def test_only_overridden_hooks_are_called():
    class MyCallback(Callback):
        def on_epoch_end(self, trainer, epoch, metrics):
            self.seen = (trainer, epoch, metrics)

    callback = MyCallback()
    hooks = CallbackList([callback, Callback()])
    (hook,) = hooks.on_epoch_end
    hook("trainer", 3, {"val_loss": 1.0})
    assert callback.seen == ("trainer", 3, {"val_loss": 1.0})
    names = [name for name in vars(Callback) if name.startswith("on_")]
    assert len(names) == 10
    assert all(getattr(hooks, name) == [] for name in names if name != "on_epoch_end")


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("early_stoping", {}, r"callbacks\[0\]\.type: .*did you mean early_stopping"),
        ("early_stopping", {"patiense": 3}, r"callbacks\[0\]\.options\.patiense: .*did you mean patience"),
        ("early_stopping", {"patience": 0}, r"callbacks\[0\]\.options: patience"),
        ("early_stopping", {"mode": "low"}, r"callbacks\[0\]\.options: mode"),
        ("freeze_layers", {}, r"callbacks\[0\]\.options\.patterns: required"),
        ("freeze_layers", {"patterns": "encoder"}, r"patterns: must be a list"),
        ("pruning", {"amount": 1.5}, "amount"),
        ("pruning", {"amount": 0.5, "start": 10, "end": 5}, "start"),
        ("dynamic_lr", {"factor": 2}, "factor"),
        ("feature_redraw", {"interval": 0}, "interval"),
        ("lr_monitor", {"interval": 0}, "interval"),
        ("gradient_clipping", {"max_norm": 0}, "max_norm"),
        ("gradient_clipping", {"max_norm": "much"}, r"callbacks\[0\]\.options: "),
    ],
)
def test_mistakes_in_options_are_named_with_their_place(name, options, said):
    with pytest.raises(InputError, match=said):
        build(name, **options)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("[pruning]", "1:24 training.callbacks.0: expected {type: pruning, options: {...}}, got 'pruning'"),
        ("[{type: pruning, amount: 0.5}]", "options: {...}}; amount must stand under options"),
        ("[{pruning: {amount: 0.5}}]", "training.callbacks.0: expected {type: NAME, options: {...}}"),
    ],
)
def test_a_callback_in_another_form_is_told_the_form(written, said, tmp_path):
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(f"training: {{callbacks: {written}}}\ntask: diarization\ndata: {{path: x}}\n")
    with pytest.raises(InputError) as error:
        resolve(recipe)
    assert str(error.value).endswith(said)
    assert "\n" not in str(error.value)


def test_every_callback_has_a_sensible_default():
    needed = {"freeze_layers": {"patterns": ["0"]}, "pruning": {"amount": 0.5}}
    for name in CALLBACKS.own():
        assert isinstance(build(name, **needed.get(name, {})), Callback)


def test_the_shipped_ones_are_imported_by_their_names():
    script = "from phonate.training.callbacks import *\nprint(sorted(n for n in dir() if n.endswith('Callback')))"
    done = run_python("-c", script)
    from phonate.training.callbacks import EarlyStoppingCallback, FreezeLayersCallback, LRMonitorCallback

    shipped = {EarlyStoppingCallback, FreezeLayersCallback, LRMonitorCallback}
    assert shipped < {CALLBACKS.get(name) for name in CALLBACKS.own()}
    assert all(CALLBACKS.get(name).__name__ in done.stdout for name in CALLBACKS.own())  # other tests register more


def test_callbacks_may_come_and_go_at_a_resume(caplog):
    early, late = build("dynamic_lr"), build("dynamic_lr")
    early.scale, late.scale = 0.5, 0.25
    stopping = build("early_stopping")
    stopping.watch.stale = 3
    states = json.loads(json.dumps(CallbackList([early, stopping, late, Callback()]).state()))
    new, first, second = build("lr_monitor"), build("dynamic_lr"), build("dynamic_lr")
    with caplog.at_level(logging.INFO):
        CallbackList([new, first, second]).restore(states)
    assert (first.scale, second.scale) == (0.5, 0.25)
    (line,) = caplog.records
    assert line.message.endswith(": EarlyStoppingCallback")


def test_short_forms_stand_for_callbacks():
    settings = TrainingSettings(feature_redraw_interval=7, early_stopping=EarlyStoppingSettings(patience=3))
    redraw, stopping = build_callbacks(settings)
    assert (redraw.interval, stopping.patience) == (7, 3)
    assert build_callbacks(TrainingSettings(feature_redraw_interval=7, fixed_projection=True)) == []


def test_features_that_are_fixed_are_not_redrawn_by_a_callback_either():
    with pytest.raises(InputError, match=r"fixed_projection .*feature_redraw"):
        TrainingSettings(fixed_projection=True, callbacks=(CallbackSettings(type="feature_redraw"),))


def test_early_stopping_counts_validations_without_improvement():
    loop = Loop(network(), [build("early_stopping", patience=2, min_delta=0.1)])
    for value in (1.0, 0.95, 0.8):  # the second is too small an improvement
        loop.validate(val_loss=value)
    loop.validate(val_loss=math.nan)
    assert not loop.should_stop
    loop.validate(val_loss=0.75)
    assert loop.should_stop
    loop.end()
    assert loop.restored == 1


def test_early_stopping_watches_any_metric_upwards():
    loop = Loop(
        network(), [build("early_stopping", patience=1, metric="accuracy", mode="max", restore_best_weights=False)]
    )
    loop.validate(accuracy=0.5)
    loop.validate(accuracy=0.6)
    assert not loop.should_stop
    loop.validate(accuracy=0.6)
    assert loop.should_stop
    with pytest.raises(InputError, match="did you mean accuracy_dev"):
        Loop(network(), [build("early_stopping", metric="accuracy", restore_best_weights=False)]).validate(
            accuracy_dev=1.0
        )


def test_early_stopping_restores_only_what_is_better_than_the_end():
    last_is_best = Loop(network(), [build("early_stopping")])
    last_is_best.validate(val_loss=1.0)
    last_is_best.end()
    assert last_is_best.restored == 0
    unwanted = Loop(network(), [build("early_stopping", patience=1, restore_best_weights=False)])
    unwanted.validate(val_loss=1.0)
    unwanted.validate(val_loss=2.0)
    unwanted.end()
    assert unwanted.restored == 0


def test_early_stopping_goes_on_after_a_resume():
    first, second = build("early_stopping", patience=2), build("early_stopping", patience=2)
    loop = Loop(network(), [first])
    loop.validate(val_loss=1.0)
    loop.validate(val_loss=2.0)
    states = json.loads(json.dumps(loop.hooks.state()))
    resumed = Loop(network(), [second])
    resumed.hooks.restore(states)
    resumed.validate(val_loss=1.5)
    assert resumed.should_stop


class RandomFeatures(nn.Module):
    """A layer with a random projection, as linear attention has."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.register_buffer("projection", torch.randn(6, 6))

    def redraw_features(self) -> None:
        self.projection.copy_(torch.randn(6, 6))

    def forward(self, x):
        return self.linear(x) @ self.projection


def test_features_are_redrawn_at_the_interval_and_the_same_after_a_resume():
    def run(until: int, start: int = 0) -> tuple[list[torch.Tensor], torch.Tensor]:
        loop = Loop(
            nn.Sequential(RandomFeatures(), RandomFeatures()), [build("feature_redraw", interval=3)], step=start
        )
        loop.begin()
        drawn = []
        for _ in range(start, until):
            before = loop.model[0].projection.clone()
            loop.train(1)
            state = torch.get_rng_state()
            if not torch.equal(before, loop.model[0].projection):
                drawn.append(loop.model[0].projection.clone())
                assert not torch.equal(loop.model[0].projection, loop.model[1].projection)
        return drawn, state

    whole, state = run(7)
    resumed, resumed_state = run(7, start=4)
    assert len(whole) == 2
    assert torch.equal(whole[-1], resumed[-1])
    assert torch.equal(state, resumed_state)


def test_redrawing_leaves_the_global_generator_alone():
    loop = Loop(RandomFeatures(), [build("feature_redraw")])
    loop.begin()
    before = torch.get_rng_state()
    loop.callbacks[0].redraw(loop)
    assert torch.equal(before, torch.get_rng_state())


def test_a_model_without_features_is_no_silent_no_op():
    with pytest.raises(InputError, match="redraw_features"):
        Loop(network(), [build("feature_redraw")]).begin()


def test_the_learning_rate_is_emitted_when_it_changes():
    loop = Loop(network(), [build("lr_monitor", interval=2)])
    loop.train(4)
    loop.schedules["main"].scale = 0.5
    loop.train(4)
    assert loop.emitted == [
        {"step": 2, "learning_rate": pytest.approx(0.1)},
        {"step": 6, "learning_rate": pytest.approx(0.05)},
    ]


@pytest.mark.parametrize(("norm_type", "order"), [(2.0, 2.0), ("inf", math.inf)])
def test_gradients_are_clipped_before_the_step(norm_type, order):
    class Watch(Callback):
        norms: list[float] = []  # noqa: RUF012 - read by the test

        def on_backward_end(self, trainer):
            flat = torch.cat([p.grad.flatten() for p in trainer.model.parameters()])
            self.norms.append(float(torch.linalg.vector_norm(flat, order)))

    watch = Watch()
    Loop(network(), [build("gradient_clipping", max_norm=0.01, norm_type=norm_type), watch]).train(3, scale=1e4)
    assert watch.norms[-3:] == pytest.approx([0.01] * 3, rel=1e-3)


def test_frozen_layers_do_not_move_until_their_step():
    model = network()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    loop = Loop(model, [build("freeze_layers", patterns=["0", "*.bias"], until_step=3)])
    loop.begin()
    loop.train(3)
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert moved == {"2.weight"}  # weight decay included
    loop.train(1)
    assert {name for name, p in model.named_parameters() if not torch.equal(p, before[name])} == set(before)
    assert all(p.requires_grad for p in model.parameters())


def test_a_run_resumed_past_the_step_freezes_nothing():
    loop = Loop(network(), [build("freeze_layers", patterns=["0"], until_step=3)], step=3)
    loop.begin()
    assert all(p.requires_grad for p in loop.model.parameters())


def test_a_pattern_that_matches_nothing_is_an_error():
    model = nn.ModuleDict({"encoder": nn.Linear(2, 2), "decoder": nn.Linear(2, 2)})
    with pytest.raises(InputError, match=r"'encodr' .*did you mean encoder"):
        Loop(model, [build("freeze_layers", patterns=["encodr"])]).begin()
    with pytest.raises(InputError, match="every parameter"):
        Loop(model, [build("freeze_layers", patterns=["*"])]).begin()


def test_pruned_weights_are_the_smallest_and_stay_zero():
    model = network()
    loop = Loop(model, [build("pruning", amount=0.5, start=2, end=6, interval=2)])
    loop.begin()
    loop.train(1)
    assert all((p != 0).all() for p in model.parameters())
    sparsity = []
    for _ in range(9):
        loop.train(1)
        sparsity.append(float((model[0].weight == 0).float().mean()))
    assert sparsity == sorted(sparsity)
    assert sparsity[0] == 0
    assert 0 < sparsity[2] < 0.5
    assert sparsity[4:] == [0.5] * 5
    assert all((p != 0).all() for name, p in model.named_parameters() if "bias" in name)
    assert loop.emitted[-1]["sparsity"] == pytest.approx(0.5)
    kept = model[2].weight[model[2].weight != 0].abs().min()
    assert kept > 0


def test_pruning_takes_the_smallest_magnitudes():
    model = nn.Linear(4, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.1, -3.0, -0.2, 2.0]]))
    loop = Loop(model, [build("pruning", amount=0.5)])
    loop.begin()
    loop.step = 1
    loop.hooks.on_optimizer_step[0](loop)
    torch.testing.assert_close(model.weight.detach(), torch.tensor([[0.0, -3.0, 0.0, 2.0]]))


def test_pruning_goes_on_after_a_resume():
    def loop(model: nn.Module, step: int = 0) -> Loop:
        sgd = OptimizerSettings(type="sgd", lr=0.1, momentum=0.0)
        return Loop(model, [build("pruning", amount=0.5, start=2, end=2)], optimizer=sgd, step=step)

    def trained(steps: int) -> Loop:
        whole = loop(network())
        whole.begin()
        whole.train(steps)
        return whole

    whole, part = trained(8), trained(4)
    resumed = loop(part.model, step=4)
    resumed.hooks.restore(json.loads(json.dumps(part.hooks.state())))
    assert json.dumps(resumed.hooks.state()) == json.dumps(part.hooks.state())
    resumed.begin()
    resumed.train(4)
    for ours, theirs in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_the_learning_rate_falls_when_the_metric_stalls(caplog):
    caplog.set_level(logging.INFO)
    loop = Loop(network(), [build("dynamic_lr", factor=0.5, patience=2, min_scale=0.3)])
    loop.begin()
    found = []
    for value in (1.0, 1.0, 1.0, 0.5, 1.0, 1.0, 1.0, 1.0):
        loop.validate(val_loss=value)
        loop.train(1)
        found.append(round(loop.optimizers["main"].param_groups[0]["lr"], 4))
    assert found == [0.1, 0.1, 0.05, 0.05, 0.05, 0.03, 0.03, 0.03]
    assert "val_loss stopped improving" in caplog.text
    resumed = Loop(network(), [build("dynamic_lr")])
    resumed.hooks.restore(json.loads(json.dumps(loop.hooks.state())))
    resumed.begin()
    assert resumed.schedules["main"].lr(0) == pytest.approx(0.03)


def test_in_the_trainer_all_of_them_resume_to_the_same_run(tmp_path):
    """Prune, freeze, clip, scale the rate and watch, in one run and in one that was interrupted."""
    callbacks = (
        CallbackSettings(type="pruning", options={"amount": 0.4, "start": 2, "end": 8, "interval": 3}),
        CallbackSettings(type="freeze_layers", options={"patterns": ["*.bias"], "until_step": 6}),
        CallbackSettings(type="gradient_clipping", options={"max_norm": 0.5}),
        CallbackSettings(type="dynamic_lr", options={"patience": 1, "factor": 0.7}),
        CallbackSettings(type="lr_monitor", options={"interval": 1}),
        CallbackSettings(type="early_stopping", options={"patience": 50}),
    )

    def fit(name: str, resume: bool = False, **changes: Any) -> Trainer:
        settings = TrainingSettings(
            batch_size=4,
            callbacks=callbacks,
            checkpoint=CheckpointConfig(interval=5),
            validation=ValidationSettings(interval=2),
            logging=LoggingSettings(interval=4, tensorboard=False, verbosity="quiet", system=False),
            **changes,
        )
        run = Run(tmp_path / name)
        run.create(resuming=resume)
        trainer = Trainer(RegressionTask(), settings, run)
        trainer.fit(trainer.checkpoints.load_checkpoint(run.path / "checkpoints" / "step-00000005") if resume else None)
        return trainer

    whole, _ = fit("whole", max_steps=11), fit("parted", max_steps=11)
    resumed = fit("parted", resume=True, max_steps=11)
    for ours, theirs in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    lines = [
        [
            {
                k: v
                for k, v in line.items()
                if k not in {"steps_per_second", "samples_per_second", "data_wait"} and not k.startswith("time/")
            }
            for line in read_metrics(path)
        ]
        for path in (tmp_path / "whole/metrics.jsonl", tmp_path / "parted/metrics.jsonl")
    ]
    assert [line for line in lines[0] if line["step"] > 5] == [line for line in lines[1] if line["step"] > 5]
    assert len({(line["step"], line["split"]) for line in lines[1]}) == len(lines[1])
    assert {"sparsity", "learning_rate"} <= {name for line in lines[1] for name in line}


class Batches(Callback):
    """Notes when the hooks around micro-batches are called, and with what."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def on_batch_begin(self, trainer, batch):
        self.calls.append(("begin", trainer.epoch, trainer.step, tuple(batch["ids"])))

    def on_batch_end(self, trainer, batch, metrics):
        self.calls.append(("end", trainer.epoch, trainer.step, tuple(batch["ids"]), metrics))

    def on_optimizer_step(self, trainer):
        self.calls.append(("step", trainer.epoch, trainer.step))


def fitted(folder, task, **changes: Any) -> Batches:
    callback = Batches()
    settings = TrainingSettings(
        batch_size=6,
        validation=ValidationSettings(interval=100),
        logging=LoggingSettings(interval=2, tensorboard=False, verbosity="quiet", system=False),
        **changes,
    )
    run = Run(folder)
    run.create(resuming=False)
    Trainer(task, settings, run, callbacks=[callback]).fit()
    return callback


def test_each_micro_batch_has_its_hooks_and_its_own_numbers(tmp_path):
    """Four micro-batches an epoch, two a step; numbers at steps with a log line too, in the batch's own epoch."""
    calls = fitted(tmp_path / "run", RegressionTask(), max_steps=4, gradient_accumulation_steps=2).calls
    assert [call[0] for call in calls] == ["begin", "end", "begin", "end", "step"] * 4
    assert all(begin[1:4] == end[1:4] for begin, end in pairwise(calls) if end[0] == "end")
    ends = [call for call in calls if call[0] == "end"]
    assert [(epoch, step) for _, epoch, step, *_ in ends] == [
        (epoch, 2 * epoch + step) for epoch in (0, 1) for step in (0, 0, 1, 1)
    ]
    for *_, metrics in ends:
        assert metrics.keys() == {"loss", "mse", "size"}
        assert all(isinstance(value, float) and value > 0 for value in metrics.values())
        assert metrics["loss"] == pytest.approx(metrics["mse"] + 1e-3 * metrics["size"])
    assert len({metrics["mse"] for *_, metrics in ends}) == 8


def test_a_micro_batch_of_several_phases_ends_with_the_last_of_them(tmp_path):
    """The generator runs in every second step."""
    calls = fitted(tmp_path / "run", GanTask(), max_steps=2, gradient_accumulation_steps=2).calls
    kinds = [call[0] for call in calls]
    assert kinds == ["begin", "begin", "end", "end", "step", "begin", "end", "begin", "end", "step"]
    found = [call[-1].keys() for call in calls if call[0] == "end"]
    assert found == [{"loss", "discriminator", "generator"}] * 2 + [{"loss", "discriminator"}] * 2


def test_a_wrong_option_is_reported_before_the_corpus_is_read(tmp_path):
    class Unread(RegressionTask):
        def dataset(self, split):
            raise AssertionError("the corpus was read")

    settings = TrainingSettings.model_validate(
        {"max_steps": 1, "callbacks": [{"type": "early_stopping", "options": {"patiense": 3}}]}
    )
    with pytest.raises(InputError, match=r"callbacks\[0\]\.options\.patiense: .*did you mean patience"):
        Trainer(Unread(), settings, Run(tmp_path))


@pytest.mark.parametrize("frozen_first", [True, False])
def test_frozen_weights_are_not_pruned(frozen_first: bool) -> None:
    model = network()
    both = [build("freeze_layers", patterns=["0.*"]), build("pruning", amount=0.5, start=1)]
    before = model[0].weight.detach().clone()
    loop = Loop(model, both if frozen_first else both[::-1])
    loop.begin()
    loop.train(2)
    assert torch.equal(model[0].weight, before)
    assert float((model[2].weight == 0).float().mean()) == 0.5
