"""Every option of the recipe's `training` part changes something that can be seen from outside: a loss, a file, a log
line or a call. One row for each option; a new option without a row fails."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from small_tasks import RandomFeaturesTask, RegressionTask, Sequences
from test_trainer import lines, settings, train, weights

from phonate.compute import distributed
from phonate.config.errors import InputError
from phonate.training import setup, trackers, trainer
from phonate.training.callbacks import Callback
from phonate.training.losses import build_loss
from phonate.training.plan import plan
from phonate.training.run import Run
from phonate.training.settings import TrainingSettings
from phonate.training.task import Picture
from phonate.training.trainer import Trainer
from phonate.workflows import train as workflow


class ChosenLossTask(RegressionTask):
    """Its loss is the recipe's."""

    dropout = 0.0

    def __init__(self, loss_settings, classes=False) -> None:
        super().__init__()
        self.criterion = build_loss(loss_settings, default="mse")
        self.classes = classes

    def loss_weights(self, step):
        return self.criterion.weights

    def loss(self, model, batch, phase):
        targets = batch["y"]
        if self.classes:
            targets = (targets > 0).float()
        return self.criterion(model(batch["x"]), targets, batch["mask"], model=model)


class PreviewTask(RegressionTask):
    def previews(self, model):
        return {"weights": Picture(model[0].weight.detach().numpy())}


def losses(folder, split="train"):
    return [row["loss"] for row in lines(folder, split)]


def differ(tmp_path, first, second, task=RegressionTask, what=losses):
    """Two runs that differ in these settings differ in what is seen of them."""
    seen = []
    for name, changes in (("a", first), ("b", second)):
        train(tmp_path / name, task(), **changes)
        seen.append(what(tmp_path / name))
    return seen[0] != seen[1]


def optimizer(tmp_path, kind, **number):
    base = {"type": kind, "lr": 1e-2}
    return differ(tmp_path, {"optimizer": base}, {"optimizer": {**base, **number}})


def schedule(tmp_path, base, **number):
    return differ(tmp_path, {"scheduler": base}, {"scheduler": {**base, **number}}, what=rates)


def rates(folder):
    return [row["learning_rate"] for row in lines(folder, "train")]


def chosen_loss(tmp_path, base, classes=False, **changes):
    seen = []
    for name, loss in (("a", base), ("b", {**base, **changes})):
        task = ChosenLossTask(TrainingSettings(loss=loss).loss, classes)
        train(tmp_path / name, task, loss=loss)
        seen.append([round(value, 9) for value in losses(tmp_path / name)])
    return seen[0] != seen[1]


def saved(folder, where="checkpoints"):
    return sorted(path.name for path in (folder / where).glob("*step-*"))


def newest(folder, name, where="checkpoints"):
    return folder / where / saved(folder, where)[-1] / name


def metadata(folder):
    return json.loads(newest(folder, "metadata.json").read_text())


def scales_differ(tmp_path, first, second):
    """Two runs in fp16 have other loss scales."""
    fp16 = {"mixed_precision": "fp16"}
    return differ(tmp_path, {**fp16, **first}, {**fp16, **second}, what=loss_scales)


def loss_scales(folder):
    return [row["grad_scale"] for row in lines(folder, "train")]


def resumable(tmp_path, **checkpoint):
    train(tmp_path / "run", checkpoint={"interval": 4, **checkpoint})
    try:
        train(tmp_path / "run", resume=tmp_path / "run/checkpoints/step-00000004", checkpoint=checkpoint)
    except InputError as error:
        return str(error)
    return "resumed"


class ProcessSequences(Sequences):
    """Samples that say which process loaded them."""

    def collate(self, items):
        return {**super().collate(items), "process": os.getpid()}


class ProcessTask(RegressionTask):
    def dataset(self, split):
        return ProcessSequences(self.count, 1) if split == "train" else super().dataset(split)


def loading_processes(tmp_path, workers, **performance):
    """The processes that loaded the batches of each of two epochs."""
    seen = {}

    class Seen(Callback):
        def on_batch_begin(self, trainer, batch):
            seen.setdefault(trainer.epoch, set()).add(batch["process"])

    train(
        tmp_path / "run",
        ProcessTask(),
        callbacks=[Seen()],
        max_steps=None,
        epochs=2,
        performance={"num_workers": workers, **performance},
    )
    return seen


def persistent_workers(tmp_path, m):
    kept = loading_processes(tmp_path / "a", 1)
    new = loading_processes(tmp_path / "b", 1, persistent_workers=False)
    return kept[0] == kept[1] and new[0] != new[1]


def source(tmp_path, monkeypatch, **performance):
    """What loading is asked for."""
    seen = {}
    source = SimpleNamespace(padding=lambda epoch: 0.0)
    monkeypatch.setattr(setup, "BatchSource", lambda samples, **options: seen.update(options) or source)
    options = settings(performance=performance)
    setup.batch_source(Sequences(4, 1), options, distributed.Ranks(), torch.device("cpu"))
    return seen


