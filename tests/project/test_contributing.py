"""The worked examples of CONTRIBUTING.md, run as they stand there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILE = re.compile(r"^`((?:src|tests)/[\w/]+\.py)`:\n\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def examples() -> dict[str, str]:
    """File name -> content, as CONTRIBUTING.md has them."""
    return dict(FILE.findall((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    ("source", "test"),
    [
        ("src/phonate/nn/losses/log_cosh.py", "tests/nn/test_log_cosh.py"),
        ("src/phonate/training/callbacks/time_budget.py", "tests/training/test_time_budget.py"),
    ],
)
def test_a_worked_example_works_and_is_clean(source: str, test: str, tmp_path: Path) -> None:
    room = tmp_path / "room"
    room.mkdir()
    (room / Path(source).name).write_text(examples()[source], encoding="utf-8")
    (tmp_path / Path(test).name).write_text(examples()[test], encoding="utf-8")
    package = ".".join(Path(source).parts[1:-1])
    # stands in for saving the file into the package: the registry finds it in the package's folders
    (tmp_path / "conftest.py").write_text(f"import {package}\n\n{package}.__path__.append({str(room)!r})\n")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path / Path(test).name)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert " passed" in ran.stdout
    files = [str(room / Path(source).name), str(tmp_path / Path(test).name)]
    for command in (["ruff", "check", "--config", str(ROOT / "pyproject.toml")], ["ruff", "format", "--check"]):
        linted = subprocess.run(
            [sys.executable, "-m", *command, "--line-length=120", "--no-cache", *files],
            capture_output=True,
            text=True,
            check=False,
        )
        assert linted.returncode == 0, linted.stdout + linted.stderr


def test_every_file_of_the_examples_is_run() -> None:
    assert len(examples()) == 4


def test_the_folders_that_it_names_exist() -> None:
    for name in examples():
        assert (ROOT / name).parent.is_dir(), name
