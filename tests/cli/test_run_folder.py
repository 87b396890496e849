"""The folder of a run: started again after a failed start, never taken from another process, resumed as it was."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import phonate
import phonate_process
from phonate.cli import main
from phonate.config.errors import InputError, Interrupted, RecipeError
from phonate.config.tasks import TASKS
from phonate.training.checkpoints import files
from phonate.training.checkpoints.loading import _resolved as resolved
from phonate.training.registries import CALLBACKS
from phonate.workflows.scaffold import scaffold

RECIPE = """\
task: my_task
size: tiny
training:
  max_steps: 4
  batch_size: 16
  checkpoint: {interval: 2}
  logging: {tensorboard: false, interval: 2}
"""


@pytest.fixture
def arguments(train_my_task: list[str]) -> list[str]:
    Path("mine.yaml").write_text(RECIPE)
    return [*train_my_task, "--output", "run"]


@pytest.mark.parametrize(
    "mistake",
    [
        ["training.init_from=nowhere"],
        ["training.optimizer.lr=1e30", "training.gradient_clipping=null"],
        ["training.callbacks=[{type: pruning, options: {amount: 2.0}}]"],
    ],
)
def test_a_failed_start_does_not_block_the_corrected_command(
    mistake: list[str], arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, *mistake]) in (1, 2)
    assert main(arguments) == 0, capsys.readouterr().err
    assert main(arguments) == 2
    said = "run holds a run of 4 steps; continue it with --resume auto, or begin another with --output run-2"
    assert said in capsys.readouterr().err


def test_the_error_of_a_damaged_recipe_says_where_its_copy_is(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 0
    recipe, copy = tmp_path / "run/recipe.yaml", "run/checkpoints/step-00000004/recipe.yaml"
    for damage in (b"\xff\xfe", b"", b"task: ["):
        recipe.write_bytes(damage)
        for command in ([*arguments, "--resume", "auto"], ["train", "run", *arguments[2:4], "--resume", "run"]):
            assert main(command) == 2
            assert capsys.readouterr().err.splitlines()[-1].endswith(f"; its copy is in {copy}")
    recipe.write_bytes((tmp_path / copy).read_bytes())
    assert main([*arguments, "--resume", "auto"]) == 0


@pytest.mark.slow
def test_a_run_whose_plugin_is_missing_names_it(arguments: list[str], tmp_path: Path) -> None:
    """Without it, its task is unknown: in another process, where nothing has loaded it."""
    assert main(arguments) == 0
    done = phonate_process.run("evaluate", "run", cwd=tmp_path)
    assert done.returncode == 2
    plugin = Path(arguments[3]).resolve()
    assert f"its run was trained with a plug-in; load it with --plugin {plugin}" in done.stderr
    done = phonate_process.run("evaluate", "run", "--plugin", plugin, cwd=tmp_path)
    assert "--plugin" not in done.stderr


def test_the_plugins_of_training_are_not_needed_for_inference_and_others_are_named(
    train_my_task: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    callback, _ = scaffold("callback", "own_callback", tmp_path)
    Path("mine.yaml").write_text(RECIPE)
    Path("rows.jsonl").write_text('{"source": "a b c", "target": "c b a"}\n' * 40)
    options = [
        "training.callbacks=[{type: own_callback}]",
        "data.path=rows.jsonl",
        "training.max_steps=1",
        "--mode",
        "cpu",
        "--output",
        "sequence",
    ]
    sequence = ["train", "sequence", "size=tiny", "--plugin", str(callback), *options]
    for run, command in (("sequence", sequence), ("mine", [*train_my_task, "--output", "mine"])):
        assert main(command) == 0
        assert main(["checkpoints", "export", run, "-o", f"{run}-exported"]) == 0
        assert main(["checkpoints", "verify", f"{run}-exported"]) == 0
    monkeypatch.delitem(CALLBACKS._registered, "own_callback")
    monkeypatch.delitem(TASKS._registered, "my_task")
    monkeypatch.setattr("phonate.config.registry._loaded", [])
    resolved.cache_clear()
    for place in ("sequence", "sequence-exported"):
        assert phonate.load(place, "sequence")
    for place in ("mine", "mine-exported"):
        with pytest.raises(RecipeError, match=r"with phonate\.config\.registry\.load_plugin\('.*my_task\.py'\)$"):
            phonate.load(place)
    capsys.readouterr()
    for command in (["explain"], ["train", "--resume", "auto"]):
        for run, plugin in (("sequence", "own_callback"), ("mine", "my_task")):
            assert main([command[0], run, *command[1:]]) == 2
            assert f"load it with --plugin {tmp_path / plugin}.py" in capsys.readouterr().err


def test_a_start_that_was_killed_while_it_wrote_does_not_block_the_next(arguments: list[str], tmp_path: Path) -> None:
    for name in ("logs/training.log", ".recipe.yaml.123", ".system.json.99", "metrics.jsonl.new", ".lock"):
        (tmp_path / "run" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "run" / name).write_text("")
    assert main(arguments) == 0


def test_a_failed_data_path_does_not_block_the_corrected_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    train = ["train", "conversion", "--mode", "cpu", "--output", "run"]
    for path in ("/nope", "/neither"):
        assert main([*train, f"data.path={path}"]) == 2
        assert path in capsys.readouterr().err


@pytest.mark.parametrize(
    "names", [["notes.txt"], ["recipe.yaml"], ["logs/a", "recipe.yaml"], ["logs/a", "song.wav"], ["metrics.jsonl"]]
)
def test_a_folder_that_is_not_a_failed_start_is_refused(
    names: list[str], arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in names:
        (tmp_path / "run" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "run" / name).write_text("mine")
    assert main(arguments) == 2
    assert "run is not empty" in capsys.readouterr().err
    assert all((tmp_path / "run" / name).read_text() == "mine" for name in names)


def test_metrics_without_a_checkpoint_are_not_replaced_without_a_word(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run" / "logs").mkdir(parents=True)
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 50, "split": "train", "loss": 1.0}\n')
    assert main(arguments) == 2
    assert "--resume auto" in capsys.readouterr().err
    assert main([*arguments, "--resume", "auto"]) == 0


@pytest.mark.parametrize(
    "source", ["exp/night", "exp/night/", "exp/night/recipe.yaml", "exp/night/checkpoints/step-00000002"]
)
def test_auto_resumes_the_run_that_was_given_as_the_recipe(
    source: str, arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = arguments[2:-2]
    assert main([*arguments[:-1], "exp/night"]) == 0
    assert main(["train", source, *options, "training.max_steps=8", "--resume", "auto", "--json"]) == 0
    outcome = json.loads(capsys.readouterr().out.partition("\n")[2])
    assert Path(outcome["run"]) == Path("exp/night")
    assert outcome["step"] == 8
    assert not (tmp_path / "runs").exists()
    assert main(["train", source, *options]) == 0  # not resumed: another run with the same recipe
    assert (tmp_path / "runs").is_dir()


def test_a_run_that_was_stopped_in_its_preparations_begins_from_its_folder(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the options that it was given at first; those of a training that was refused are not kept."""

    def stopped(*_: object, **__: object) -> None:
        raise Interrupted("stopped", 2)

    def refused(*_: object, **__: object) -> None:
        raise InputError("refused")

    options = ["training.max_steps=3", "training.optimizer.lr=0.002"]
    for preparation, code, kept in ((refused, 2, False), (stopped, 130, True)):
        monkeypatch.setattr("phonate.training.trainer.plan_sources", preparation)
        assert main([*arguments, *options]) == code
        assert (tmp_path / "run").exists() == kept
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert main(["speak", "run", "Hello."]) == 2
    assert "its training has saved no checkpoint yet; " in capsys.readouterr().err
    assert main(["train", "run", *arguments[2:4], "--resume", "auto"]) == 0
    assert "settings changed" not in capsys.readouterr().err
    assert main([*arguments[:-1], "other", *options]) == 0
    for name in (files.RECIPE, f"checkpoints/step-00000003/{files.WEIGHTS}"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "other" / name).read_bytes()


