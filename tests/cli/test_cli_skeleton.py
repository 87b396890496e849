from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import sys
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile

import phonate
from phonate.cli import main
from phonate.cli.parsing import COMMANDS, top_parser
from phonate.config.errors import DataError, Interrupted, PhonateError
from phonate.data.annotations import SpeakerTurn
from phonate.data.transcripts import Transcription
from phonate.evaluation.tables import Evaluation
from phonate.text.captions import TimedWord

TOY = str(Path(__file__).parents[1] / "config" / "toy_task.py")


def fresh(arguments: list[str], then: str = "") -> subprocess.CompletedProcess[str]:
    """`phonate ARGUMENTS` in a new interpreter, which afterwards runs `then`."""
    code = (
        "import sys\nfrom phonate.cli import main\n"
        f"try:\n    code = main({arguments!r})\nexcept SystemExit as end:\n    code = end.code\n{then}\n"
        "sys.exit(code)\n"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def none_of(*names: str) -> str:
    return f"early = set({names!r}) & sys.modules.keys()\nassert not early, early\n"


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "toy.yaml"
    path.write_text("task: toy\ndata:\n  path: x\ntraining:\n  epochs: 3\n")
    return path


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], [], ["trian"]])
def test_help_imports_next_to_nothing(arguments: list[str]) -> None:
    done = fresh(arguments, none_of("torch", "numpy", "pydantic", "ruamel.yaml", "rich", "shtab"))
    assert done.returncode == (2 if arguments == ["trian"] else 0), done.stderr
    assert "AssertionError" not in done.stderr


@pytest.mark.parametrize("arguments", [["--help"], []])
def test_help_imports_no_more_than_argparse(arguments: list[str]) -> None:
    done = fresh(arguments, none_of("inspect", "importlib.metadata", "email", "socket", "tempfile", "dataclasses"))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", list(COMMANDS))
def test_the_help_of_a_command_imports_no_torch(command: str) -> None:
    others = {module for module, _ in COMMANDS.values()} - {COMMANDS[command][0]}
    done = fresh([command, "--help"], none_of("torch", "numpy", "lhotse", "rich", *others))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: phonate {command}")
    assert "--traceback" in done.stdout
    assert "--plugin" in done.stdout


def test_a_mistake_in_a_recipe_imports_no_torch(recipe: Path) -> None:
    arguments = ["train", str(recipe), "--plugin", TOY, "training.optimizer.lrr=1"]
    done = fresh(arguments, none_of("torch", "numpy", "lhotse", "rich"))
    assert done.returncode == 2
    assert done.stdout == ""
    line = "error: command line training.optimizer.lrr: no such option; did you mean training.optimizer.lr?\n"
    assert done.stderr == line


@pytest.mark.parametrize(
    ("word", "meant"),
    [("output=runs/x", "--output runs/x"), ("dry_run=true", "--dry-run"), ("resume=auto", "--resume auto")],
)
def test_an_option_written_as_an_override_is_named(word: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["train", "speech", word])
    assert capsys.readouterr().err == f"error: {word}: write {meant}; see phonate train --help\n"


def test_importing_phonate_is_light() -> None:
    code = "import sys, phonate\nassert phonate.__version__\n" + none_of("torch", "numpy", "pydantic")
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_lazy_names_are_there() -> None:
    assert phonate.PhonateError is PhonateError
    assert callable(phonate.train)
    assert dir(phonate) == sorted(phonate.__all__)
    with pytest.raises(AttributeError, match="'trian'"):
        _ = phonate.trian


def test_every_command_of_the_table_exists(capsys: pytest.CaptureFixture[str]) -> None:
    for command, (name, text) in COMMANDS.items():
        module = importlib.import_module(name)
        assert callable(getattr(module, f"{command}_arguments"))
        assert getattr(module, command).__doc__
        assert text
    assert main([]) == 0
    assert all(f"  {name} " in capsys.readouterr().out for name in list(COMMANDS)[:1])


@pytest.mark.parametrize(
    ("command", "meant"), [("explian", "explain"), ("check", "data check"), ("prune", "checkpoints prune")]
)
def test_an_unknown_command_names_the_nearest(command: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "x"]) == 2
    assert capsys.readouterr().err == f"error: there is no command {command!r}; did you mean {meant}?\n"


