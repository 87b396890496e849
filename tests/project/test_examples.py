"""The notebook runs from its first cell to its last, and what the Dockerfile names is there."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from phonate.cli.parsing import parse_command

ROOT = Path(__file__).parents[2]
NOTEBOOK = json.loads((ROOT / "examples" / "your_voice.ipynb").read_text(encoding="utf-8"))
RUN = """
import json, sys
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
for cell in json.load(sys.stdin):
    if not shell.run_cell(cell).success or getattr(shell, "user_ns", {}).get("_exit_code", 0):
        sys.exit(f"failed: {cell}")
print("SOUNDS", len(shell.user_ns["voice"].speak("Good morning.")))
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_notebook_runs(tmp_path: Path) -> None:
    cells = ["".join(cell["source"]) for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
    assert sum("STEPS = None" in cell for cell in cells) == 1
    cells = [re.sub("^STEPS = None.*", "STEPS = 2", cell, flags=re.MULTILINE) for cell in cells]
    ran = subprocess.run(
        [sys.executable, "-c", RUN],
        cwd=tmp_path,
        input=json.dumps(cells),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert int(ran.stdout.rpartition("SOUNDS ")[2]) > 10_000
    assert (tmp_path / "runs" / "notebook" / "report.html").is_file()


def test_the_notebook_holds_no_outputs() -> None:
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in NOTEBOOK["cells"])


def test_what_the_dockerfile_names_is_there() -> None:
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    steps = [line.split(maxsplit=1) for line in lines if re.match("[A-Z]+ ", line)]
    by_kind: dict[str, list[str]] = {}
    for kind, rest in steps:
        by_kind.setdefault(kind, []).append(rest)
    copied = [name for rest in by_kind["COPY"] for name in rest.split()[:-1]]
    assert all((ROOT / name).exists() for name in copied)
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert ignored[0] == "*"
    assert {f"!{name}" for name in copied} <= set(ignored)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {project["readme"], *project["license-files"]} <= set(copied), "the package can't be built without them"
    extras = re.findall(r"/source\[([a-z,]+)\]", " ".join(by_kind["RUN"]))[0].split(",")
    assert set(extras) <= set(project["optional-dependencies"])
    assert json.loads(by_kind["ENTRYPOINT"][0]) == ["phonate"]
    command, *words = json.loads(by_kind["CMD"][0])
    options = argparse.Namespace()
    parse_command(command, words, options)
    assert str(options.port) == by_kind["EXPOSE"][0]
    shown = [line for line in lines if line.startswith("# docker run") and "phonate train" in line]
    words = shlex.split(shown[0].rpartition(" phonate ")[2].split("   ")[0])
    parse_command(words[0], words[1:], argparse.Namespace())
