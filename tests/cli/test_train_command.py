from __future__ import annotations

import gc
import importlib.util
import itertools
import json
import logging
import os
import re
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile

import phonate_process
from phonate.cli import main
from phonate.cli.output import log_to_console
from phonate.cli.training import _estimated
from phonate.compute.distributed import Ranks
from phonate.config.registry import load_plugin
from phonate.config.resolve import resolve
from phonate.data.loading import MicroBatch
from phonate.training.checkpoints.files import RECORDINGS
from phonate.training.checkpoints.loading import Checkpoint, load
from phonate.training.step import TrainStep
from phonate.training.tracking import log_file

RECIPE = """\
task: my_task
size: tiny
training:
  epochs: 2
  batch_size: 16
  logging: {tensorboard: false, interval: 2}
"""


@pytest.fixture
def arguments(train_my_task: list[str]) -> list[str]:
    Path("mine.yaml").write_text(RECIPE)
    return train_my_task


def test_a_training_that_is_stopped_before_its_first_step_says_what_stays(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("phonate.workflows.train.train_plan", lambda *_, **__: os.kill(os.getpid(), signal.SIGINT))
        assert main(arguments) == 130
        assert capsys.readouterr().err == "stopped by Ctrl-C; nothing was saved: the same command begins again\n"
        assert main([*arguments, "--dry-run", "--resume", "auto"]) == 130
        assert capsys.readouterr().err == "stopped by Ctrl-C; nothing was trained: the same command estimates anew\n"
    assert main([*arguments, "training.epochs=1"]) == 0
    capsys.readouterr()
    monkeypatch.setattr("phonate.workflows.train.train_plan", lambda *_, **__: os.kill(os.getpid(), signal.SIGINT))
    assert main([*arguments, "--resume", "auto"]) == 130
    words = shlex.join(["phonate", *arguments, "--resume", "auto"])
    assert capsys.readouterr().err == f"stopped by Ctrl-C; its checkpoints are as before; continue with: {words}\n"


def stopped_before_validation(path: Path, verify: bool) -> Checkpoint:
    """A checkpoint as a signal leaves it between a step and the validation behind it."""
    checkpoint = load(path, verify)
    checkpoint.state["trainer"]["unfinished"] = True
    return checkpoint


def test_a_run_from_its_start_to_a_longer_end(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "training.optimizer.lr=2e-3"]) == 0
    assert re.fullmatch(r"runs/mine: step 8, best val_loss [\d.]+ at step \d+\n", capsys.readouterr().out)
    run = tmp_path / "runs" / "mine"
    resolved = resolve(run)
    assert resolved.recipe.training.optimizer.lr == 2e-3
    assert resolved.recipe == resolve("mine.yaml", ["training.optimizer.lr=2e-3"]).recipe
    plugin = tmp_path / "my_task.py"
    assert json.loads((run / "plugins.json").read_text()) == {"plugins": [load_plugin(plugin)]}

    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert "runs/mine holds a run of 8 steps; continue it with --resume auto" in error
    assert "--output runs/mine-2" in error

    before = (run / "metrics.jsonl").read_bytes()
    assert main(["train", "runs/mine", "--resume", "auto", "--plugin", str(plugin)]) == 0
    out, error = capsys.readouterr()
    assert error.splitlines() == [
        "this run is finished; add training.epochs=4 to train as long again (any number above 2 trains on)"
    ]
    assert re.fullmatch(r"runs/mine: step 8, best val_loss [\d.]+ at step \d+\n", out)
    assert (run / "metrics.jsonl").read_bytes() == before

    with monkeypatch.context() as patched:
        for module in ("phonate.workflows.train", "phonate.training.checkpoints.loading"):
            patched.setattr(f"{module}.load", stopped_before_validation)
        assert main(["train", "runs/mine", "--resume", "auto", "--plugin", str(plugin)]) == 0
    assert "resumed from runs/mine/checkpoints/step-00000008" in capsys.readouterr().err

    names = ("recipe.yaml", "system.json", "metrics.jsonl", "time.jsonl", "plugins.json")
    records = {name: (run / name).read_bytes() for name in names}
    plugin.write_text(f"{plugin.read_text()}# changed since\n")
    assert main([*arguments, "--resume", "auto", "training.max_steps=5"]) == 0
    assert records == {name: (run / name).read_bytes() for name in records}
    past = "this run is past training.max_steps=5 already, so nothing is trained; add training.max_steps=16 to train as"
    error = capsys.readouterr().err
    assert f"{past} long again (any number above 8 trains on)" in error
    assert "settings changed since the checkpoint: " in error
    assert "time: " not in error

    assert main([*arguments, "--resume", "auto", "training.epochs=3", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["run"], printed["step"]) == ("runs/mine", 12)
    assert printed["metrics"]["val_loss"] > 0


def test_a_run_that_stopped_early_says_in_one_line_how_it_is_trained_on(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stopping = "training.early_stopping={patience: 1, min_delta: 100.0}"
    assert main([*arguments, "training.epochs=9", stopping]) == 0
    before = (tmp_path / "runs/mine/time.jsonl").read_bytes()
    capsys.readouterr()
    resume = ["train", "runs/mine", "--resume", "auto", "--plugin", str(tmp_path / "my_task.py")]
    assert main(resume) == 0
    out, error = capsys.readouterr()
    told = r"this run stopped early: val_loss has not improved on [\d.]+ for 1 validation; add "
    mend = r"training\.early_stopping\.patience=2 to train on \(any number above 1 does\)\n"
    assert re.fullmatch(told + mend, error)
    assert out.startswith("runs/mine: step 8, best val_loss ")
    assert (tmp_path / "runs/mine/time.jsonl").read_bytes() == before
    plugins = tmp_path / "runs/mine/plugins.json"
    plugins.write_text('{"plugins": []}')  # as with another plug-in: the run is still what it was
    assert main([*resume, "training.logging.interval=3"]) == 0
    assert re.search(told, capsys.readouterr().err)
    assert plugins.read_text() == '{"plugins": []}'
    assert main([*resume, "training.early_stopping.patience=2"]) == 0
    assert capsys.readouterr().out.startswith("runs/mine: step 12, ")


COLLECTOR = """
import gc
from phonate.training.callbacks import CALLBACKS, Callback

class Collector(Callback):
    def on_train_begin(self, trainer):
        print("collects" if gc.isenabled() else "does not collect")

CALLBACKS.register("collector", Collector)
"""


def test_garbage_is_collected_while_training_and_afterwards(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "collector.py").write_text(COLLECTOR)
    assert main([*arguments, "--plugin", "collector.py", "training.callbacks=[{type: collector}]"]) == 0
    assert capsys.readouterr().out.startswith("collects\n")
    assert (gc.isenabled(), gc.get_freeze_count()) == (True, 0)
    assert main(["train", "missing.yaml"]) == 2
    assert (gc.isenabled(), gc.get_freeze_count()) == (True, 0)


def test_of_several_ranks_one_warns_of_what_is_the_same_for_all(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    alike = (
        "data.corpora.validation",
        "data.prepared",
        "tasks.cloning.data",
        "training.phases",
        "training.checkpoints",
    )
    own = ("training.memory", "data.loading", "tasks.recognition.evaluation", "training.data_set")
    for rank, told in (("0", alike + own), ("1", own)):
        monkeypatch.setenv("RANK", rank)
        log_to_console()
        for name in alike + own:
            logging.getLogger(f"phonate.{name}").warning("of %s", name)
        assert capsys.readouterr().err.splitlines() == [f"of {name}" for name in told]
    monkeypatch.undo()
    log_to_console()


def test_a_dry_run_leaves_nothing(arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(tmp_path.rglob("*"))
    assert (
        main([*arguments, "--dry-run", "--json", "training.max_steps=500", "training.scheduler.warmup_steps=60"]) == 0
    )
    printed = capsys.readouterr()
    estimates = json.loads(printed.out)["metrics"]
    assert estimates["steps"] == 500
    assert "warm-up" not in printed.err  # of 60 steps is over at the end of the run, if not in the steps that are timed
    assert estimates["seconds_per_step"] > 0
    assert main([*arguments, "--dry-run"]) == 0
    table = capsys.readouterr().out
    assert re.search(r"^time without validation +[\d.]+ (s|min|h)$", table, re.MULTILINE), "for people, with units"
    assert re.search(r"^memory +[\d.]+ (MiB|GiB)$", table, re.MULTILINE)
    assert [path for path in sorted(tmp_path.rglob("*")) if "__pycache__" not in path.parts] == before


def test_a_recipe_that_resumes_by_itself_says_nothing_of_it_where_it_begins(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--dry-run", "training.checkpoint.resume=auto"]) == 0
    assert "resume" not in capsys.readouterr().err
    assert main([*arguments, "training.epochs=1", "--resume", "auto"]) == 0
    assert "runs/mine: nothing to resume yet" in capsys.readouterr().err, "who asks is told"


def test_a_dry_run_refuses_weights_of_which_none_fits_as_training_does(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = "error: training.init_from: no weight of base/vocoder fits this model"
    assert main([*arguments, "training.init_from=base/vocoder", "--dry-run"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == refused
    assert main([*arguments, "training.init_from=base/vocoder", "--output", "run"]) == 2
    assert f"{refused}; the table is in run/init_from.txt" in capsys.readouterr().err
    assert main([*arguments, "training.max_steps=1", "--output", "run"]) == 0
    assert main([*arguments, "training.init_from=run", "--dry-run"]) == 0
    assert re.search(r"tensors fit$", capsys.readouterr().err, re.MULTILINE)


def test_a_dry_run_of_a_resumed_run_estimates_what_is_left(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "training.max_steps=6"]) == 0
    capsys.readouterr()
    for resume, left in (([], 40), (["--resume", "auto"], 34)):
        output = [] if resume else ["--output", "another"]
        assert main([*arguments, *output, *resume, "training.max_steps=40", "--dry-run", "--json"]) == 0
        estimates = json.loads(capsys.readouterr().out)["metrics"]
        assert estimates["steps"] == left
        assert estimates["hours"] == pytest.approx(left * estimates["seconds_per_step"] / 3600)


def test_a_dry_run_times_short_epochs_whole_by_the_mean(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0

    def step(self: TrainStep, group: Sequence[MicroBatch], *_: object) -> None:
        nonlocal now
        now += sum(len(planned.ids) for planned in group)  # a second for each sample

    monkeypatch.setattr(TrainStep, "__call__", step)
    monkeypatch.setattr("phonate.workflows.train.time", SimpleNamespace(perf_counter=lambda: now, time=time.time))
    for batch_size, seconds in ((48, 32), (24, 64 / 3), (64, 64)):  # of 64 samples: the last batch has 16, 16, 64
        assert main([*arguments, "--dry-run", "--json", f"training.batch_size={batch_size}"]) == 0
        assert json.loads(capsys.readouterr().out)["metrics"]["seconds_per_step"] == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("in_use", "meanwhile"),
    [
        (100.0, ", while other programs used 1.5 of 2 cores"),
        (20.0, ", while other programs used 0.0 of 2 cores"),
        (0.0, ""),
    ],
)
def test_a_dry_run_says_how_many_cores_others_used_meanwhile(
    in_use: float,
    meanwhile: str,
    arguments: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This process took half a second of each; a system that counts nothing shows that all cores were idle."""
    seconds = itertools.count()
    monkeypatch.setattr("psutil.cpu_percent", lambda: in_use)
    monkeypatch.setattr("psutil.cpu_count", lambda: 2)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr("phonate.compute.resources._processor_seconds", lambda: 0.5 * next(seconds))
    monkeypatch.setattr("phonate.compute.resources.time", SimpleNamespace(perf_counter=itertools.count().__next__))
    assert main([*arguments, "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"Times are the mean of a few steps{meanwhile}."


LATER = """
import time
from phonate.training.task import Phase

def phases(self):
    return Phase(), Phase("later", start=100)

def loss(self, model, batch, phase, measure=MyTask.loss):
    time.sleep(0.03 if phase == "later" else 0.0)
    return measure(self, model, batch, "main")

MyTask.phases, MyTask.loss = property(phases), loss
"""


def test_a_dry_run_counts_what_joins_in_later(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with Path("my_task.py").open("a", encoding="utf-8") as plugin:
        plugin.write(LATER)
    seconds = {}
    for steps in (100, 200):  # the later phase never takes part, or in half of the steps
        assert main([*arguments, "--dry-run", "--json", f"training.max_steps={steps}"]) == 0
        printed = capsys.readouterr()
        seconds[steps] = json.loads(printed.out)["metrics"]["seconds_per_step"]
    assert seconds[200] - seconds[100] > 0.01
    each = re.findall(r"^steps (.*): [\d.e-]+ s each$", printed.err, re.MULTILINE)
    assert each == ["1 to 100, of main", "101 to 200, of main, later"]


@pytest.mark.parametrize(
    ("gib", "shown"), [(0.25, "256 MiB"), (0.969, "992 MiB"), (0.98, "0.98 GiB"), (18.4, "18.4 GiB")]
)
def test_an_estimate_of_memory_has_three_digits(gib: float, shown: str) -> None:
    assert _estimated("memory_gib", gib) == ["memory", shown]


def test_metric_lines_are_shown_once(arguments: list[str]) -> None:
    done = phonate_process.run(*arguments)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1
    shown = [line for line in done.stderr.splitlines() if line.startswith("step 2/8")]
    assert len(shown) == 1, done.stderr


def test_the_traceback_is_kept_in_the_run_that_is_resumed(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--output", "resumed"]) == 0
    (tmp_path / "runs" / "mine" / "logs").mkdir(parents=True)

    def broken(*args: object, **kwargs: object) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr("phonate.workflows.train.Trainer", broken)
    checkpoint = next((tmp_path / "resumed" / "checkpoints").glob("step-*"))
    for named in ("resumed", "resumed/checkpoints", str(checkpoint), str(tmp_path / "resumed")):
        (tmp_path / "resumed" / "logs" / "error.txt").unlink(missing_ok=True)
        assert main([*arguments, "--resume", named]) == 1
        assert "resumed/logs/error.txt" in capsys.readouterr().err
        kept = (tmp_path / "resumed" / "logs" / "error.txt").read_text()
        assert "ZeroDivisionError" in kept
    assert main([*arguments, "--output", "resumed", "--dry-run"]) == 1  # it writes nothing into a run
    assert "ZeroDivisionError" in capsys.readouterr().err
    assert (tmp_path / "resumed" / "logs" / "error.txt").read_text() == kept
    assert list((tmp_path / "runs" / "mine" / "logs").iterdir()) == []
    assert main([*arguments, "--resume", "nowhere"]) == 2
    mend = "nor auto, which goes on with runs/mine; give the folder of a run of my_task, of which none is in "
    said = f"error: nowhere: no such run or checkpoint, {mend}{tmp_path / 'runs'}; phonate train makes one\n"
    assert capsys.readouterr().err == said


def test_a_run_of_another_task_is_not_resumed(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments, "--output", "first"]) == 0
    capsys.readouterr()
    for words in (["--output", "second", "--resume", "first"], ["--output", "first", "--resume", "auto"]):
        assert main(["train", "speech", f"data.path={RECORDINGS}", *words]) == 2
        error = capsys.readouterr().err
        assert (
            error == "error: first: holds a model of the task my_task, not of speech; give a run of speech; "
            "phonate train speech makes one\n"
        )
    assert not Path("second").exists()


def test_the_log_file_takes_names_that_are_no_utf_8(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = logging.getLogger("phonate")
    monkeypatch.setattr(logger, "handlers", [])  # the console's, which other tests left
    monkeypatch.setattr(logger, "propagate", False)  # what pytest shows of the log goes through a pipe of UTF-8
    with log_file(tmp_path / "train.log", Ranks()):
        logging.getLogger("phonate").warning("left out: %s", "a\udcff.wav")
    assert (tmp_path / "train.log").read_text(encoding="utf-8").endswith("WARNING left out: a\\udcff.wav\n")
    assert "Logging error" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["--epochs", "5"], "training.epochs=5"),
        (["--epochs=5"], "training.epochs=5"),
        (["--batch-size", "4", "data.path=x"], "training.batch_size=4"),
        (["--learning_rate"], "training.optimizer.lr=..."),
    ],
)
def test_a_flag_of_another_project_is_refused_with_our_option(
    arguments: list[str], option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match=r"^2$"):
        main(["train", "conversion", *arguments])
    said = capsys.readouterr().err
    assert f"; write {option}; see phonate train --help" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    "recipe", ["speech", "vocoder", "conversion", "recognition", "diarization", "language", "voice-cloning", "sequence"]
)
def test_a_folder_without_data_is_refused_before_torch_is_imported(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "phonate.workflows.train", None)  # which needs torch
    (tmp_path / "notes.pdf").write_text("no data")
    assert main(["train", recipe, f"data.path={tmp_path}", "--output", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {tmp_path}: no ")
    assert "; put " in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("command", [["speak", "Hello."], ["checkpoints", "list"], ["train", "speech", "--resume"]])
def test_a_folder_that_is_no_run_is_bad_input(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [command[0], str(tmp_path), command[1]] if command[0] == "speak" else [*command, str(tmp_path)]
    if command[0] == "train":
        words.append("data.path=.")
    assert main(words) == 2
    kind = "the folder of a run of speech" if command[0] == "speak" else "a run's folder"
    assert f"error: {tmp_path}: no checkpoints here; give {kind}" in capsys.readouterr().err
    for name in ("recipe.yaml", "system.json"):  # of a training that has just begun
        (tmp_path / name).write_text("{}")
    assert main(words) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {tmp_path}: its training has saved no checkpoint yet; wait for the first one, or ")
    assert error.endswith(f"phonate train {tmp_path} --resume auto\n")


def test_a_misspelt_model_of_the_package_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    for name, near in (("base/diariser", "base/diarizer"), ("base/voices", "base/voice")):
        assert main(["checkpoints", "list", name]) == 2
        assert capsys.readouterr().err == f"error: {name}: no such run or checkpoint; did you mean {near}?\n"


def test_a_refused_training_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    wave = np.sin(np.arange(22050) / 9)
    (tmp_path / "mine").mkdir()
    soundfile.write(tmp_path / "mine" / "a.wav", wave, 22050)
    arguments = ["train", "speech", "data.path=mine", "--output", "runs/refused"]
    assert main(arguments) == 2
    assert "error: " in capsys.readouterr().err
    assert sorted(one.name for one in tmp_path.iterdir()) == ["mine"]
    (tmp_path / "runs" / "refused").mkdir(parents=True)  # somebody else's
    assert main(arguments) == 2
    assert (tmp_path / "runs" / "refused").is_dir()


def test_a_port_that_is_none_is_refused_before_a_model_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "base/voice", "--port", "99999"]) == 2
    assert capsys.readouterr().err == "error: --port 99999: a port is a number from 0 to 65535\n"


@pytest.mark.parametrize(("command", "needing"), [("transcribe", "transcription"), ("diarize", "base/diarizer")])
def test_a_missing_whisper_is_told_before_a_model_is_loaded(
    command: str, needing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "faster_whisper" else found(name))
    monkeypatch.setattr("phonate.workflows.load.load", None)
    soundfile.write(recording := tmp_path / "somebody.wav", np.zeros(16000), 16000)
    assert main([command, str(recording)]) == 2
    assert capsys.readouterr().err == (
        f"error: {needing} needs the package faster_whisper, which is not installed; pip install 'phonate[eval]'\n"
    )