def test_help_is_also_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["help", "train"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("usage: phonate train ")
    assert main(["help"]) == 0
    assert capsys.readouterr().out.startswith("usage: phonate [options]")


def test_a_folder_in_the_wrong_place_is_put_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "my own").mkdir()
    (tmp_path / "runs" / "de" / "logs").mkdir(parents=True)
    (tmp_path / ".pre-commit-config.yaml").write_text("repos: []\n")
    (tmp_path / "voice.yaml").write_text("size: tiny\ntask: speech\n")
    for arguments, said in (
        (
            ["train", "runs/de", "--resume", "auto"],
            "runs/de: stopped before its training began, so without recipe.yaml",
        ),
        (["train", "speech"], "error: data.path: missing; give it as in phonate train speech data.path=... ("),
        (["train", "speech", "data.path", "mine"], "without spaces; did you mean data.path=mine?"),
        (["train", "mine.yaml"], f"mine.yaml: no such recipe file in {tmp_path}; did you mean voice.yaml?"),
        (["train", "runs/x", "--resume", "auto"], f"runs/x: no such run or recipe file in {tmp_path}; give one that"),
        (
            ["data", "check", "mine/mine.yaml"],
            f"no such recipe file in {tmp_path}; give one that is there, or a shipped one: ",
        ),
        (
            ["train", "speech", "mine"],
            "command line mine: an override is written key.path=value, without spaces; did you mean data.path=mine?",
        ),
        (
            ["train", "mine"],
            "mine: a folder without recipe.yaml; give a run's folder, or a recipe first: speech data.path=mine",
        ),
        (["train", "my own"], "or a recipe first: speech 'data.path=my own'"),
        (["train", "speech", "data=my own"], "(key: value), got 'my own'; did you mean 'data.path=my own'?"),
        (["train", "speech", "my own"], "did you mean 'data.path=my own'?"),
        (["data", "check", "my own", "data.transcribe=true"], "give a recipe first: speech 'data.path=my own' data"),
        (["train", "speech", "path=mine"], "error: command line path: no such option; phonate calls it data.path"),
    ):
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1


@pytest.mark.parametrize("command", [*COMMANDS, "checkpoints prune", "checkpoints export"])
def test_help_fits_into_80_columns_and_shows_an_example(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.startswith(f"Example: phonate {command} ") for line in lines)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["resume", "mine"], "there is no command 'resume'; did you mean train RUN --resume auto?"),
        (["tts", "hello"], "there is no command 'tts'; did you mean speak?"),
        (["TTS", "hello"], "there is no command 'TTS'; did you mean speak?"),
        (["TRAIN"], "there is no command 'TRAIN'; did you mean train?"),
        (["data", "mine"], "see phonate data --help; for example: phonate data check my_voice"),
        (["checkpoints", "mine"], "see phonate checkpoints --help; for example: phonate checkpoints list runs/speech"),
        (["speak", "\u201cGood", "morning.\u201d"], "put a text of several words into straight quotes, ' or \""),
        (["transcribe", "base/voice", "tone.wav"], "give a run of recognition, or whisper, which needs no training"),
        (["generate", "base/voice", "hello"], "which generates no text; give a run of language or sequence"),
        (["train", "in.wav"], "in.wav: not a text file (byte 4 is not UTF-8); give a recipe"),
    ],
)
def test_what_newcomers_try_is_one_line_with_the_mend(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in.wav").write_bytes(b"RIFF\xff\xff\xff\xff")
    soundfile.write("tone.wav", 0.1 * np.sin(np.arange(16000)), 16000)
    with contextlib.suppress(SystemExit):
        assert main(words) == 2
    error = capsys.readouterr().err
    assert error.endswith(f"{said}\n")
    assert error.count("\n") == 1


def test_a_run_behind_what_it_is_given_is_put_in_front(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    for name in ("in.wav", "other.wav"):
        (tmp_path / name).write_bytes(b"RIFF")
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "recipe.yaml").touch()
    for words, said in (
        (["diarize", "in.wav", "mine"], "in.wav: a recording; the run comes first: mine in.wav"),
        (["convert", "in.wav", "mine", "-o", "out.wav"], "in.wav: a recording; the run comes first: mine in.wav"),
        (["transcribe", "in.wav", "mine"], "in.wav: a recording; the run comes first: mine in.wav"),
        (
            ["convert", "in.wav", "other.wav", "-o", "out.wav"],
            "in.wav: a recording; the run comes first, as in RUN in.wav",
        ),
        (["diarize", "runs/mine"], "runs/mine: a run; give the recording behind it, as in runs/mine IN.wav"),
        (["speak", "Good morning.", "mine"], "mine: a folder; the run comes first: mine 'Good morning.'"),
    ):
        assert main(words) == 2
        assert capsys.readouterr().err == f"error: {said}\n"


@pytest.mark.parametrize(
    ("words", "piped"), [(["speak"], "phonate speak -"), (["speak", "mine"], "phonate speak mine -")]
)
def test_the_name_of_a_file_that_is_not_there_is_not_spoken(
    words: list[str], piped: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*words, "hello.txt"]) == 2
    error = capsys.readouterr().err
    assert error == f"error: hello.txt: no such file; to speak these very words, write echo hello.txt | {piped}\n"