def test_a_recipe_of_that_name_is_no_run(arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "recipe.yaml").write_text(RECIPE)
    assert main(["train", "mine", *arguments[2:-2], "--resume", "auto"]) == 0
    assert {path.name for path in (tmp_path / "mine").iterdir()} == {"recipe.yaml"}
    assert (tmp_path / "runs/mine/checkpoints").is_dir()


@pytest.mark.parametrize("content", [b"4711\n", b"\0" * 40, b"\xff\xfe", b"not a number"])
def test_a_damaged_lock_does_not_block_an_intact_run(content: bytes, arguments: list[str], tmp_path: Path) -> None:
    assert main(arguments) == 0
    for folder in ("run", "run/checkpoints"):
        (tmp_path / folder / ".lock").write_bytes(content)
    assert main([*arguments, "--resume", "auto", "training.max_steps=8"]) == 0
    assert (tmp_path / "run/checkpoints/step-00000008").is_dir()


HOLD = """\
import sys
from pathlib import Path
from phonate.training.checkpoints.files import folder_lock
folder_lock(Path(sys.argv[1]))
print("locked", flush=True)
sys.stdin.read()
"""


def test_a_second_resume_touches_nothing_of_the_run_that_trains(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(files, "PATIENCE_SECONDS", 0.0)
    assert main(arguments) == 0
    run = tmp_path / "run"
    with (run / "metrics.jsonl").open("a") as file:  # the other process is at step 5
        file.write('{"step": 5, "split": "train", "loss": 1.0}\n')
    command = [sys.executable, "-c", HOLD, str(run)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        ours = {".lock", "error.txt"}
        before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name not in ours}
        for resume in (["--resume", "auto"], ["--resume", "run"]):
            assert main([*arguments, *resume, "training.max_steps=8"]) == 1
            assert f"another process ({other.pid}) is training here" in capsys.readouterr().err
        after = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name not in ours}
        other.communicate()
    assert after == before
    assert main([*arguments, "--resume", "auto", "training.max_steps=8"]) == 0


