"""Explain a recipe: every resolved value with its source and meaning; and its JSON schema."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic_core import PydanticUndefined, to_jsonable_python

from phonate.config.documents import read, value_at
from phonate.config.resolve import REQUIRED, Resolved, parse_overrides, recipe_class, task_of, to_yaml
from phonate.config.settings import Settings, describe, option_at, section
from phonate.config.tasks import task_info


@dataclass(frozen=True)
class Explanation:
    """One value of a resolved recipe."""

    key: str
    value: Any
    """None for a required value that is missing."""
    origin: str
    description: str


def explain(resolved: Resolved) -> list[Explanation]:
    """Every value of `resolved`, in the order of the settings classes."""
    values = resolved.recipe.model_dump(mode="json")
    kind = type(resolved.recipe)
    return [
        Explanation(
            ".".join(path), None if origin == REQUIRED else value_at(values, path), origin, describe(kind, path)
        )
        for path, origin in resolved.origins.items()
    ]


_KEY = re.compile(r"( *)([^\s#'\"-][^:]*):( |$)")


def commented_yaml(resolved: Resolved) -> str:
    """The complete recipe, with the meaning of each option above it. Sections that are null follow as comments."""
    return "\n".join(_commented(resolved.to_yaml(), type(resolved.recipe))) + "\n"


def _commented(text: str, kind: type[Settings]) -> list[str]:
    lines: list[str] = []
    path: list[str] = []
    for line in text.splitlines():
        key = _KEY.match(line)
        if key is not None:
            path = [*path[: len(key[1]) // 2], key[2]]
            if (option := option_at(kind, tuple(path))) is not None:
                mark = f"{key[1]}# "
                lines += textwrap.wrap(option.description, 100, initial_indent=mark, subsequent_indent=mark)
                lines.append(line)
                if line.endswith(": null") and (inner := section(option.field.annotation)) is not None:
                    lines += [f"{key[1]}#   {one}".rstrip() for one in _commented(_defaults(inner), inner)]
                continue
        lines.append(line)
    return lines


def _defaults(settings: type[Settings]) -> str:
    values = {}
    for name, info in settings.model_fields.items():
        default = info.get_default(call_default_factory=True, validated_data={})
        values[name] = REQUIRED if default is PydanticUndefined else to_jsonable_python(default)
    return to_yaml(values)


def schema(source: str | Path, overrides: list[str] | None = None) -> dict[str, Any]:
    """JSON schema of the recipes of the task that `source` names, for editors that validate YAML.

    Descriptions are the docstrings of the settings. All parts are optional, as in a recipe.
    """
    task = task_of(read(source), parse_overrides(overrides or []))
    content = recipe_class(task).model_json_schema()
    content["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    content["title"] = f"phonate recipe: {task}"
    content["required"] = ["task"]
    content["properties"]["task"]["const"] = task
    sections = task_info(task).sections
    content["properties"] |= {key: _section_schema(content, paths) for key, paths in sections.items()}
    return content


def _section_schema(content: dict[str, Any], paths: tuple[str, ...]) -> dict[str, Any]:
    """The schema of a top-level key whose options are those of the sections at `paths`, or which is that option."""
    nodes = [_node(content, path) for path in paths]
    if any("properties" not in one for one in nodes):
        return nodes[0]
    options = {name: option for one in reversed(nodes) for name, option in one["properties"].items()}
    return {"type": "object", "additionalProperties": False, "properties": options}


def _node(content: dict[str, Any], path: str) -> dict[str, Any]:
    node = content
    for part in path.split("."):
        node = node["properties"][part]
        while "$ref" in node:
            node = content["$defs"][node["$ref"].rpartition("/")[2]]
    return node
