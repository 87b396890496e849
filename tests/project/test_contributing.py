"""The worked examples of CONTRIBUTING.md, run as they stand there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILE = re.compile(r"^`(\w+\.py)`:\n\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def examples() -> dict[str, str]:
    """File name -> content, as CONTRIBUTING.md has them."""
    return dict(FILE.findall((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    ("source", "test"),
    [
        ("log_cosh.py", "test_log_cosh.py"),
        ("time_budget.py", "test_time_budget.py"),
    ],
)
def test_a_worked_example_works_and_is_clean(source: str, test: str, tmp_path: Path) -> None:
    files = [str(tmp_path / name) for name in (source, test)]
    for file in files:
        Path(file).write_text(examples()[Path(file).name], encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", files[1]],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert " passed" in ran.stdout
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
