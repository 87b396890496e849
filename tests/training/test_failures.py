"""What goes wrong in a run: each failure says what, where, and the mend, and what can be saved is."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from small_tasks import RegressionTask
from test_trainer import lines, same, train, weights

from phonate.config.errors import MissingPackageError, TrainingError
from phonate.training import precision
from phonate.training.callbacks import Callback
from phonate.training.trainer import Trainer

NAN_REMEDIES = ("training.optimizer.lr", "training.mixed_precision=fp32", "phonate data check")


class Batches(Callback):
    def __init__(self) -> None:
        self.ids = []

    def on_batch_begin(self, trainer, batch):
        self.ids.append(batch["ids"])


class BadGradient(RegressionTask):
    """From its `first` training batch on the loss is finite and its gradient is not."""

    def __init__(self, first: int = 7) -> None:
        super().__init__()
        self.first, self.steps = first, 0

    def loss(self, model, batch, phase):
        terms = super().loss(model, batch, phase)
        if torch.is_grad_enabled():
            self.steps += 1
            if self.steps >= self.first:
                total, count = terms["mse"]
                terms["mse"] = (total + (model[3].weight * 0.0).pow(2).sum().sqrt(), count)
        return terms


class BadLoss(BadGradient):
    """Batch number `first` has a loss that is not a number."""

    def loss(self, model, batch, phase):
        terms = RegressionTask.loss(self, model, batch, phase)
        if torch.is_grad_enabled():
            self.steps += 1
            if self.steps == self.first:
                total, count = terms["mse"]
                terms["mse"] = (total * float("nan"), count)
        return terms


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Losses are only looked at when a line, an epoch or a save is due."""
    build = Trainer._build_step

    def built(self):
        step = build(self)
        step.finite._reads_at_once = False
        return step

    monkeypatch.setattr(Trainer, "_build_step", built)


def failed(folder, task, **changes):
    seen = Batches()
    with pytest.raises(TrainingError) as error:
        train(folder, task, callbacks=[seen], **changes)
    return str(error.value), seen.ids


def test_a_gradient_that_is_not_finite_names_its_batch_and_not_the_next(tmp_path):
    message, ids = failed(tmp_path / "run", BadGradient())
    assert "the gradient norm is nan at step 7" in message
    assert len(ids) == 7
    assert all(name in message for name in ids[6])
    assert all(remedy in message for remedy in NAN_REMEDIES)


def test_on_a_gpu_it_does_too(tmp_path, as_on_a_gpu):
    message, ids = failed(tmp_path / "run", BadGradient(), logging={"interval": 50}, checkpoint={"interval": 50},
                          validation={"interval": 50})  # fmt: skip
    assert "the gradient norm is nan at step 7" in message
    assert len(ids) > 7, "nothing waited for it"
    assert all(name in message for name in ids[6])


def test_a_loss_found_at_the_end_of_an_epoch_names_its_batch(tmp_path, as_on_a_gpu):
    message, ids = failed(
        tmp_path / "run",
        BadLoss(3),
        max_steps=None,
        epochs=2,
        gradient_clipping=None,
        logging={"interval": 1000},
        checkpoint={"interval": 1000},
        validation={"interval": 1000},
    )
    assert "loss is nan at step 3" in message
    assert all(name in message for name in ids[2])
    assert all(remedy in message for remedy in NAN_REMEDIES)


def test_a_run_whose_gradients_only_overflow_ends(tmp_path):
    """In fp16 a step that overflows is left out; a run of them learns nothing, however long it goes on."""
    with pytest.raises(TrainingError, match=r"^step \d+: gradients overflow in fp16") as error:
        train(tmp_path / "run", BadGradient(1), mixed_precision="fp16", max_steps=60)
    assert all(remedy in str(error.value) for remedy in NAN_REMEDIES)


# ------------------------------------------------------------------ 16-bit formats


class NoHalf(RegressionTask):
    """A loss that can't be computed in 16 bits."""

    dropout = 0.0

    def loss(self, model, batch, phase):
        terms = super().loss(model, batch, phase)
        if torch.is_autocast_enabled("cpu"):
            raise NotImplementedError("\"hum_kernel\" not implemented for 'BFloat16'")
        return terms


class InSingle(RegressionTask):
    dropout = 0.0


@pytest.fixture
def auto_is_bf16(monkeypatch):
    monkeypatch.setattr(precision, "resolve", lambda setting, device: "fp32" if setting == "fp32" else "bf16")


def test_auto_goes_on_in_fp32_where_the_first_step_fails(tmp_path, auto_is_bf16, caplog):
    fallen = train(tmp_path / "fallen", NoHalf(), mixed_precision="auto")
    assert "first step failed in bf16" in caplog.text
    assert "hum_kernel" in caplog.text
    assert fallen.train_step.precision.name == "fp32"
    plain = train(tmp_path / "plain", InSingle(), mixed_precision="fp32")
    assert same(weights(fallen), weights(plain))
    assert [row["loss"] for row in lines(tmp_path / "fallen", "train")] == [
        row["loss"] for row in lines(tmp_path / "plain", "train")
    ]