def test_a_resume_says_which_settings_were_changed(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 0
    capsys.readouterr()
    changes = ["training.max_steps=6", "training.optimizer.lr=0.5", "training.random_seed=7", "training.batch_size=8"]
    assert main([*arguments, *changes, "--resume", "auto"]) == 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "settings changed" in line]
    for said in ("max_steps 4 -> 6", "optimizer.lr 0.0001 -> 0.5", "random_seed 42 -> 7", "batch_size 16 -> 8"):
        assert f"training.{said}" in line
    assert main([*arguments, *changes, "training.max_steps=8", "--resume", "auto"]) == 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "settings changed" in line]
    assert line.endswith("settings changed since the checkpoint: training.max_steps 6 -> 8")


def test_a_resume_with_another_model_is_refused_in_one_line(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 0
    capsys.readouterr()
    width = json.loads((tmp_path / "run" / "hyperparameters.json").read_text())["model"]["width"]
    assert main([*arguments, "model.width=48", "training.max_steps=6", "--resume", "auto"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: ")
    assert f"model.width {width} -> 48" in error
    assert "does not fit this model" in error
    assert "there and" in error
    assert "training.init_from=" in error
    assert main([*arguments, "training.max_steps=6", "--resume", "auto"]) == 0


def test_training_starts_from_an_exported_model(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 0
    assert main(["checkpoints", "export", "run", "-o", "exported"]) == 0
    assert main([*arguments, "--output", "second", "training.init_from=exported"]) == 0
    matched = (tmp_path / "second" / "init_from.txt").read_text()
    assert "matched" in matched
    assert "mismatch" not in matched


@pytest.mark.parametrize("name", ["x" * 300, "x" * 300 + "/run"])
def test_a_name_that_is_too_long_is_one_line(
    name: str, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments[:-1], name]) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert "can't make the run's folder (File name too long)" in error
