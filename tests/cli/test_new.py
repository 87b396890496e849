from __future__ import annotations

import re
from pathlib import Path

import pytest

import phonate
from phonate.cli import main
from phonate.cli.training import KINDS
from phonate.config.errors import InputError
from phonate.workflows.scaffold import scaffold
from phonate_process import run_python


@pytest.mark.slow
def test_what_it_writes_passes_its_own_tests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for kind in KINDS:
        assert main(["new", kind, f"my_{kind}", "--into", str(tmp_path)]) == 0
    assert f"wrote {tmp_path / 'my_loss.py'}" in capsys.readouterr().out
    done = run_python("-m", "pytest", "-q", "-p", "no:cacheprovider", tmp_path, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert "6 passed" in done.stdout


@pytest.mark.parametrize("name", ["My", "my-loss", "1st", "class", "", "_x", "x__y", "../x"])
def test_a_name_that_is_none(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="lower-case"):
        scaffold("loss", name, tmp_path)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    scaffold("loss", "mine", tmp_path)
    (tmp_path / "mine.py").write_text("precious")
    with pytest.raises(InputError, match="choose another name"):
        scaffold("loss", "mine", tmp_path)
    assert (tmp_path / "mine.py").read_text() == "precious"


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="can't be written"):
        scaffold("loss", "mine", tmp_path / "file")


def test_what_it_prints_of_a_task_trains_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "task", "my_task"]) == 0
    told = re.search(r"write `(.+)` into (.+), then: phonate (.+)\n", capsys.readouterr().out)
    assert told
    Path(told[2]).write_text(told[1])
    assert main([*told[3].split(), "training.max_steps=1", "--mode", "cpu"]) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_the_package_itself_takes_no_plugins(kind: str) -> None:
    with pytest.raises(InputError, match="outside of it"):
        scaffold(kind, "mine", Path(phonate.__file__).parent / "tasks")
