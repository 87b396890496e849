"""Checkpoints in another folder than the default one: found, gone on from, and never mixed with another run's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from phonate.cli import main
from phonate.training.checkpoints import best_or_latest

RECIPE = """\
task: my_task
size: tiny
training:
  max_steps: 4
  batch_size: 16
  checkpoint: {interval: 2, save_dir: SAVE_DIR, backup_dir: copies}
  logging: {tensorboard: false, interval: 2}
"""


def write(tmp_path: Path, save_dir: str) -> Path:
    """The recipe with this `save_dir`; returns the folder of its checkpoints."""
    (tmp_path / "mine.yaml").write_text(RECIPE.replace("SAVE_DIR", save_dir))
    return (tmp_path / "runs/mine" / save_dir).resolve()


@pytest.mark.slow
@pytest.mark.parametrize("save_dir", ["kept", "out/ckpts", "../beside", "/absolute"])
def test_a_run_is_found_and_gone_on_with(
    save_dir: str, train_my_task: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_dir = save_dir.replace("/absolute", f"{tmp_path}/absolute")
    folder = write(tmp_path, save_dir)
    assert main(train_my_task) == 0
    assert (tmp_path / "runs/mine/copies").is_dir()
    capsys.readouterr()
    assert main(["checkpoints", "list", "runs/mine", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert Path(listed["folder"]).resolve() == folder
    assert {row["step"] for row in listed["checkpoints"]} == {2, 4}
    assert best_or_latest("runs/mine").resolve().parent == folder
    for number, named in enumerate(("runs/mine", "auto"), start=1):
        steps = 4 + 2 * number
        assert main([*train_my_task, "--resume", named, f"training.max_steps={steps}", "--json"]) == 0
        assert json.loads(capsys.readouterr().out) | {"metrics": {}} == {
            "run": "runs/mine",
            "step": steps,
            "metrics": {},
        }
    assert (folder / "step-00000008").is_dir()


@pytest.mark.parametrize("named", ["runs/mine/out/ckpts", "runs/mine/out/ckpts/step-00000004"])
def test_a_checkpoint_is_gone_on_with_in_its_run(
    named: str, train_my_task: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(tmp_path, "out/ckpts")
    assert main(train_my_task) == 0
    capsys.readouterr()
    assert main([*train_my_task, "--resume", named, "training.max_steps=6", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["run"] == "runs/mine"
    assert (folder / "step-00000006").is_dir()
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["mine"]


def test_a_checkpoint_whose_run_is_elsewhere_needs_the_runs_name(
    train_my_task: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(tmp_path, f"{tmp_path}/absolute")
    assert main(train_my_task) == 0
    resume = [*train_my_task, "--resume", str(folder / "step-00000004"), "training.max_steps=6"]
    assert main(resume) == 2
    assert "name the run with --output" in capsys.readouterr().err
    assert main([*resume, "--output", "runs/mine"]) == 0
    assert (folder / "step-00000006").is_dir()


@pytest.mark.parametrize("resume", [[], ["--resume", "auto"]])
def test_a_new_run_leaves_the_checkpoints_of_another_alone(
    resume: list[str], train_my_task: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, f"{tmp_path}/absolute")
    assert main(train_my_task) == 0
    assert main([*train_my_task, *resume, "--output", "runs/another"]) == 2
    assert "holds the checkpoints of another run" in capsys.readouterr().err


def test_a_run_whose_save_dir_is_changed_goes_on_from_the_old_one(
    train_my_task: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "kept")
    assert main(train_my_task) == 0
    folder = write(tmp_path, "other")
    assert main([*train_my_task, "--resume", "auto", "training.max_steps=6"]) == 0
    assert "resumed from" in (tmp_path / "runs/mine/logs/training.log").read_text()
    assert [path.name for path in folder.glob("step-*")] == ["step-00000006"]