def test_a_sentence_that_ends_in_the_name_of_a_file_is_spoken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["speak", "Open hello.txt"]) == 0
    assert (tmp_path / "spoken.wav").exists()


def test_where_a_run_is_missing_those_that_are_here_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs/mine").mkdir(parents=True)
    (tmp_path / "runs/mine/recipe.yaml").write_text("task: speech\n")
    (tmp_path / "runs/other").mkdir(parents=True)
    (tmp_path / "runs/other/recipe.yaml").write_text("task: conversion\n")
    os.utime(tmp_path / "runs/other/recipe.yaml", (0, 0))
    for arguments, runs in (
        (["speak", "runs/none", "Hello."], "the folder of a run of speech, such as runs/mine"),
        (["evaluate", "runs/none"], "a run's folder, such as runs/mine, runs/other"),
        (["report", "runs/none"], "a run's folder, such as runs/mine, runs/other"),
    ):
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: runs/none: no such run")
        assert error.endswith(f"; give {runs}\n")
    for arguments, run in ((["speak", "runs/mime", "Hello."], "runs/mine"), (["report", "others"], "runs/other")):
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"error: {arguments[1]}: no such run")
        assert error.endswith(f"; did you mean {run}?\n")


def test_two_words_without_quotes_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["speak", "Hello", "there."]) == 2
    assert "needs quotes: phonate speak 'Hello there.';" in capsys.readouterr().err