def matmul_precision(tmp_path, monkeypatch):
    """On CUDA torch is told, on other devices it is not."""
    asked = []
    monkeypatch.setattr(torch, "set_float32_matmul_precision", asked.append)
    train(tmp_path / "cpu", max_steps=1)
    assert not asked
    setup.set_matmul_precision(settings(), torch.device("cuda", 0))
    setup.set_matmul_precision(settings(performance={"matmul_precision": "highest"}), torch.device("cuda", 0))
    told = []
    monkeypatch.setattr(trainer, "set_matmul_precision", lambda given, device: told.append((given, device.type)))
    made = train(tmp_path / "told", max_steps=1, performance={"matmul_precision": "medium"})
    assert json.loads((tmp_path / "told" / "system.json").read_text())["matmul_precision"] == "highest"
    return asked == ["high", "highest"] and told == [(made.settings, "cpu")]


def ranks(monkeypatch, **options):
    """What torch is asked for when two processes were started."""
    asked = {}
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(
        torch.distributed, "init_process_group", lambda backend, **others: asked.update(backend=backend, **others)
    )
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    monkeypatch.setattr(torch.distributed, "new_group", lambda **_: None)
    monkeypatch.setattr(torch.distributed, "is_backend_available", lambda name: True)
    monkeypatch.setattr(torch.distributed.distributed_c10d, "_get_default_store", torch.distributed.HashStore)
    monkeypatch.setattr(distributed, "DistributedDataParallel", lambda module, **switches: asked.update(switches))
    workflow.start_ranks(settings(distributed=options), torch.device("cpu"), several_phases=False).wrap(
        torch.nn.Linear(1, 1)
    )
    return asked


def wandb(tmp_path, monkeypatch, **options):
    """What a stand-in for the wandb package was called with."""
    calls = []

    class Run:
        id = "x"
        summary = SimpleNamespace(update=lambda *_: None)

        def __getattr__(self, name):
            return lambda *args, **kwargs: calls.append((name, args, kwargs))

    def init(**kwargs):
        calls.append(("init", (), kwargs))
        return Run()

    class Module(SimpleNamespace):
        def __getattr__(self, name):
            return lambda *args, **kwargs: SimpleNamespace(
                add_dir=lambda *a, **k: calls.append(("add_dir", a, k)),
                add_file=lambda *a, **k: calls.append(("add_file", a, k)),
            )

    monkeypatch.setitem(sys.modules, "wandb", Module(init=init, Settings=lambda **k: k, __spec__=SimpleNamespace()))
    train(tmp_path / "run", logging={"wandb": True, **options})
    return calls


def reported(tmp_path, monkeypatch, name, sink):
    """Whether a run is reported to a tracker, in whose place a file stands; its own tests are in test_trackers.py."""
    file = tmp_path / "reported.jsonl"
    monkeypatch.setitem(sys.modules, name, SimpleNamespace(__spec__=SimpleNamespace()))
    monkeypatch.setattr(trackers, sink, lambda *_: trackers.JsonLines(file, None))
    train(tmp_path / "run", logging={name: True})
    return bool(file.read_text())


def logged(calls):
    return [call for call in calls if call[0] == "log" and "train/learning_rate" in call[1][0]]


def init_of(calls):
    return next(kwargs for name, _, kwargs in calls if name == "init")


def previewed(tmp_path, **validation):
    train(tmp_path / "run", PreviewTask(), validation={"interval": 4, **validation}, logging={"tensorboard": True})
    shown = any(b"weights" in file.read_bytes() for file in (tmp_path / "run/events").rglob("*tfevents*"))
    assert shown == (tmp_path / "run/previews/weights.png").exists()
    return shown


def hyper(**more):
    return {"optimizer": {"lr": 0.5, "weight_decay": 0.0}, "scheduler": {"type": "constant"}, "max_steps": 30, **more}


class Rising(RegressionTask):
    """A metric that it does not declare rises at every validation."""

    def evaluate(self, model, dataset, positions):
        self.count_of_validations = getattr(self, "count_of_validations", 0) + 1
        return {"rising": (float(self.count_of_validations), 1.0)}


def stops(tmp_path, name, task=RegressionTask, **early):
    changes = hyper(validation={"interval": 1}, early_stopping={"patience": 3, **early})
    return train(tmp_path / name, task(), **changes).step


def validated(tmp_path, name, **changes):
    return losses(train(tmp_path / name, **changes).run.path, "validation")


def epochs(tmp_path, m):
    return train(tmp_path / "a", max_steps=None, epochs=2).step == 12


