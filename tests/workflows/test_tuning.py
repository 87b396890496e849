"""Searches for hyperparameters: every run is a run, bad ones are stopped, and a search that was killed continues."""

from __future__ import annotations

import csv
import dataclasses
import importlib.util
import json
import os
import signal
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import phonate_process
from installed import missing
from phonate_process import Process

if missing("optuna"):
    pytest.skip("needs optuna: pip install 'phonate[tuning]'", allow_module_level=True)

import phonate
from phonate.cli import main
from phonate.config.errors import InputError, MissingPackageError, RecipeError, TrainingError
from phonate.config.metrics import Metric
from phonate.config.registry import load_plugin
from phonate.config.resolve import resolve
from phonate.config.tasks import TASKS, TaskInfo
from phonate.training.plan import plan
from phonate.training.settings import RangeSettings
from phonate.workflows import train as workflow
from phonate.workflows import tuning as searches
from phonate.workflows.tuning import _space

PLUGIN = Path(__file__).parents[1] / "training" / "plugin_task.py"
LR = "training.optimizer.lr"
QUICK = {
    "training.max_steps": 12,
    "training.batch_size": 8,
    "training.validation": {"interval": 4, "previews": False},
    "training.checkpoint.interval": 4,
    "training.performance.num_workers": 0,
    "training.logging": {"interval": 12, "tensorboard": False, "system": False},
}


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    load_plugin(PLUGIN)  # the tests resolve the recipes that the runs wrote
    path = tmp_path / "plugin.yaml"
    path.write_text("task: plugin\n")
    return path


def settings(space: dict[str, Any], **tuning: Any) -> dict[str, Any]:
    return {**QUICK, "training.tuning": {"library": "optuna", "search_space": space, **tuning}}


def search(recipe: Path, changes: dict[str, Any], **options: Any) -> searches.Search:
    options = {"plugins": (PLUGIN,), **options}
    return workflow.search(plan(recipe, changes, mode="cpu", output=recipe.parent / "run", **options))


def test_a_search_finds_what_learns(recipe: Path) -> None:
    """Rates that are drawn evenly in the logarithm between useless and good."""
    found = search(recipe, settings({LR: {"low": 1e-7, "high": 1e-2, "log": True}}, n_trials=6))
    run = recipe.parent / "run"
    assert [one.number for one in found.trials] == list(range(6))
    rates = [one.values[LR] for one in found.trials]
    assert len(set(rates)) == 6
    assert found.best.metric == min(one.metric for one in found.trials if one.metric is not None)
    for one in found.trials:
        trained = resolve(run / one.run / "recipe.yaml").recipe.training
        assert trained.optimizer.lr == one.values[LR]
        assert trained.tuning.library is None
        assert list((run / one.run / "checkpoints").glob("step-*"))
        lines = [json.loads(line) for line in (run / one.run / "metrics.jsonl").read_text().splitlines()]
        measured = [line["loss"] for line in lines if line["split"] == "validation"]
        assert one.metric == min(measured)
    best = resolve(run / "best.yaml").recipe.training
    assert best.optimizer.lr == found.best.values[LR]
    table = list(csv.DictReader((run / "trials.csv").open(encoding="utf-8")))
    assert table[0]["run"] == found.best.run
    assert len(table) == 6
    complete = [float(row["val_loss"]) for row in table if row["state"] == "complete"]
    assert complete == sorted(complete)


def test_lists_of_any_values_and_whole_numbers(recipe: Path) -> None:
    space = {
        "training.optimizer.betas": [[0.9, 0.95], [0.8, 0.9]],
        "training.batch_size": {"low": 4, "high": 8, "step": 2},
        "training.ema": [None, {"decay": 0.9}],
    }
    found = search(recipe, settings(space, n_trials=4))
    for one in found.trials:
        trained = resolve(recipe.parent / "run" / one.run / "recipe.yaml").recipe.training
        assert list(trained.optimizer.betas) == one.values["training.optimizer.betas"]
        assert trained.batch_size == one.values["training.batch_size"] in (4, 6, 8)
        assert (trained.ema is None) == (one.values["training.ema"] is None)


@pytest.mark.slow
def test_hopeless_runs_are_stopped_at_a_validation(recipe: Path) -> None:
    changes = settings({LR: [1e-2, 0.0]}, n_trials=14) | {"training.random_seed": 1}
    found = search(recipe, changes)
    pruned = [one for one in found.trials if one.state == "pruned"]
    assert pruned
    assert all(one.values[LR] == 0.0 and one.step < 12 for one in pruned)
    assert all(one.number >= 5 for one in pruned)
    every = {**changes, "training.tuning.pruning": False}
    kept = workflow.search(plan(recipe, every, plugins=(PLUGIN,), output=recipe.parent / "whole"))
    assert all(one.state == "complete" and one.step == 12 for one in kept.trials)
    assert any(one.values[LR] == 0.0 for one in kept.trials[5:])