def test_options_are_not_abbreviated(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["train", str(recipe), "--dry"])
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert error == "error: unrecognized arguments: --dry; did you mean --dry-run? see phonate train --help\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["session", "--mod", "gpu"], "unrecognized arguments: --mod gpu; did you mean --mode? see"),
        (["clone", "base/voice", "--refrence", "a.wav"], "--refrence a.wav; did you mean --reference? see"),
        (["checkpoints", "list", "run", "--jsn"], "--jsn; did you mean --json? see"),
        (["convert"], "the following arguments are required: RUN, IN.wav, -o/--output; see"),
        (["convert", "in.wav", "-o", "a.wav"], "are required: RUN IN.wav, of which 1 is missing; see"),
        (["align", "talks"], "are required: RECORDINGS TEXTS, of which 1 is missing, -o/--output; see"),
        (["clone", "--text", "Hi."], "are required: MODEL, -o/--output; see"),
        (["train", "speech", "--steps", "40"], "--steps 40; write training.max_steps=40; see"),
        (["speak", "--voice", "anna"], "--voice anna; did you mean --speaker? see"),
        (["speak", "--qqqq"], "unrecognized arguments: --qqqq; see"),
        (["demo", "--task", "converson"], "error: --task converson: did you mean conversion? see"),
        (["demo", "--task", "x"], "error: --task x: choose from 'speech', 'conversion'; see"),
        (["data", "chek", "x"], "error: 'chek': did you mean check? see"),
        (["diarize", "x.wav", "--speakers", "two"], "error: --speakers two: must be a whole number; see"),
        (["speak", "a text", "--speed", "fast"], "error: --speed fast: must be a number; see"),
        (["speak", "-o"], "error: -o/--output: expected one argument, OUT.wav; see"),
        (["train", "speech", "--resume"], "error: --resume: expected one argument, auto|RUN|CHECKPOINT; see"),
        (["train", "speech", "--data", "mine"], "unrecognized arguments: --data mine; write data.path=mine; see"),
        (["train", "conversion", "--target", "anna"], "--target anna; write data.target=anna; see"),
        (["speak", "It", "was", "late."], "unrecognized arguments: late.; put a text of several words in quotes; see"),
        (["data"], "error: the following arguments are required: action (check, prepare, describe), PATH; see"),
        (["data", "check"], "error: the following arguments are required: PATH; see"),
        (["checkpoints"], "error: the following arguments are required: ACTION (list, verify, prune, "),
    ],
)
def test_a_misspelt_option_or_value_names_the_nearest(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_command_without_its_arguments_ends_with_one_that_has_them(capsys: pytest.CaptureFixture[str]) -> None:
    from phonate.cli.parsing import COMMANDS, Parser, fill, parse_command

    calls = []
    for command in COMMANDS:
        parser = Parser()
        fill(parser, command)
        choices = [one.choices for one in parser._actions if not one.option_strings and one.choices]
        actions = list(choices[0]) if choices and command in ("data", "checkpoints") else []
        if any(one.required for one in parser._actions):
            calls += [[command], *([command, action] for action in actions)]
    assert len(calls) > 24
    for words in calls:
        with pytest.raises(SystemExit):
            main(words)
        called = shlex.split(capsys.readouterr().err.rpartition("; for example: ")[2])
        assert called[: 1 + len(words)] == ["phonate", *words]
        args = top_parser().parse_args(called[1:])
        parse_command(args.command, args.rest, args)


def test_meanings_are_refused_where_none_are_shown(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(recipe), "--plugin", TOY, "--describe", "--schema"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "error: --describe: has no meaning with --schema; leave it out, or use --json\n"


def test_a_recipe_with_meanings_is_the_recipe(recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Comments above the options, and the options of null sections as comments below them."""
    assert main(["explain", str(recipe), "--plugin", TOY, "--yaml"]) == 0
    plain = capsys.readouterr().out
    assert main(["explain", str(recipe), "--plugin", TOY, "--yaml", "--describe"]) == 0
    described = capsys.readouterr().out
    assert [line for line in described.splitlines() if not line.lstrip().startswith("#")] == plain.splitlines()
    assert "  # Passes over the training samples.\n  epochs: " in described
    _, below = described.split("  early_stopping: null\n  #   # ")
    assert "\n  #   patience: 10\n  #   # " in below


def test_overrides_may_stand_between_options() -> None:
    from phonate.cli.parsing import parse_command

    args = top_parser().parse_args(["--traceback", "train", "r.yaml", "a=1", "--mode", "cpu", "b=2"])
    parse_command("train", args.rest, args)
    assert (args.recipe, args.overrides, args.mode, args.traceback) == ("r.yaml", ["a=1", "b=2"], "cpu", True)


def test_plugins_stand_before_or_behind_the_command() -> None:
    from phonate.cli.parsing import parse_command

    args = top_parser().parse_args(["--plugin", "a.py", "explain", "r", "--plugin", "b.py"])
    parse_command("explain", args.rest, args)
    assert args.plugin == ["a.py", "b.py"]


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes_commands_and_options(tmp_path: Path) -> None:
    script = tmp_path / "phonate.fish"
    script.write_text(fresh(["--print-completion", "fish"], "").stdout)
    for line, offered in {
        "phonate trai": "train",
        "phonate train --resu": "--resume",
        "phonate data che": "check",
    }.items():
        words = ["fish", "--no-config", "-c", f"source {script}; complete -C '{line}'"]
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
        assert [one.split("\t")[0] for one in done.stdout.splitlines()] == [offered]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "powershell", "tcsh"])
def test_completion(shell: str) -> None:
    done = fresh(["--print-completion", shell], none_of("torch", "numpy", "lhotse"))
    assert done.returncode == 0, done.stderr
    assert "--resume" in done.stdout or "resume" in done.stdout


class Failing:
    """A command that raises `error`."""

    __doc__ = "Fail."

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def train_arguments(self, parser: object) -> None:
        """None."""

    def train(self, args: object) -> int:
        raise self.error


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (PhonateError("it broke"), 1, "error: it broke\n"),
        (DataError("row 3: no audio"), 2, "error: row 3: no audio\n"),
        (DataError("one\ntwo"), 2, "error: one\nerror: two\n"),
        (Interrupted("stopped", 15), 143, "stopped\n"),
        (Interrupted("stopped", 2), 130, "stopped\n"),
        (KeyboardInterrupt(), 130, "stopped by Ctrl-C\n"),
        (OSError(28, "No space left on device", "x.pt"), 1, "error: x.pt: No space left on device\n"),
        (KeyError("x"), 1, "error: KeyError: 'x'; --traceback shows where\n"),
    ],
)
def test_an_error_is_a_line_and_an_exit_code(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    line: str,
) -> None:
    monkeypatch.setitem(sys.modules, "phonate.cli.training", Failing(error))
    assert main(["train"]) == code
    assert capsys.readouterr().err == line


def test_a_stop_while_the_command_line_is_imported_is_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Stops(MetaPathFinder):
        def find_spec(self, name: str, path: object, target: object = None) -> None:
            if name == "phonate.cli.command":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "phonate.cli.command", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Stops(), *sys.meta_path])
    assert main(["resources"]) == 130
    assert capsys.readouterr().err == "stopped by Ctrl-C before anything began\n"


def test_traceback_shows_the_rest(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "phonate.cli.training", Failing(DataError("row 3")))
    assert main(["train", "--traceback"]) == 2
    error = capsys.readouterr().err
    assert "Traceback" in error
    assert error.endswith("error: row 3\n")
    assert error.count("row 3") == 1


def test_the_traceback_of_a_surprise_is_kept_in_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Surprised(Failing):
        def train(self, args: object) -> int:
            args.logs = tmp_path
            raise self.error

    monkeypatch.setitem(sys.modules, "phonate.cli.training", Surprised(ZeroDivisionError("by zero")))
    assert main(["train"]) == 1
    assert f"the traceback is in {tmp_path / 'error.txt'}" in capsys.readouterr().err
    assert "ZeroDivisionError" in (tmp_path / "error.txt").read_text()


def test_the_traceback_of_a_name_that_is_no_utf8_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Surprised(Failing):
        def train(self, args: object) -> int:
            args.logs = tmp_path
            raise self.error

    monkeypatch.setitem(sys.modules, "phonate.cli.training", Surprised(RuntimeError("a\udcff.wav")))
    assert main(["train"]) == 1
    assert "error.txt" in capsys.readouterr().err
    assert "udcff" in (tmp_path / "error.txt").read_text()


def test_a_closed_pipe_is_no_error(recipe: Path) -> None:
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "phonate", "explain", str(recipe), "--plugin", TOY, "--schema"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 141
    process.stderr.close()


@pytest.mark.parametrize("arguments", [["explain", "RECIPE"], ["explain", "nowhere"]])
def test_closed_streams_are_no_error(arguments: list[str], recipe: Path, tmp_path: Path) -> None:
    """`phonate explain RECIPE >&- 2>&- <&-`: nothing is printed, into no file that is opened later either."""
    given = [str(recipe) if argument == "RECIPE" else argument for argument in arguments]
    code = (
        "import sys; from phonate.cli import main\n"
        f"code = main({['--plugin', TOY, *given]!r})\n"
        f"opened = open({str(tmp_path / 'opened')!r}, 'w'); print('stray'); opened.close(); sys.exit(code)"
    )
    command = ["sh", "-c", f'exec "{sys.executable}" -c "$0" >&- 2>&- <&-', code]
    done = subprocess.run(command, timeout=60, check=False)
    assert done.returncode == (2 if "nowhere" in arguments else 0)
    assert (tmp_path / "opened").read_text() == ""


def test_an_error_that_quotes_a_long_value_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "x" * 200_000]) in (1, 2)
    assert len(capsys.readouterr().err) < 2500


def test_errors_are_red_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert main(["explian"]) == 2
    assert capsys.readouterr().err.startswith("\x1b[1;31merror:\x1b[0m there is no command")
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(["explian"]) == 2
    assert capsys.readouterr().err.startswith("error: there is no command")


def test_a_full_disk_does_not_hide_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Full(Failing):
        def train(self, args: object) -> int:
            args.logs = tmp_path
            raise self.error

    (tmp_path / "error.txt").mkdir()  # as little writable as on a full disk
    monkeypatch.setitem(sys.modules, "phonate.cli.training", Full(ZeroDivisionError("by zero")))
    assert main(["train"]) == 1
    error = capsys.readouterr().err
    assert "ZeroDivisionError: by zero" in error
    assert "the traceback can't be written to" in error


def test_a_plugin_that_is_missing_is_one_line(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(recipe), "--plugin", "absent.py"]) == 2
    assert capsys.readouterr().err == "error: absent.py: no such plug-in file\n"


@pytest.mark.parametrize(("texts", "told"), [(2, True), (20, False)])
def test_an_evaluation_of_few_says_so(
    texts: int, told: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    meanings = "WER: errors of the recogniser; RTF: seconds a second."
    found = Evaluation("speech", {"synthesised": {"wer": 0.1}}, "synthesised", meanings, notes={"texts": texts})
    monkeypatch.setattr("phonate.workflows.evaluate.evaluate", lambda *given, **options: found)
    assert main(["evaluate", "runs/mine"]) == 0
    printed = capsys.readouterr().out
    assert ("so few texts say little: give 10 or more that" in printed) == told
    assert "\nWER: errors of the recogniser\nRTF: seconds a second\n\n" in printed


def test_what_an_evaluation_notes_of_settings_is_in_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    decoding = {"threshold": 0.5, "window_seconds": None, "smoothing": {"half_width": 3, "shape": "hann"}}
    found = Evaluation("diarization", {"the model": {"wer": 0.1}}, "the model", notes={"decoding": decoding})
    monkeypatch.setattr("phonate.workflows.evaluate.evaluate", lambda *given, **options: found)
    assert main(["evaluate", "runs/mine"]) == 0
    assert "\ndecoding: threshold 0.5, smoothing (half width 3, shape hann)\n" in capsys.readouterr().out


def test_a_number_of_speakers_is_that_of_the_packaged_diarizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    soundfile.write("in.wav", np.zeros(1600), 16000)
    asked: list[Any] = []

    class Model:
        def diarize(self, recording: str, **options: Any) -> SimpleNamespace:
            asked.append(options)
            return SimpleNamespace(turns=[])

        def timed(self, *given: Any, **options: Any) -> Transcription:
            return Transcription([], 0.1)

    monkeypatch.setattr("phonate.workflows.load.load", lambda name, *_, **options: (asked.append(name), Model())[1])
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    for given, source, count in (("4", "base/diarizer", 4), ("runs/mine", "runs/mine", None)):
        asked.clear()
        assert main(["transcribe", "runs/mine", "in.wav", "--speakers", given]) == 0
        assert asked == [source, "runs/mine", {"speakers": count, "known": {}}]
    capsys.readouterr()


def test_speakers_of_whom_no_word_is_recognised_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    soundfile.write("in.wav", np.zeros(16000), 16000)
    turns = [SpeakerTurn(0.0, 0.4, "anna"), SpeakerTurn(0.5, 0.6, "ben"), SpeakerTurn(0.6, 0.9, "anna")]
    model = SimpleNamespace(
        diarize=lambda *_, **__: SimpleNamespace(turns=turns),
        timed=lambda *_, **__: Transcription([TimedWord("Yes.", 0.0, 0.4, speaker="anna")], 1.0),
    )
    monkeypatch.setattr("phonate.workflows.load.load", lambda *_, **__: model)
    assert main(["transcribe", "in.wav", "--speakers"]) == 0
    assert capsys.readouterr().err == "in.wav: no words of ben were recognised\n"


def test_a_file_that_an_option_took_for_its_value_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (recording := tmp_path / "in.wav").touch()
    with pytest.raises(SystemExit, match=r"^2$"):
        main(["transcribe", "--speakers", str(recording)])
    told = f"--speakers took {recording} for its value: write it in front of --speakers"
    assert f"IN.wav; {told}; see" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["transcribe", "base/x", "in.wav", "--speakers", "--known", "anna={}"],
        ["diarize", "in.wav", "--known", "anna={}"],
        ["convert", "runs/mine", "in.wav", "-o", "out.wav", "--reference", "{}"],
        ["clone", "runs/mine", "--text", "Hello.", "-o", "out.wav", "--reference", "{}"],
    ],
)
def test_a_voice_without_a_recording_is_told_before_a_model_is_loaded(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "torch", None)
    soundfile.write("in.wav", np.zeros(16000), 16000)
    for voice, said in (
        ("anna.wav", "anna.wav: no such file"),
        ("https://x.org/a.wav", "https://x.org/a.wav: an address; download the recording, and give its file"),
    ):
        assert main([word.format(voice) for word in words]) == 2
        assert capsys.readouterr().err == f"error: {said}\n"


def test_a_recording_that_is_not_there_is_no_folder_to_align(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["align", str(tmp_path / "in.wav"), str(tmp_path), "-o", "out.srt"]) == 2
    assert capsys.readouterr().err == f"error: {tmp_path / 'in.wav'}: no such file or folder\n"


@pytest.mark.parametrize("words", [["transcribe"], ["diarize"], ["convert", "runs/mine", "-o", "out.wav"]])
def test_what_is_no_recording_is_told_before_a_model_is_loaded(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "torch", None)
    (tmp_path / "note.wav").write_text("Good morning.")
    for recording, said in (
        ("absent.wav", "absent.wav: no such file"),
        ("note.wav", "note.wav: not readable as audio (a text that begins with 'Good morning.'); is it really .wav?"),
        ("https://x.org/a.wav", "https://x.org/a.wav: an address; download the recording, and give its file"),
    ):
        assert main([*words, recording]) == 2
        assert capsys.readouterr().err.startswith(f"error: {said}")


@pytest.mark.parametrize(
    "words",
    [
        ["score", "http://x.org/a", "b.rttm"],
        ["score", "b.rttm", "b.rttm", "--uem", "http://x.org/a"],
        ["score", "--words", "http://x.org/a", "b.stm"],
        ["align", "http://x.org/a", "b.txt", "-o", "b.srt"],
        ["report", "http://x.org/a"],
        ["checkpoints", "list", "http://x.org/a"],
        ["checkpoints", "export", "runs/mine", "-o", "http://x.org/a"],
    ],
)
def test_an_address_where_a_file_belongs_is_told_as_it_was_typed(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("b.rttm").touch()
    try:
        code = main(words)
    except SystemExit as left:
        code = left.code
    assert code == 2
    said = capsys.readouterr().err
    assert "http://x.org/a: an address, where only files on a disk are read and written; give a path on one" in said
    assert said.count("\n") == 1


def test_what_is_not_there_is_looked_for_where_the_user_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    absolute = str(tmp_path / "nowhere")
    for path, place in (("nowhere", f" in {tmp_path}"), (absolute, "")):
        assert main(["data", "check", path]) == 2
        assert capsys.readouterr().err == f"error: {path}: no such file or folder{place}\n"
    assert main(["report", "nowhere"]) == 2
    mend = f"give a run's folder, of which none is in {tmp_path / 'runs'}; phonate train makes one"
    assert capsys.readouterr().err == f"error: nowhere: no such run; {mend}\n"


def test_a_mistyped_path_is_answered_with_what_lies_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("my_voice", "corpora/my_voice"):
        Path(name).mkdir(parents=True)
    Path("meeting.rttm").write_text("")
    for command, meant in (
        (["train", "speech", "data.path=my_vioce"], "my_voice"),
        (["train", "speech", "data.path=corpora/my_vioce"], "corpora/my_voice"),
        (["data", "check", "my_vioce"], "my_voice"),
        (["data", "prepare", "my_vioce", "--split", "-o", "out"], "my_voice"),
        (["demo", "--data", "my_vioce"], "my_voice"),
        (["align", "my_vioce", "my_voice", "-o", "out.ctm"], "my_voice"),
        (["score", "meetng.rttm", "meeting.rttm"], "meeting.rttm"),
        (["train", "speech", "data.path=my_voice", "data.drop=meetng.rttm"], "meeting.rttm"),
    ):
        assert main(command) == 2, command
        error = capsys.readouterr().err
        assert error.endswith(f"; did you mean {meant}?\n"), error
        assert error.count("\n") == 1
    assert main(["data", "check", "gone/my_vioce"]) == 2
    assert "did you mean" not in capsys.readouterr().err


def test_explain_prints_value_and_origin(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(recipe), "--plugin", TOY, "size=tiny", "training.ema.decay=0.5"]) == 0
    lines = [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines()]
    assert ["training.epochs", "3", f"{recipe}:5:11"] in lines
    assert ["training.ema.decay", "0.5", "command line"] in lines
    assert ["model.d_model", "4", "size tiny"] in lines
    assert ["training.batch_size", "32", "default"] in lines


def test_explain_shows_what_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "conversion", "model.dropout=0.2"]) == 0
    shown = capsys.readouterr().out
    lines = [line.split() for line in shown.splitlines()]
    assert ["data.path", "null", "required"] in lines
    assert ["model.dropout", "0.2", "command", "line"] in lines
    assert "data check" not in shown
    assert main(["explain", "conversion", "data.path=my x"]) == 0
    shown = capsys.readouterr().out
    assert "required" not in shown
    assert "recordings were not read whole; `phonate data check 'my x'` says what is wrong" in shown
    for argument, named in (("--yaml", "data.path"), ("model.dropout=2.0", "model.dropout")):
        assert main(["explain", "conversion", argument]) == 2
        assert named in capsys.readouterr().err


def test_explain_in_its_other_forms(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from phonate.config.resolve import resolve

    def printed(*options: str) -> str:
        assert main(["--plugin", TOY, "explain", str(recipe), *options]) == 0
        return capsys.readouterr().out

    values = json.loads(printed("--json", "--describe"))
    assert values["training.epochs"] == {
        "value": 3,
        "origin": f"{recipe}:5:11",
        "description": "Passes over the training samples.",
    }
    complete = recipe.with_name("complete.yaml")
    complete.write_text(printed("--yaml"))
    assert resolve(complete).recipe == resolve(recipe).recipe
    assert "Passes over the training samples." in printed("--describe")


def test_the_schema_accepts_recipes_and_describes_options(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--plugin", TOY, "explain", str(recipe), "--schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema["required"] == ["task"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["task"]["const"] == "toy"
    optimizer = schema["$defs"]["OptimizerSettings"]["properties"]["lr"]
    assert optimizer["description"] == "Peak learning rate, reached after warm-up."


def test_lines_are_printed_once_whatever_libraries_log() -> None:
    """`logging.info` gives the root logger a handler where it has none, as Lhotse's recipes do."""
    script = (
        "import logging; from phonate.cli.output import log_to_console; log_to_console(); "
        "logging.info('theirs'); logging.warning('their warning'); logging.getLogger('phonate.data').info('ours'); "
        "logging.getLogger('hub').addHandler(logging.StreamHandler()); logging.getLogger('hub.http').warning('again')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines() == ["their warning", "ours", "again"]


def test_all_that_serving_lacks_is_told_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found, absent = importlib.util.find_spec, ("fastapi", "wyoming", "faster_whisper")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name in absent else found(name, *rest))
    assert main(["serve", "base/voice", "--wyoming", "10200", "--recogniser", "whisper/base"]) == 2
    assert capsys.readouterr().err == (
        "error: phonate serve needs fastapi, wyoming, faster_whisper, which are not installed; "
        "pip install 'phonate[serve,wyoming,eval]'\n"
    )
    absent = ("wyoming", "faster_whisper")
    assert main(["serve", "base/voice", "--recogniser", "whisper"]) == 2
    assert "the package faster_whisper, which is not installed; pip install 'phonate[eval]'" in capsys.readouterr().err