def test_a_format_that_was_asked_for_fails_as_it_is(tmp_path, auto_is_bf16):
    with pytest.raises(NotImplementedError, match="hum_kernel"):
        train(tmp_path / "run", NoHalf(), mixed_precision="bf16")


class Later(NoHalf):
    """Fails in its third step, in whatever format."""

    steps = 0

    def loss(self, model, batch, phase):
        self.steps += torch.is_grad_enabled()
        if self.steps == 3:
            raise RuntimeError("something else")
        return RegressionTask.loss(self, model, batch, phase)


def test_a_later_error_is_no_matter_of_the_format(tmp_path, auto_is_bf16, caplog):
    with pytest.raises(RuntimeError, match="something else"):
        train(tmp_path / "run", Later(), mixed_precision="auto")
    assert "training in fp32" not in caplog.text


def test_autocast_that_torch_only_warns_of_is_an_error(monkeypatch):
    class Off(torch.autocast):
        def __init__(self, kind, dtype):
            super().__init__(kind, dtype=dtype, enabled=False)

    monkeypatch.setattr(torch, "autocast", Off)
    assert precision.resolve("auto", torch.device("cpu"), precision.try_out) == "fp32"
    with pytest.raises(RuntimeError, match="float32"):
        precision.try_out("bf16", torch.device("cpu"))


# ------------------------------------------------------------------ before training


def test_a_tracker_that_is_missing_is_told_before_the_corpus_is_prepared(tmp_path, monkeypatch):
    class Unprepared(RegressionTask):
        def dataset(self, split):
            raise AssertionError("the corpus was prepared first")

        def model(self, device):
            raise AssertionError("the model was made first")

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match=r"pip install 'phonate\[wandb\]'"):
        train(tmp_path / "run", Unprepared(), logging={"wandb": True})


def test_the_parts_of_a_run_begin_in_their_order(tmp_path, monkeypatch):
    """Data, model, optimizer, checkpoint, trackers."""
    order = []

    def noted(name, function):
        def noting(*args, **kwargs):
            order.append(name)
            return function(*args, **kwargs)

        return noting

    train(tmp_path / "run", max_steps=2)
    monkeypatch.setattr(RegressionTask, "dataset", noted("data", RegressionTask.dataset))
    monkeypatch.setattr(RegressionTask, "model", noted("model", RegressionTask.model))
    for where, name in (
        ("phonate.training.phases.build_optimizer", "optimizer"),
        ("phonate.training.phases.build_schedule", "schedule"),
        ("phonate.training.state.Saver.restore", "checkpoint"),
        ("phonate.training.trainer.build_stream", "trackers"),
        ("phonate.training.step.TrainStep.__call__", "training"),
    ):
        module, _, attribute = where.rpartition(".")
        owner = sys.modules.get(module) or getattr(sys.modules[module.rpartition(".")[0]], module.rpartition(".")[2])
        monkeypatch.setattr(owner, attribute, noted(name, getattr(owner, attribute)))
    train(tmp_path / "run", resume="latest", max_steps=3)
    assert list(dict.fromkeys(order)) == [
        "data",
        "model",
        "optimizer",
        "schedule",
        "checkpoint",
        "trackers",
        "training",
    ]


# ------------------------------------------------------------------ memory, for real

NO_ROOM = """
import logging, resource, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
import torch
from small_tasks import RegressionTask
from test_trainer import train

class Hungry(RegressionTask):
    dropout = 0.0
    def loss(self, model, batch, phase):
        if torch.is_grad_enabled():
            torch.empty(len(batch["ids"]), 100_000_000)  # 400 MB an item
        return super().loss(model, batch, phase)

logging.basicConfig(level=logging.WARNING)
train(Path({run!r}) / "warm", RegressionTask(), max_steps=1)
used = int(next(row for row in open("/proc/self/status") if row.startswith("VmSize")).split()[1]) * 1024
resource.setrlimit(resource.RLIMIT_AS, (used + 2_000_000_000,) * 2)
train(Path({run!r}) / "run", Hungry(), max_steps=3, batch_size=8)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits a process's memory by RLIMIT_AS and /proc")
def test_an_allocator_that_refuses_costs_no_sample(tmp_path):
    """A real process under a limit of the system: batches of eight do not fit, parts of four do."""
    code = NO_ROOM.format(tests=str(Path(__file__).parent), run=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stderr.count("it was computed in 2 parts of at most 4 items, with the same gradient") == 1

    class Whole(RegressionTask):
        dropout = 0.0

    logging.getLogger("phonate").handlers.clear()
    train(tmp_path / "whole", Whole(), max_steps=3, batch_size=8)
    parts, whole = ([row["loss"] for row in lines(tmp_path / name, "train")] for name in ("run", "whole"))
    assert parts == pytest.approx(whole)
