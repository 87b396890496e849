"""What scripts and benchmarks import from the package exists. (Most of them run for too long to be tested.)"""

from __future__ import annotations

import ast
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

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
