"""Overrides: `training.optimizer.lr=2e-4` on the command line, `{"training.max_steps": 10}` in Python."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from phonate.config.documents import DEEPEST, Key, parse_value
from phonate.config.errors import RecipeError

COMMAND_LINE = "command line"
PYTHON = "overrides"


@dataclass(frozen=True)
class Override:
    """One value for one path."""

    path: Key
    value: Any
    source: str
    """`command line`, or `overrides` for those given in Python."""
    typed: str | None = None
    """What was typed on the command line."""

    def for_text(self) -> Override:
        """The override for an option that is a text: what was typed, such as 007, unless it is null."""
        keeps = self.typed is None or self.value is None or isinstance(self.value, (str, list, dict))
        return self if keeps else replace(self, value=self.typed)


Overrides = Iterable[str | Override] | Mapping[str, Any]
"""As on the command line, or in Python, or parsed already."""


def parse_overrides(overrides: Overrides) -> list[Override]:
    """The overrides in order. Values on the command line are YAML 1.2: `null`, `[a, b]` and `{a: 1}` work; text
    needs no quotes, and for an option that is a text neither do numbers (`Override.for_text`).

    Raises RecipeError when one is not `key.path=value` or its value is not YAML.
    """
    if isinstance(overrides, Mapping):
        return [Override(_path(str(key), PYTHON), value, PYTHON) for key, value in overrides.items()]
    if isinstance(overrides, str):
        overrides = [overrides]
    return [one if isinstance(one, Override) else _parse(one) for one in overrides]


def _parse(text: str) -> Override:
    key, equals, value = text.partition("=")
    if not equals:
        raise RecipeError(f"{COMMAND_LINE} {text}: an override is written key.path=value")
    path = _path(key.strip(), COMMAND_LINE)
    return Override(path, _value(value, f"{COMMAND_LINE} {key.strip()}"), COMMAND_LINE, value.strip())


def _value(text: str, name: str) -> Any:
    """The YAML value; plain text is kept verbatim, as ` #` and `: ` have no meaning in names and paths."""
    value = parse_value(text, name)
    plain = text.strip()
    if plain.startswith(("[", "{", "'", '"', "!", "&", "|", ">")) or not isinstance(value, (str, list, dict)):
        return value
    return plain


def _path(key: str, source: str) -> Key:
    path = tuple(key.split("."))
    if len(path) > DEEPEST or not all(part and part == part.strip() for part in path):
        raise RecipeError(f"{source} {key}: a key is names joined by dots, such as training.optimizer.lr")
    return path