def max_steps(tmp_path, m):
    return train(tmp_path / "a", max_steps=7, epochs=1000).step == 7


def batch_size(tmp_path, m):
    return train(tmp_path / "a", max_steps=None, epochs=1, batch_size=6).step == 4


def max_duration(tmp_path, m):
    trainer = train(tmp_path / "a", max_duration=3.0)
    batches = [planned.batch["x"] for planned in trainer.train_source.epoch(0)]
    return all(x.shape[0] * x.shape[1] <= 30 for x in batches) and len({x.shape[0] for x in batches}) > 1


def max_length(tmp_path, m):
    m.setattr(Sequences, "frames_per_second", None)
    with pytest.raises(InputError, match=r"max_duration: .*training\.max_length"):
        train(tmp_path / "a", max_duration=3.0)
    trainer = train(tmp_path / "b", max_length=30)
    batches = [planned.batch["x"] for planned in trainer.train_source.epoch(0)]
    return all(x.shape[0] * x.shape[1] <= 30 for x in batches) and len({x.shape[0] for x in batches}) > 1


def metric_for_best_model(tmp_path, m):
    first = train(tmp_path / "a", validation={"metric_for_best_model": "val_mse"})
    return (
        first.progress.best.metric == "val_mse"
        and first.progress.best.value != train(tmp_path / "b").progress.best.value
    )


def greater_is_better(tmp_path, m):
    """Of a metric that no task declares."""
    best = {"metric_for_best_model": "rising", "interval": 4}
    first, second = (
        train(tmp_path / str(flag), Rising(), max_steps=12, validation={**best, "greater_is_better": bool(flag)})
        for flag in (0, 1)
    )
    return first.progress.best.step != second.progress.best.step


def restore_best_weights(tmp_path, m):
    kept, restored = (
        weights(
            train(
                tmp_path / str(flag),
                **hyper(validation={"interval": 1}, early_stopping={"patience": 3, "restore_best_weights": flag}),
            )
        )
        for flag in (False, True)
    )
    return not torch.equal(kept["0.weight"], restored["0.weight"])


def early_metric(tmp_path, m):
    with pytest.raises(InputError, match="val_nothing"):
        stops(tmp_path, "a", metric="val_nothing", restore_best_weights=False)
    return True


def resume_option(tmp_path, m):
    from small_tasks import Nothing

    from phonate.config.tasks import TASKS, TaskEntry

    TASKS.register("options", TaskEntry(data=Nothing, model=Nothing, task=RegressionTask))
    recipe = tmp_path / "options.yaml"
    recipe.write_text(
        "task: options\ntraining: {batch_size: 4, max_steps: 4, logging: {tensorboard: false, verbosity: quiet}}\n"
    )
    output = tmp_path / "run"
    workflow.train(recipe, output=output)
    more = {"training.max_steps": 8, "training.checkpoint.resume": "auto"}
    return workflow.train(recipe, more, output=output).step == 8 and lines(output, "train") is not None


def allow_changed_data(tmp_path, m):
    class Fewer(RegressionTask):
        count = 20

    def resumed(allowed):
        latest = tmp_path / "run/checkpoints/step-00000002"
        allow = {"allow_changed_data": allowed}
        return train(tmp_path / "run", Fewer(), resume=latest, max_steps=3, checkpoint=allow)

    train(tmp_path / "run", max_steps=2)
    with pytest.raises(InputError, match="training data have changed"):
        resumed(False)
    return resumed(True).step == 3


def threads(tmp_path, m):
    from small_tasks import Nothing
    from threadpoolctl import threadpool_info, threadpool_limits

    from phonate.config.tasks import TASKS, TaskEntry

    asked = []
    m.setattr(torch, "set_num_threads", asked.append)
    TASKS.register("options", TaskEntry(data=Nothing, model=Nothing, task=RegressionTask))
    recipe = tmp_path / "options.yaml"
    recipe.write_text(
        "task: options\ntraining: {max_steps: 1, performance: {threads: 1}, logging: {tensorboard: false}}\n"
    )
    with threadpool_limits(2, user_api="blas"):
        workflow.train(recipe, output=tmp_path / "run")
        products = [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]
    return asked == [1] and bool(products) and set(products) == {1}


def device_option(tmp_path, m):
    from small_tasks import Nothing

    from phonate.config.tasks import TASKS, TaskEntry

    TASKS.register("options", TaskEntry(data=Nothing, model=Nothing, task=RegressionTask))
    recipe = tmp_path / "options.yaml"
    recipe.write_text("task: options\ntraining: {device: 'cuda:99'}\n")
    with pytest.raises(InputError, match="cuda:99"):
        workflow.train(recipe, output=tmp_path / "run")
    return True


