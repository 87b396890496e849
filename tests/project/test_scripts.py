"""What scripts and benchmarks import from the package exists. (Most of them run for too long to be tested.)"""

from __future__ import annotations

import ast
import json
import subprocess
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from phonate_process import run_python

ROOT = Path(__file__).parents[2]
FILES = sorted([*(ROOT / "scripts").glob("*.py"), *(ROOT / "benchmarks").glob("*.py")])


@cache
def names_of(module: str) -> frozenset[str]:
    """What can be imported from a module: what its source binds, and its submodules."""
    spec = find_spec(module)
    assert spec is not None, f"no module {module}"
    names = {path.stem for folder in spec.submodule_search_locations or () for path in Path(folder).iterdir()}
    if spec.origin is None:  # a folder without code of its own
        return frozenset(names)
    source = Path(spec.origin)
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
    return frozenset(names)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_imports_exist(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "phonate":
            assert node.module is not None
            missing = {alias.name for alias in node.names} - names_of(node.module)
            assert not missing, f"{node.module} has no {', '.join(sorted(missing))}"


def recorder(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """The script that records behaviour, as a user starts it."""
    return run_python(ROOT / "scripts" / "record_behaviour.py", *arguments)


@pytest.mark.parametrize(
    ("other", "line"),
    [
        ({"vocoder": {"metrics": [{"loss": "0x1p+0"}], "weights": {"a": "12"}}}, None),
        ({"vocoder": {"metrics": [{"loss": "0x1p+1"}], "weights": {"a": "12"}}}, "vocoder/metrics/0/loss"),
        ({"vocoder": {"metrics": [], "weights": {"a": "12"}}}, "vocoder/metrics/0"),
        ({"vocoder": {"metrics": [{"loss": "0x1p+0"}], "weights": {}}}, "vocoder/weights/a"),
        ({}, "vocoder"),
    ],
)
def test_records_of_behaviour_are_compared(tmp_path: Path, other: dict[str, Any], line: str | None) -> None:
    one = {"vocoder": {"metrics": [{"loss": "0x1p+0"}], "weights": {"a": "12"}}}
    for name, record in (("one", one), ("other", other)):
        (tmp_path / f"{name}.json").write_text(json.dumps(record))
    ran = recorder("--compare", tmp_path / "one.json", tmp_path / "other.json")
    assert ran.returncode == (line is not None)
    assert ran.stdout.startswith(f"{line}: " if line else "no difference")
