"""The JavaScript modules of this package."""

from __future__ import annotations

from importlib import resources
from importlib.resources.abc import Traversable

from phonate.text.browser.rules import rules

_PACKAGE = resources.files("phonate.text.browser")


def modules() -> dict[str, str]:
    """The sources of the modules by their names, to be imported as `phonate/NAME`; `rules` has Python's tables."""
    return {"rules": rules(), **sources(_PACKAGE), **sources(_PACKAGE / "english")}


def sources(folder: Traversable) -> dict[str, str]:
    """The JavaScript files in a folder: name without suffix -> source."""
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".js")), key=lambda file: file.name)
    return {file.name.removesuffix(".js"): file.read_text(encoding="utf-8") for file in files}