def verify_integrity(tmp_path, m):
    from phonate.config.errors import CheckpointError

    for flag in (True, False):
        run = tmp_path / str(flag)
        train(run, checkpoint={"verify_integrity": flag})
        path = newest(run, "weights.safetensors")
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
        if flag:
            with pytest.raises(CheckpointError, match="SHA-256"):
                train(run, resume=path.parent, checkpoint={"verify_integrity": flag})
        else:
            train(run, resume=path.parent, checkpoint={"verify_integrity": flag})
    return True


def snapshot_features(tmp_path, m):
    names = []
    for flag in (True, False):
        trainer = train(tmp_path / str(flag), RandomFeaturesTask(), checkpoint={"snapshot_features": flag})
        names.append(set(trainer.checkpoints.load_checkpoint("latest").weights))
    return names[0] - names[1] == {"0.projection"}


def fixed_projection(tmp_path, m):
    found = [
        weights(train(tmp_path / str(flag), RandomFeaturesTask(), feature_redraw_interval=2, fixed_projection=flag))
        for flag in (True, False)
    ]
    return not torch.equal(found[0]["0.projection"], found[1]["0.projection"])


def log_metrics(tmp_path, monkeypatch):
    """Trackers get what is selected, the run's own record everything."""
    calls = wandb(tmp_path, monkeypatch, log_metrics=["mse"])
    shown = [call[1][0] for call in calls if call[0] == "log"]
    assert all({"loss", "mse"} <= row.keys() for row in lines(tmp_path / "run", "train"))
    return any("train/mse" in row for row in shown) and not any("train/loss" in row for row in shown)


def log_model(tmp_path, m):
    calls = wandb(tmp_path, m, log_model=True)
    return any(name in {"log_artifact", "add_dir", "add_file"} for name, _, _ in calls)


def verbosity(tmp_path, m, capsys):
    for level in ("quiet", "normal"):
        train(tmp_path / level, logging={"verbosity": level})
        shown = "learning_rate" in capsys.readouterr().err
        assert shown == (level == "normal")
    return True


def batch_shim(tmp_path, m):
    class WithLengths(Sequences):
        def collate(self, items):
            batch = super().collate(items)
            return {**batch, "lengths": batch["mask"].sum(1)}

    class Shimmed(RegressionTask):
        def dataset(self, split):
            return WithLengths(8, 1)

    shapes = [
        {
            planned.batch["x"].shape[1]
            for planned in train(
                tmp_path / str(flag), Shimmed(), max_steps=1, performance={"batch_shim": flag}
            ).train_source.epoch(0)
        }
        for flag in (True, False)
    ]
    return shapes[0] == {64} and max(shapes[1]) < 64


def split_by_length(tmp_path, m):
    """Of the batches of one training, as parts and whole."""
    parts, whole = (
        list(train(tmp_path / str(flag), max_steps=1, performance={"split_by_length": flag}).train_source.epoch(0))
        for flag in (True, False)
    )
    padded = [sum(planned.batch["mask"].numel() for planned in one) for one in (parts, whole)]
    return len(parts) > len(whole) and padded[0] < padded[1]


def compile_model(tmp_path, m):
    asked = []
    m.setattr(torch.nn.Module, "compile", lambda self, *args, **kwargs: asked.append(self))
    train(tmp_path / "a", max_steps=1, performance={"compile_model": True})
    with pytest.raises(InputError, match="cuda_graphs needs an NVIDIA GPU"):
        train(tmp_path / "b", max_steps=1, performance={"compile_model": "cuda_graphs"})
    return len(asked) == 1


def sync_gradient_barrier(tmp_path, m):
    calls = []
    m.setattr(distributed.Ranks, "barrier", lambda self: calls.append(1))
    train(tmp_path / "a", max_steps=3, distributed={"sync_gradient_barrier": True})
    return len(calls) == 3


def world_size(tmp_path, m):
    with pytest.raises(InputError, match="nproc_per_node=4"):
        ranks(m, world_size=4)
    return True


def ema_validate_with(tmp_path, m):
    return differ(
        tmp_path,
        {"ema": {"validate_with": "ema"}},
        {"ema": {"validate_with": "raw"}},
        what=lambda folder: losses(folder, "validation"),
    )


def init_from(tmp_path, m):
    train(tmp_path / "source")
    train(tmp_path / "a", init_from=str(tmp_path / "source"))
    return "matched" in (tmp_path / "a/init_from.txt").read_text()


def monitor_metric(tmp_path, m):
    return train(tmp_path / "a", checkpoint={"monitor_metric": "val_size"}).progress.best.metric == "val_size"


def plateau_metric(tmp_path, m):
    with pytest.raises(InputError, match="val_nothing"):
        train(tmp_path / "a", scheduler={"type": "plateau", "metric": "val_nothing"})
    return True


