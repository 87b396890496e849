"""`phonate new`: a working first version of an extension, with a test that passes."""

from __future__ import annotations

import keyword
import re
from pathlib import Path

import phonate
from phonate.config.errors import InputError

_PACKAGE = Path(phonate.__file__).parent


def scaffold(kind: str, name: str, into: str | Path = ".") -> tuple[Path, Path]:
    """Write an extension and its test.

    The file is a plug-in (`--plugin FILE`) with its test beside it.

    Args:
        kind: loss, callback, corpus or task; each has its templates in the folder `templates`.
        name: lower-case words joined by underscores.
        into: folder to write to.

    Returns:
        The paths of the extension and of its test.

    Raises:
        InputError: the name is invalid, the folder is phonate's own, or one of the files exists.
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name) or keyword.iskeyword(name):
        raise InputError(f"{name!r}: a name is lower-case words joined by underscores, such as my_{kind}")
    folder = Path(into)
    if folder.resolve().is_relative_to(_PACKAGE):
        raise InputError(f"{folder}: phonate's own folder, which takes no plug-ins; choose one outside of it")
    files = {folder / f"{name}.py": f"{kind}.py.jinja", folder / f"test_{name}.py": f"test_{kind}.py.jinja"}
    for path in files:
        if path.exists():
            raise InputError(f"{path} exists; choose another name or remove it first")
    for path, template in files.items():
        text = _rendered(template, kind, name)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise InputError(f"{path}: can't be written ({error.strerror}); choose another folder") from error
    extension, test = files
    return extension, test


def _rendered(template: str, kind: str, name: str) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("phonate.workflows.scaffold", "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # the output is Python
    )
    prefix = "".join(word.capitalize() for word in name.split("_"))
    class_name = prefix if prefix.endswith(kind.capitalize()) else prefix + kind.capitalize()
    return environment.get_template(template).render(name=name, prefix=prefix, class_name=class_name)
