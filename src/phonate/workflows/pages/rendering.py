"""Pages that need nothing else, from the templates beside this file: `page.html.jinja` has the look that they share."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any


def render(template: str, page: Mapping[str, Any]) -> str:
    """The HTML that a template makes of `page`, which it knows as `r`, with when and by which version it was made.

    Every text is escaped, but for what is Markup already.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("phonate.workflows.pages", "templates")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    made = {"version": version("phonate"), "made": f"{datetime.now(UTC):%d %B %Y}"}
    return environment.get_template(template).render(r={**made, **page})
