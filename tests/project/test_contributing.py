"""The worked examples of CONTRIBUTING.md, run as they stand there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from phonate_process import run_python

ROOT = Path(__file__).parents[2]
FILE = re.compile(r"^`(\w+\.py)`:\n\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def examples() -> dict[str, str]:
    """File name -> content, as CONTRIBUTING.md has them."""
    return dict(FILE.findall((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")))


def test_the_worked_examples_work_and_are_clean(tmp_path: Path) -> None:
    files = [tmp_path / name for name in examples()]
    for file in files:
        file.write_text(examples()[file.name], encoding="utf-8")
    tests = [file for file in files if file.name.startswith("test_")]
    ran = run_python("-m", "pytest", "-q", "-p", "no:cacheprovider", *tests, cwd=tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "5 passed" in ran.stdout
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