def test_a_metric_that_is_better_when_higher_is_maximised(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    declared = dataclasses.replace(TASKS.find("plugin"), info=TaskInfo(metrics=(Metric("weight", "higher"),)))
    monkeypatch.setattr(TASKS, "_registered", {**TASKS._registered, "plugin": declared})
    changes = settings({LR: [1e-2, 0.0]}, n_trials=4, metric="val_weight", pruning=False)
    found = search(recipe, changes, plugins=[])
    assert {one.values[LR] for one in found.trials} == {1e-2, 0.0}
    assert found.best.metric == max(one.metric for one in found.trials if one.metric is not None)
    assert found.rows()[0][0] == found.best.run
    best = resolve(recipe.parent / "run" / "best.yaml").recipe.training
    assert best.optimizer.lr == found.best.values[LR]


def test_a_search_asks_for_a_direction_that_nobody_declares(recipe: Path) -> None:
    with pytest.raises(InputError, match=r"weight.*set training\.tuning\.direction to minimize or maximize"):
        search(recipe, settings({LR: [1e-2, 0.0]}, metric="weight"))


@pytest.mark.slow
def test_a_killed_search_goes_on_with_the_run_that_it_was_in(recipe: Path) -> None:
    run = recipe.parent / "run"
    changes = settings({LR: {"low": 1e-4, "high": 1e-2, "log": True}}, n_trials=3) | {"training.max_steps": 40}
    arguments = [f"{key}={json.dumps(value)}" for key, value in changes.items()]
    command = ["--plugin", str(PLUGIN), "train", str(recipe), *arguments]
    command += ["--output", str(run), "--mode", "cpu", "--resume", "auto"]
    process = Process(*command, env={**os.environ, "SLOW_DATA": "0.02"})
    interrupted = run / "trials/trial-0001"
    while not (interrupted / "checkpoints/step-00000008").is_dir():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    stopped_at = resolve(interrupted / "recipe.yaml").recipe.training.optimizer.lr
    assert phonate_process.run(*command).returncode == 0
    table = list(csv.DictReader((run / "trials.csv").open(encoding="utf-8")))
    assert sorted(row["run"] for row in table) == [f"trials/trial-{number:04d}" for number in range(3)]
    again = next(row for row in table if row["run"] == "trials/trial-0001")
    assert float(again[LR]) == pytest.approx(stopped_at, rel=1e-4)
    events = [json.loads(line) for line in (interrupted / "metrics.jsonl").read_text().splitlines()]
    assert any(line["split"] == "event" and "resumed" in line.values() for line in events)
    assert len({row[LR] for row in table}) == 3


def test_more_runs_are_added_to_a_finished_search(recipe: Path) -> None:
    space = {LR: {"low": 1e-4, "high": 1e-2, "log": True}}
    first = search(recipe, settings(space, n_trials=2))
    with pytest.raises(InputError, match='resume="auto"'):
        search(recipe, settings(space, n_trials=4))
    second = search(recipe, settings(space, n_trials=4), resume="auto")
    assert second.trials[:2] == first.trials
    assert len({one.values[LR] for one in second.trials}) == 4
    named = phonate.train(recipe.parent / "run", resume="auto", mode="cpu")
    assert named.run.path.parent.parent == recipe.parent / "run"


def test_the_command_prints_the_table_and_python_returns_the_best(
    recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = settings({LR: [1e-2, 1e-3]}, n_trials=2)
    arguments = [f"{key}={json.dumps(value)}" for key, value in changes.items()]
    call = ["--plugin", str(PLUGIN), "train", str(recipe), *arguments, "--mode", "cpu"]
    assert main([*call, "--output", str(recipe.parent / "run")]) == 0
    printed = capsys.readouterr().out
    assert "trials/trial-0000" in printed
    assert "best.yaml" in printed
    assert main([*call, "--output", str(recipe.parent / "other"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["best"]["metric"] == min(one["metric"] for one in document["trials"])
    trained = phonate.train(recipe, changes, output=recipe.parent / "third", mode="cpu")
    assert trained.run.path.parent == recipe.parent / "third/trials"
    assert trained.metrics["val_loss"] == document["best"]["metric"]


def test_a_run_that_fails_is_listed_and_the_search_goes_on(recipe: Path) -> None:
    """A batch of 0 items is refused, 4 are not."""
    found = search(recipe, settings({"training.batch_size": [0, 4]}, n_trials=6))
    failed = [one for one in found.trials if one.state == "failed"]
    assert failed
    assert all(one.values["training.batch_size"] == 0 and "batch_size" in one.reason for one in failed)
    assert found.best.values == {"training.batch_size": 4}
    table = list(csv.DictReader((recipe.parent / "run/trials.csv").open(encoding="utf-8")))
    assert "batch_size" in table[-1]["reason"]


def test_a_search_without_hope_ends(recipe: Path) -> None:
    with pytest.raises(TrainingError, match=r"3 runs failed: .*batch_size"):
        search(recipe, settings({"training.batch_size": [0]}, n_trials=10))


def test_mistakes_are_found_before_anything_is_trained(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RecipeError, match=r"'training\.optimizer\.lrr'; did you mean training\.optimizer\.lr\?"):
        search(recipe, settings({"training.optimizer.lrr": [1, 2]}))
    with pytest.raises(RecipeError, match=r"'lr'; did you mean training\.optimizer\.lr\?"):
        search(recipe, settings({"lr": [1e-4, 3e-4]}))
    assert not (recipe.parent / "run").exists()
    with pytest.raises(RecipeError, match="search_space"):
        search(recipe, settings({}))
    with pytest.raises(RecipeError, match=r"low.* high"):
        search(recipe, settings({LR: {"low": 1.0, "high": 0.1}}))
    with pytest.raises(InputError, match=r"training.tuning.metric: .*val_los.*training.tuning.direction"):
        search(recipe, settings({LR: [1e-2]}, metric="val_los", n_trials=3))
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="torchrun"):
        search(recipe, settings({LR: [1e-2]}))


@pytest.mark.parametrize(
    ("library", "package", "extra"), [("optuna", "optuna", "tuning"), ("raytune", "ray", "raytune")]
)
def test_a_missing_library_is_one_line(
    recipe: Path, monkeypatch: pytest.MonkeyPatch, library: str, package: str, extra: str
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == package else find(name, *rest))
    changes = settings({LR: [1e-2]}) | {"training.tuning.library": library}
    expected = rf"training.tuning.library {library} .*pip install 'phonate\[{extra}\]'"
    with pytest.raises(MissingPackageError, match=expected):
        search(recipe, changes)


def test_ray_draws_the_values_that_a_range_describes() -> None:
    """The values of a range with a step start at `low`; Ray's own quantised distributions round to multiples."""
    names = ("choice", "uniform", "loguniform", "randint", "lograndint")
    tune = SimpleNamespace(**{name: partial(lambda name, *values: (name, *values), name) for name in names})

    def drawn(**options: Any) -> Any:
        return _space(tune, RangeSettings(**options))

    assert drawn(low=1, high=10, step=3) == ("choice", [1, 4, 7, 10])
    assert drawn(low=0.1, high=0.6, step=0.25) == ("choice", pytest.approx([0.1, 0.35, 0.6]))
    assert drawn(low=1, high=10) == ("randint", 1, 11)
    assert drawn(low=1, high=10, log=True) == ("lograndint", 1, 11)
    assert drawn(low=0.1, high=1.0) == ("uniform", 0.1, 1.0)


@pytest.mark.parametrize("id", ["b1f07_00003", "85173_00003"], ids=["letters", "digits alone"])
def test_the_number_of_a_trial_of_ray(id: str) -> None:
    """A tenth of the random parts are digits alone."""
    assert searches._number(id) == searches._number(f"_train_{id}_3_lr=0.1_2026-11-28_19-11-31") == 3


@pytest.mark.slow
def test_ray_searches_too(recipe: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    ray = pytest.importorskip("ray", reason="needs Ray: pip install 'phonate[raytune]'")
    request.addfinalizer(ray.shutdown)
    ended: list[None] = []
    # the second search finds the cluster of the first
    monkeypatch.setattr(ray, "shutdown", lambda: ended.append(None))
    space = {LR: {"low": 1e-6, "high": 1e-2, "log": True}, "training.batch_size": [0, 4]}
    changes = settings(space, n_trials=3) | {"training.tuning.library": "raytune"}
    found = search(recipe, changes)
    assert len(ended) == 1
    run = recipe.parent / "run"
    assert [one.number for one in found.trials] == list(range(3))
    assert {one.state for one in found.trials} == {"complete", "failed"}
    for one in found.trials:
        assert (one.state == "failed") == (one.values["training.batch_size"] == 0)
        if one.state == "complete":
            trained = resolve(run / one.run / "recipe.yaml").recipe.training
            assert trained.optimizer.lr == pytest.approx(one.values[LR])
    assert resolve(run / "best.yaml").recipe.training.optimizer.lr == found.best.values[LR]
    again = search(recipe, changes, resume="auto")
    assert [one.values for one in again.trials] == [one.values for one in found.trials]