def callbacks(tmp_path, m):
    freeze = [{"type": "freeze_layers", "options": {"patterns": ["0.*"]}}]
    found = []
    for name, asked in (("a", []), ("b", freeze)):
        options = TrainingSettings.model_validate({**settings().model_dump(), "callbacks": asked})
        run = Run(tmp_path / name)
        run.create(resuming=False)
        Trainer(RegressionTask(), options, run).fit()
        found.append(losses(tmp_path / name))
    return found[0] != found[1]


PLATEAU = {"type": "plateau", "patience": 0, "gamma": 0.5}
RESTARTS = {"type": "cosine_restarts", "cycle_steps": 4}

PLUGIN = Path(__file__).parent / "plugin_task.py"


def search(folder, space=None, library="optuna", **tuning):
    """A search over learning rates with the task of plugin_task.py; the best run for `library` None."""
    pytest.importorskip("optuna", reason="needs optuna: pip install 'phonate[tuning]'")
    folder.mkdir(parents=True)
    (folder / "plugin.yaml").write_text("task: plugin\n")
    changes = {
        "training.max_steps": 6,
        "training.random_seed": 1,
        "training.validation": {"interval": 2, "previews": False},
        "training.performance.num_workers": 0,
        "training.logging": {"interval": 6, "tensorboard": False, "system": False},
        "training.tuning": {"library": library, "search_space": space or {RATE: [1e-2, 0.0]}, **tuning},
    }
    run = workflow.search if library else workflow.train_plan
    return run(plan(folder / "plugin.yaml", changes, plugins=(PLUGIN,), mode="cpu", output=folder / "run"))


RATE = "training.optimizer.lr"


def tuning_library(tmp_path, monkeypatch):
    """A search leaves runs in a folder of their own, and a single run leaves checkpoints."""
    search(tmp_path / "a", n_trials=2)
    search(tmp_path / "b", library=None)
    left = [{path.name for path in (tmp_path / name / "run").iterdir()} for name in ("a", "b")]
    return "trials" in left[0] - left[1] and "checkpoints" in left[1] - left[0]


def tuning_search_space(tmp_path, monkeypatch):
    """Values come from the space."""
    rates = [1e-3, 2e-3]
    return {one.values[RATE] for one in search(tmp_path / "a", {RATE: rates}, n_trials=3).trials} <= {*rates}


def tuning_direction(tmp_path, monkeypatch):
    """The lowest or the highest of a metric that the task does not declare."""
    lowest, highest = (
        search(tmp_path / direction, n_trials=4, pruning=False, metric="weight", direction=direction)
        for direction in ("minimize", "maximize")
    )
    return lowest.best.metric < highest.best.metric


def tuning_pruning(tmp_path, monkeypatch):
    """Runs that learn nothing are stopped, or not."""
    states = [
        {one.state for one in search(tmp_path / str(pruning), n_trials=8, pruning=pruning).trials}
        for pruning in (True, False)
    ]
    return states == [{"complete", "pruned"}, {"complete"}]


