"""Pages that need nothing else, from the templates beside this file: `page.html.jinja` has the look that they share."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from phonate.config.errors import InputError, plain_file
from phonate.data.manifests.rows import printable


def render(template: str, page: Mapping[str, Any], package: str = "phonate.workflows.pages") -> str:
    """The HTML that a template makes of `page`, which it knows as `r`, with when and by which version it was made.

    Every text is escaped, but for what is Markup already. `package`: where the template is; the ones here are found
    from everywhere.
    """
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    packages = dict.fromkeys([package, "phonate.workflows.pages"])
    loader = ChoiceLoader([PackageLoader(name, "templates") for name in packages])
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    made = {"version": version("phonate"), "made": f"{datetime.now(UTC):%d %B %Y}"}
    return environment.get_template(template).render(r={**made, **page})


def write_page(path: str | Path, text: str) -> Path:
    """Write a page, which appears whole or not at all; returns its path. Raises InputError if it can't be written."""
    path = plain_file(Path(path))
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            beside.write_text(text, encoding="utf-8")
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        named = printable(str(path))
        raise InputError(
            f"{named}: can't be written ({error.strerror}); choose another path or free some space"
        ) from error
    return path
