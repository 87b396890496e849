"""`phonate new`: the first version of an extension, with a test that passes."""

from __future__ import annotations

import keyword
import re
from pathlib import Path
from string import Template

import phonate
from phonate.config.errors import InputError
from phonate.workflows.scaffold.templates import HOMES, TEMPLATES

_PACKAGE = Path(phonate.__file__).parent


def scaffold(kind: str, name: str, into: str | Path = ".") -> tuple[Path, Path]:
    """Write a `kind` called `name`, and its test, into the folder `into`; returns both paths.

    Outside the package the file is a plug-in (`--plugin FILE`) and its test lies beside it. In the package's
    own folder for that kind it is found by its name, and the test goes to the tests of that room. Raises
    InputError for a name that is none, for a folder that does not fit, and rather than overwrite a file.
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name) or keyword.iskeyword(name):
        raise InputError(f"{name!r}: a name is lower-case words joined by underscores, such as my_{kind}")
    folder = Path(into)
    inside = folder.resolve().is_relative_to(_PACKAGE)
    tests = _tests_of(kind, folder) if inside else folder
    paths = folder / f"{name}.py", tests / f"test_{name}.py"
    for path in paths:
        if path.exists():
            raise InputError(f"{path} exists; choose another name or remove it first")
    for path, template in zip(paths, TEMPLATES[kind], strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_fill(template, kind, name, inside), encoding="utf-8")
    return paths


def _tests_of(kind: str, folder: Path) -> Path:
    home = HOMES.get(kind)
    if home is None:
        raise InputError(f"{folder}: a {kind} of the package is a folder; begin with a plug-in outside of it")
    if folder.resolve() != _PACKAGE / home:
        raise InputError(f"{folder}: the package's own {kind} files lie in {_PACKAGE / home}")
    return _PACKAGE.parent.parent / "tests" / home.split("/")[0]


def _fill(template: str, kind: str, name: str, inside: bool) -> str:
    keep, drop = ("#inside", "#plugin") if inside else ("#plugin", "#inside")
    lines = [line for line in template.splitlines() if not line.endswith(drop)]
    lines = [line.removesuffix(keep).rstrip() for line in lines]
    plain = "".join(word.capitalize() for word in name.split("_"))
    whole = plain if plain.endswith(kind.capitalize()) else plain + kind.capitalize()
    return Template("\n".join(lines) + "\n").substitute(name=name, Name=plain, Class=whole)