OBSERVED = {
    "epochs": epochs,
    "max_steps": max_steps,
    "batch_size": batch_size,
    "max_duration": max_duration,
    "max_length": max_length,
    "random_seed": lambda t, m: differ(t, {}, {"random_seed": 7}),
    "optimizer.type": lambda t, m: differ(t, {}, {"optimizer": {"type": "sgd"}}),
    "optimizer.lr": lambda t, m: differ(t, {}, {"optimizer": {"lr": 0.1}}),
    "optimizer.weight_decay": lambda t, m: optimizer(t, "adamw", weight_decay=0.5),
    "optimizer.betas": lambda t, m: optimizer(t, "adamw", betas=[0.5, 0.9]),
    "optimizer.epsilon": lambda t, m: optimizer(t, "adamw", epsilon=0.1),
    "optimizer.amsgrad": lambda t, m: differ(
        t, {"optimizer": {"betas": [0.9, 0.5]}}, {"optimizer": {"betas": [0.9, 0.5], "amsgrad": True}}
    ),
    "optimizer.momentum": lambda t, m: optimizer(t, "sgd", momentum=0.1),
    "optimizer.nesterov": lambda t, m: optimizer(t, "sgd", nesterov=True),
    "optimizer.rho": lambda t, m: optimizer(t, "adadelta", rho=0.1),
    "scheduler.type": lambda t, m: differ(t, {}, {"scheduler": {"type": "linear"}}, what=rates),
    "scheduler.warmup_steps": lambda t, m: schedule(t, {}, warmup_steps=5),
    "scheduler.min_lr": lambda t, m: schedule(t, {}, min_lr=5e-3),
    "scheduler.max_lr": lambda t, m: schedule(t, {"type": "onecycle"}, max_lr=0.5),
    "scheduler.decay_steps": lambda t, m: schedule(t, {}, decay_steps=4),
    "scheduler.num_cycles": lambda t, m: schedule(t, {"type": "cosine_restarts"}, num_cycles=3),
    "scheduler.cycle_steps": lambda t, m: schedule(t, {"type": "cosine_restarts"}, cycle_steps=5),
    "scheduler.cycle_mult": lambda t, m: schedule(t, RESTARTS, cycle_mult=2),
    "scheduler.step_size": lambda t, m: schedule(t, {"type": "step", "step_size": 4}, step_size=6),
    "scheduler.gamma": lambda t, m: schedule(t, {"type": "step", "step_size": 4}, gamma=0.5),
    "scheduler.patience": lambda t, m: differ(
        t,
        hyper(scheduler=PLATEAU, validation={"interval": 1}),
        hyper(scheduler={**PLATEAU, "patience": 50}, validation={"interval": 1}),
        what=rates,
    ),
    "scheduler.mode": lambda t, m: differ(
        t,
        {"scheduler": {**PLATEAU, "metric": "rising", "mode": "min"}, "validation": {"interval": 1}},
        {"scheduler": {**PLATEAU, "metric": "rising", "mode": "max"}, "validation": {"interval": 1}},
        task=Rising,
        what=rates,
    ),
    "scheduler.metric": plateau_metric,
    "not_finite": lambda t, m: train(t / "a", not_finite="skip", max_steps=1).train_step.finite.skips,
    "quarantine": lambda t, m: train(t / "a", quarantine=2, max_steps=1).train_source._batches.tolerant,
    "gradient_clipping": lambda t, m: differ(
        t, {"optimizer": {"type": "sgd"}}, {"optimizer": {"type": "sgd"}, "gradient_clipping": 0.01}
    ),
    "gradient_accumulation_steps": lambda t, m: (
        train(t / "a", max_steps=None, epochs=1, gradient_accumulation_steps=3).step == 2
    ),
    "mixed_precision": lambda t, m: differ(t, {}, {"mixed_precision": "bf16"}),
    "amp_loss_scale": lambda t, m: differ(
        t,
        {"mixed_precision": "fp16"},
        {"mixed_precision": "fp16", "amp_loss_scale": 512.0},
        what=loss_scales,
    ),
    "amp_init_scale": lambda t, m: scales_differ(t, {}, {"amp_init_scale": 512.0}),
    "amp_growth_interval": lambda t, m: scales_differ(t, {}, {"amp_growth_interval": 2}),
    "amp_growth_factor": lambda t, m: scales_differ(
        t, {"amp_growth_interval": 2}, {"amp_growth_interval": 2, "amp_growth_factor": 4.0}
    ),
    "amp_backoff_factor": lambda t, m: scales_differ(  # from a scale that overflows
        t, {"amp_init_scale": 1e30}, {"amp_init_scale": 1e30, "amp_backoff_factor": 0.25}
    ),
    "loss.main": lambda t, m: chosen_loss(t, {}, main="l1"),
    "loss.label_smoothing": lambda t, m: chosen_loss(t, {"main": "bce_with_logits"}, True, label_smoothing=0.2),
    "loss.reduction": lambda t, m: chosen_loss(t, {}, reduction="sum"),
    "loss.auxiliary": lambda t, m: chosen_loss(t, {}, auxiliary={"norm_reg": 0.1}),
    "loss.weights": lambda t, m: differ(t, {}, {"loss": {"weights": {"mse": 2.0}}}),
    "loss.focal_alpha": lambda t, m: chosen_loss(t, {"main": "focal"}, True, focal_alpha=0.9),
    "loss.focal_gamma": lambda t, m: chosen_loss(t, {"main": "focal"}, True, focal_gamma=0.5),
    "validation.interval": lambda t, m: len(validated(t, "a", validation={"interval": 3})) == 4,
    "validation.batch_size": lambda t, m: train(t / "a", validation={"batch_size": 1}).validation_source.steps(0) == 6,
    "validation.metric_for_best_model": metric_for_best_model,
    "validation.greater_is_better": greater_is_better,
    "validation.previews": lambda t, m: previewed(t / "a", previews=True) and not previewed(t / "b", previews=False),
    "early_stopping.patience": lambda t, m: stops(t, "a") != stops(t, "b", patience=9),
    "early_stopping.metric": early_metric,
    "early_stopping.min_delta": lambda t, m: stops(t, "a") != stops(t, "b", min_delta=100.0),
    "early_stopping.mode": lambda t, m: (
        stops(t, "a", Rising, metric="rising", mode="min", restore_best_weights=False)
        < stops(t, "b", Rising, metric="rising", mode="max", restore_best_weights=False)
    ),
    "early_stopping.restore_best_weights": restore_best_weights,
    "checkpoint.save_dir": lambda t, m: (
        bool(train(t / "a", checkpoint={"save_dir": "kept"})) and bool(saved(t / "a", "kept"))
    ),
    "checkpoint.interval": lambda t, m: (
        bool(train(t / "a", validation={"interval": 100}, checkpoint={"interval": 5}))
        and saved(t / "a") == ["step-00000005", "step-00000010", "step-00000012"]
    ),
    "checkpoint.save_total_limit": lambda t, m: (
        bool(train(t / "a", checkpoint={"interval": 1, "save_total_limit": 2})) and len(saved(t / "a")) <= 3
    ),
    "checkpoint.save_best_only": lambda t, m: (
        bool(train(t / "a", validation={"interval": 100}, checkpoint={"interval": 1, "save_best_only": True}))
        and saved(t / "a") == ["step-00000012"]
    ),
    "checkpoint.monitor_metric": monitor_metric,
    "checkpoint.resume": resume_option,
    "checkpoint.allow_changed_data": allow_changed_data,
    "checkpoint.backup_dir": lambda t, m: (
        bool(train(t / "a", checkpoint={"backup_dir": "copies"})) and bool(saved(t / "a", "copies"))
    ),
    "checkpoint.max_backups": lambda t, m: (
        bool(
            train(
                t / "a", max_steps=40, validation={"interval": 4}, checkpoint={"backup_dir": "copies", "max_backups": 1}
            )
        )
        and len(saved(t / "a", "copies")) == 1
    ),
    "checkpoint.compress": lambda t, m: (
        bool(train(t / "a", checkpoint={"compress": True})) and newest(t / "a", "weights.safetensors.zlib").exists()
    ),
    "checkpoint.verify_integrity": verify_integrity,
    "checkpoint.snapshot_optimizer": lambda t, m: "can't be resumed" in resumable(t, snapshot_optimizer=False),
    "checkpoint.snapshot_scheduler": lambda t, m: (
        resumable(t, snapshot_scheduler=False) == "resumed" and not metadata(t / "run")["scheduler_state_available"]
    ),
    "checkpoint.snapshot_features": snapshot_features,
    "checkpoint.snapshot_random_states": lambda t, m: (
        "random/torch" not in str(resumable(t, snapshot_random_states=False))
        and b"torch" not in newest(t / "run", "state.safetensors").read_bytes()[:4000]
    ),
    "checkpoint.save_model_architecture": lambda t, m: (
        bool(train(t / "a", checkpoint={"save_model_architecture": False}))
        and not newest(t / "a", "model.txt").exists()
    ),
    "checkpoint.versioning": lambda t, m: (
        bool(train(t / "a", checkpoint={"versioning": False})) and metadata(t / "a").get("version") is None
    ),
    "checkpoint.track_git_info": lambda t, m: (
        bool(train(t / "a", checkpoint={"track_git_info": False})) and not metadata(t / "a").get("git_commit")
    ),
    "checkpoint.track_system_info": lambda t, m: (
        bool(train(t / "a", checkpoint={"track_system_info": False})) and not metadata(t / "a").get("hostname")
    ),
    "checkpoint.track_model_hash": lambda t, m: (
        bool(train(t / "a", checkpoint={"track_model_hash": False})) and not metadata(t / "a").get("model_hash")
    ),
    "logging.interval": lambda t, m: (
        bool(train(t / "a", logging={"interval": 3}))
        and [row["step"] for row in lines(t / "a", "train")] == [3, 6, 9, 12]
    ),
    "logging.tensorboard": lambda t, m: (
        bool(train(t / "a", logging={"tensorboard": True})) and any((t / "a/events").iterdir())
    ),
    "logging.wandb": lambda t, m: bool(wandb(t, m)),
    "logging.mlflow": lambda t, m: reported(t, m, "mlflow", "MLflow"),
    "logging.trackio": lambda t, m: reported(t, m, "trackio", "Trackio"),
    "logging.wandb_interval": lambda t, m: (
        [call[1][0]["step"] for call in logged(wandb(t, m, wandb_interval=5, interval=9))] == [5, 9, 10]
    ),
    "logging.wandb_project": lambda t, m: init_of(wandb(t, m, wandb_project="voices"))["project"] == "voices",
    "logging.wandb_entity": lambda t, m: init_of(wandb(t, m, wandb_entity="team"))["entity"] == "team",
    "logging.wandb_name": lambda t, m: init_of(wandb(t, m, wandb_name="first"))["name"] == "first",
    "logging.wandb_tags": lambda t, m: list(init_of(wandb(t, m, wandb_tags=["x"]))["tags"]) == ["x"],
    "logging.log_metrics": log_metrics,
    "logging.log_model": log_model,
    "logging.log_gradients": lambda t, m: (
        bool(train(t / "a", logging={"log_gradients": True}))
        and {"grad_norm/0", "grad_norm/3"} <= lines(t / "a", "train")[0].keys()
    ),
    "logging.system": lambda t, m: (
        bool(train(t / "a", logging={"system": True}))
        and any(name.startswith("system/") for name in lines(t / "a", "train")[0])
    ),
    "logging.verbosity": verbosity,
    "performance.num_workers": lambda t, m: len(loading_processes(t, 2)[0] - {os.getpid()}) == 2,
    "performance.pin_memory": lambda t, m: source(t, m, pin_memory=True)["pin_memory"] is True,
    "performance.prefetch_factor": lambda t, m: source(t, m, prefetch_factor=5)["prefetch_factor"] == 5,
    "performance.persistent_workers": persistent_workers,
    "performance.compile_model": compile_model,
    "performance.batch_shim": batch_shim,
    "performance.split_by_length": split_by_length,
    "performance.matmul_precision": matmul_precision,
    "performance.threads": threads,
    "performance.memory_management": lambda t, m: (
        train(t / "a", max_steps=1).memory is not None
        and train(t / "b", max_steps=1, performance={"memory_management": False}).memory is None
    ),
    "performance.stuck_minutes": lambda t, m: (
        train(t / "a", performance={"stuck_minutes": 2.0}, max_steps=1).train_source._stuck_seconds == 90.0
    ),
    "performance.profile_batches": lambda t, m: (
        bool(train(t / "a", performance={"profile_batches": 4})) and any((t / "a/profile").iterdir())
    ),
    "distributed.backend": lambda t, m: ranks(m, backend="mpi")["backend"] == "mpi",
    "distributed.world_size": world_size,
    "distributed.strategy": lambda t, m: (
        "static_graph" in ranks(m, strategy="ddp") and "static_graph" not in ranks(m, strategy="fsdp")
    ),
    "distributed.sync_gradient_barrier": sync_gradient_barrier,
    "distributed.find_unused_parameters": lambda t, m: (
        ranks(m, find_unused_parameters=True)["find_unused_parameters"] is True
    ),
    "distributed.gradient_as_bucket_view": lambda t, m: (
        ranks(m, gradient_as_bucket_view=False)["gradient_as_bucket_view"] is False
    ),
    "distributed.static_graph": lambda t, m: ranks(m, static_graph=True)["static_graph"] is True,
    "distributed.timeout_minutes": lambda t, m: ranks(m, timeout_minutes=3.0)["timeout"].total_seconds() == 180,
    "ema.decay": lambda t, m: differ(
        t,
        {"ema": {"decay": 0.9, "warmup": False}},
        {"ema": {"decay": 0.5, "warmup": False}},
        what=lambda f: losses(f, "validation"),
    ),
    "ema.warmup": lambda t, m: differ(
        t, {"ema": {"warmup": True}}, {"ema": {"warmup": False}}, what=lambda f: losses(f, "validation")
    ),
    "ema.validate_with": ema_validate_with,
    "callbacks": callbacks,
    "feature_redraw_interval": fixed_projection,
    "fixed_projection": fixed_projection,
    "init_from": init_from,
    "profiling": lambda t, m: bool(train(t / "a", profiling=True)) and any((t / "a/profile").glob("trace*.json")),
    "device": device_option,
    "tuning.library": tuning_library,
    "tuning.search_space": tuning_search_space,
    "tuning.n_trials": lambda t, m: len(search(t / "a", n_trials=3).trials) == 3,
    "tuning.metric": lambda t, m: (
        search(t / "a", n_trials=2, metric="weight", direction="minimize").best.metric
        != search(t / "b", n_trials=2).best.metric
    ),
    "tuning.direction": tuning_direction,
    "tuning.pruning": tuning_pruning,
}


@pytest.mark.parametrize("option", OBSERVED)
@pytest.mark.slow
def test_the_option_changes_something(option, tmp_path, monkeypatch, capsys):
    observe = OBSERVED[option]
    arguments = (tmp_path, monkeypatch, capsys) if observe is verbosity else (tmp_path, monkeypatch)
    assert observe(*arguments)


def test_every_option_is_observed():
    def paths(model, prefix=""):
        for name, field in model.model_fields.items():
            inner = [
                a for a in getattr(field.annotation, "__args__", (field.annotation,)) if hasattr(a, "model_fields")
            ]
            if inner and not str(field.annotation).startswith("tuple"):
                yield from paths(inner[0], f"{prefix}{name}.")
            else:
                yield prefix + name

    assert set(paths(TrainingSettings)) == set(OBSERVED)


def test_an_option_that_nothing_reads_is_caught(tmp_path):
    """The observations see a dead option: one that only changes the settings object."""
    dead = TrainingSettings(max_steps=3).model_copy(update={"nothing": 1})
    assert dead.max_steps == 3
    assert not differ(tmp_path, {}, {"distributed": {"timeout_minutes": 3.0}})
