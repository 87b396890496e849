"""What a run says, or refuses, before its first step."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from small_tasks import Nothing, RegressionTask, Sequences
from test_trainer import lines, same, train, weights

from phonate.compute import distributed
from phonate.config.errors import InputError
from phonate.config.resolve import resolve
from phonate.config.tasks import TASKS, TaskEntry, task_info
from phonate.training import TrainingConfig, VoiceTrainer
from phonate.training.registries import CALLBACKS
from phonate.training.reporting import effective_batch
from phonate.training.run import Run, parameter_counts
from phonate.training.settings import TrainingSettings
from phonate.workflows import train as workflow


@pytest.mark.parametrize(
    ("backend", "there", "device", "said"),
    [
        ("nccl", True, "cpu", r"training\.distributed\.backend: nccl .*say gloo"),
        ("mpi", False, "cpu", r"training\.distributed\.backend: .*mpi; say auto"),
        ("nccl", False, "cuda", r"training\.distributed\.backend: .*nccl; say auto"),
    ],
)
def test_a_backend_that_is_not_there_is_refused(backend, there, device, said, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(torch.distributed, "is_backend_available", lambda name: there)
    with pytest.raises(InputError, match=said):
        distributed.start(torch.device(device), backend=backend)
    monkeypatch.delenv("WORLD_SIZE")  # a single process, too
    with pytest.raises(InputError, match=said):
        distributed.start(torch.device(device), backend=backend)


def test_a_launcher_that_starts_one_process_only_is_noticed(monkeypatch, caplog):
    distributed.start(torch.device("cpu"))
    assert not caplog.records
    monkeypatch.setenv("ACCELERATE_USE_CPU", "True")
    distributed.start(torch.device("cpu"))
    assert "torchrun --nproc_per_node" in caplog.text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "each step learns from 12 samples (3 times 4, accumulated)"),
        ({"max_duration": 2.5}, "each step learns from at most 7.5 s (3 times 2.5 s, accumulated)"),
    ],
)
def test_the_effective_batch_is_told_in_what_batches_are_made_by(changes, said, tmp_path, caplog):
    with caplog.at_level("INFO"):
        train(tmp_path / "run", max_steps=1, gradient_accumulation_steps=3, **changes)
    assert said in caplog.text


@pytest.mark.parametrize(
    ("ranks", "text"), [(1, "each step learns from 4 samples"), (2, "each step learns from 4 samples, over 2 ranks")]
)
def test_a_batch_that_is_not_accumulated_is_its_size(ranks, text):
    assert effective_batch(TrainingSettings(batch_size=4), ranks) == text


def test_frozen_parameters_are_not_told_as_trainable(tmp_path, caplog):
    freeze = CALLBACKS.get("freeze_layers")(patterns=["*.bias"])
    with caplog.at_level("INFO"):
        train(tmp_path / "run", max_steps=1, callbacks=[freeze])
    assert re.search(r"million trainable parameters of [\d.]+ million, on", caplog.text)
    summary = (tmp_path / "run" / "model_summary.txt").read_text().splitlines()[0]
    every, trainable = (int(one.replace(",", "")) for one in re.findall(r"([\d,]+) (?:parameters|trainable)", summary))
    assert trainable < every
    assert parameter_counts(Run(tmp_path / "run")) == (every, trainable)


class Uneven(Sequences):
    """Of every eight samples one is ten times as long as the others."""

    def __init__(self, count, seed):
        super().__init__(count, seed)
        self.lengths = np.where(np.arange(count) % 8 == 0, 40, 4)
        self.inputs = [np.zeros((n, 4), dtype=np.float32) for n in self.lengths]
        self.targets = self.inputs


@pytest.mark.parametrize("batch_size", [8, 4])
@pytest.mark.parametrize("rate", [10.0, None])
def test_much_padding_is_told_with_the_mend(rate, batch_size, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(Uneven, "frames_per_second", rate)
    monkeypatch.setattr(RegressionTask, "dataset", lambda self, split: Uneven(64, 1))
    frames = max(batch_size * 8.5, 40)  # 8.5 on average, 40 at most
    option = {"max_length": int(frames)} if rate is None else {"max_duration": math.ceil(frames / rate)}
    ((name, value),) = option.items()
    with caplog.at_level("INFO"):
        before = train(tmp_path / "a", max_steps=1, batch_size=batch_size).train_source.padding(0)
    said = f"{before:.0%} of the frames in batches are padding"
    assert said in caplog.text
    assert f"training.{name}={value} makes" in caplog.text
    caplog.clear()
    with caplog.at_level("INFO"):
        after = train(tmp_path / "b", max_steps=1, batch_size=batch_size, **option).train_source.padding(0)
    assert after < before
    train(tmp_path / "c", max_steps=1, batch_size=batch_size, performance={"split_by_length": True})
    assert "padding" not in caplog.text


def test_usual_padding_is_not_told(tmp_path, caplog):
    with caplog.at_level("INFO"):
        trainer = train(tmp_path / "run", max_steps=1)
    assert "padding" not in caplog.text
    batches = [planned.batch["mask"] for planned in trainer.train_source.epoch(0)]
    real, frames = sum(int(mask.sum()) for mask in batches), sum(mask.numel() for mask in batches)
    assert trainer.train_source.padding(0) == pytest.approx(1 - real / frames)


def test_a_loss_scale_without_fp16_is_told(tmp_path, caplog):
    for precision, expected in (("fp32", 1), ("bf16", 1), ("fp16", 0)):
        caplog.clear()
        train(tmp_path / precision, max_steps=1, mixed_precision=precision, amp_loss_scale=256.0)
        assert caplog.text.count("training.amp_loss_scale: only fp16") == expected


class Unvalidated(RegressionTask):
    validation_count = 0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"scheduler": {"type": "plateau"}}, r"training\.scheduler\.type: plateau"),
        ({"early_stopping": {}}, r"training\.early_stopping .*data\.validation above 0"),
        ({"checkpoint": {"save_best_only": True}}, r"training\.checkpoint\.save_best_only can't do without"),
        ({"callbacks": [CALLBACKS.get("dynamic_lr")()]}, r"training\.callbacks: DynamicLRCallback "),
    ],
)
def test_what_waits_for_validations_is_refused_where_there_are_none(changes, said, tmp_path):
    with pytest.raises(InputError, match=said):
        train(tmp_path / "run", Unvalidated(), **changes)
    assert not list((tmp_path / "run").glob("checkpoints/*"))
    assert train(tmp_path / "plain", Unvalidated()).step == 12


def test_a_voice_trainer_without_validation_loader_trains_to_its_end(tmp_path):
    batch = {"features": torch.randn(2, 4, 3), "target_features": torch.zeros(2, 4, 3)}
    for patience, refused in (({}, False), ({"early_stopping_patience": 3}, True)):
        config = TrainingConfig(num_epochs=1, output_dir=str(tmp_path / str(refused)), verbosity="quiet", **patience)
        trainer = VoiceTrainer(torch.nn.Linear(3, 3), config)
        if refused:
            with pytest.raises(InputError, match="early_stopping"):
                trainer.train([batch] * 3)
        else:
            trainer.train([batch] * 3)
            assert trainer.trainer.step == 3


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"validation": {"metric_for_best_model": "val_mze"}}, r"validation\.metric_for_best_model: .*'val_mze'"),
        ({"checkpoint": {"monitor_metric": "val_mze"}}, r"checkpoint\.monitor_metric: .*'val_mze'"),
        ({"scheduler": {"type": "plateau", "metric": "val_mze"}}, r"scheduler\.metric: .*'val_mze'"),
        (
            {"early_stopping": {"metric": "val_mze", "restore_best_weights": False}, "scheduler": {"type": "plateau"}},
            r"early_stopping\.metric: .*'val_mze'",
        ),
        ({"validation": {"metric_for_best_model": "val_mze"}, "ema": {"validate_with": "better"}}, "'val_mze'"),
    ],
)
def test_a_mistaken_metric_costs_no_work(changes, said, tmp_path):
    """The steps before it are saved; with the name put right the run becomes the one it would have been."""
    with pytest.raises(InputError, match=said + r".*did you mean val_mse\?.*It reports .*val_loss.*resume=\"auto\""):
        train(tmp_path / "run", **changes)
    mended = json.loads(json.dumps(changes).replace("val_mze", "val_mse"))
    resumed, straight = train(tmp_path / "run", resume="latest", **mended), train(tmp_path / "straight", **mended)
    assert same(weights(resumed), weights(straight))
    assert [row["step"] for row in lines(tmp_path / "run", "validation")] == [4, 8, 12]


def test_trackers_and_hyperparameters_hold_the_whole_recipe(tmp_path, monkeypatch):
    from phonate.training import trainer

    told = []
    monkeypatch.setattr(TASKS, "_registered", dict(TASKS._registered))
    monkeypatch.setattr(
        trainer,
        "build_stream",
        lambda *args, build=trainer.build_stream, **kwargs: (
            told.append(kwargs["hyperparameters"]) or build(*args, **kwargs)
        ),
    )
    TASKS.register("whole", TaskEntry(data=Nothing, model=Nothing, task=RegressionTask))
    recipe = tmp_path / "whole.yaml"
    recipe.write_text("task: whole\ntraining: {max_steps: 1, logging: {tensorboard: false, verbosity: quiet}}\n")
    workflow.train(recipe, output=tmp_path / "run")
    written = json.loads((tmp_path / "run/hyperparameters.json").read_text())
    assert written == resolve(recipe).recipe.model_dump(mode="json")
    assert written.keys() == {"task", "size", "data", "model", "training"}
    assert told == [written]


@pytest.mark.parametrize(
    ("language", "text"),
    [("de", "'Guten Morgen.'"), ("en-us", "'Good morning.'"), (None, "'Good morning.'"), ("hr", "TEXT")],
)
def test_what_a_run_is_to_say_is_in_its_language(language, text):
    said = Run(Path("runs/my voice")).use(task_info("speech"), {"data": {"language": language}})
    assert said == f"phonate speak 'runs/my voice' {text} -o said.wav"


@pytest.mark.parametrize(("vocoder", "live"), [("runs/vocoder-live", " --live"), (None, "")])
def test_a_live_model_is_used_live_where_its_vocoder_can(vocoder, live):
    recipe = {"data": {"vocoder": vocoder}, "model": {"causal": True}}
    said = Run(Path("runs/live")).use(task_info("conversion"), recipe)
    assert said == f"phonate convert runs/live RECORDING{live} -o converted.wav"
