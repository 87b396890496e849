"""From a recipe and overrides to typed settings, with the origin of every value.

Order: overrides > recipe > the preset of `size` > defaults. Sections merge key by key; any other value,
lists and free mappings such as `training.loss.weights` included, replaces what was under it. Paths in a
recipe are relative to the current directory, not to the recipe.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML
from ruamel.yaml.representer import SafeRepresenter

from phonate.config import mistakes
from phonate.config.documents import Document, Key, read
from phonate.config.errors import RecipeError
from phonate.config.layers import Layers, Origin, Override, Overrides, moved_overrides, parse_overrides
from phonate.config.options import takes_text, unknown_names
from phonate.config.settings import Settings
from phonate.config.tasks import task_info, task_settings

# -------------------------- A recipe: one document with the task, the data, the model and the training

DataT = TypeVar("DataT", bound=Settings)
ModelT = TypeVar("ModelT", bound=Settings)
TrainingT = TypeVar("TrainingT", bound=Settings)

Size = Literal["tiny", "small", "medium", "default", "large"]


class Recipe(Settings, Generic[DataT, ModelT, TrainingT]):
    """`task`, `data`, `model` and `training`, typed by the task that it names."""

    task: str
    """What is trained: a registered task such as conversion."""
    size: Size = "default"
    """Sets the model's and the optimizer's numbers together; what the recipe writes out comes first."""
    data: DataT
    """The corpus and how it is turned into samples."""
    model: ModelT
    """The model's numbers."""
    training: TrainingT
    """How it is trained."""


@dataclass(frozen=True)
class Resolved:
    """A complete recipe."""

    recipe: Recipe[Any, Any, Any]
    origins: dict[Key, Origin] = field(repr=False)
    """Path of every value (lists count as one) -> where it came from."""
    document: Document = field(repr=False)
    """The recipe as it was written."""

    @property
    def name(self) -> str:
        """Default name of its run: that of the recipe's file, of a run's folder, or else the task."""
        return self.document.title or self.recipe.task

    @property
    def text(self) -> str:
        """The recipe's text as it was written, before overrides."""
        return self.document.text

    def to_yaml(self) -> str:
        """Every value written out; resolving this text gives equal settings."""
        return self._yaml

    @cached_property
    def values(self) -> dict[str, Any]:
        """Every value, plain."""
        return self.recipe.model_dump(mode="json")

    @cached_property
    def _yaml(self) -> str:
        return to_yaml(self.values)

    def value(self, path: Key) -> Any:
        """The value at `path`; None where there is none."""
        value: Any = self.values
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        return value


_OTHER_IN_YAML_1_1 = re.compile(r"(?i:y|n|yes|no|on|off)|[-+]?\d[\d_]*(:[0-5]?\d)+(\.[\d_]*)?")
"""Texts that readers of YAML 1.1, such as PyYAML, take for booleans or numbers to the base of 60."""


class _Representer(SafeRepresenter):
    """Writes values so that readers of YAML 1.1 and of 1.2 find the same."""

    def represent_str(self, data: str) -> Any:
        """Text, in quotes where a reader of either would take it for something else."""
        quotes = "'" if _OTHER_IN_YAML_1_1.fullmatch(data) else None
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=quotes)

    def represent_float(self, data: float) -> Any:
        """A number: 1.0e-05, because 1e-05 is text in YAML 1.1."""
        node = super().represent_float(data)
        if "." not in node.value:
            node.value = node.value.replace("e", ".0e")
        return node


_Representer.add_representer(str, _Representer.represent_str)
_Representer.add_representer(float, _Representer.represent_float)


def to_yaml(values: Mapping[str, Any]) -> str:
    """YAML text of plain values, keys in the order given, in which readers of YAML 1.1 and of 1.2 find the same."""
    yaml = YAML(typ="safe", pure=True)
    yaml.Representer = _Representer
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.width = 110
    stream = StringIO()
    yaml.dump(dict(values), stream)
    return stream.getvalue()


REQUIRED = "required"
"""What an incomplete recipe has where a value is missing."""


def recipe_class(task: str) -> type[Recipe[Any, Any, Any]]:
    """The recipe's type for `task`."""
    settings = task_settings(task)
    return Recipe[settings.data, settings.model, settings.training]  # type: ignore[name-defined]


def task_of(document: Document, changes: list[Override]) -> str:
    """The task that a recipe names. Raises RecipeError, with the choices, when it names none."""
    return Layers(document).task(changes)


def resolve(source: str | Path, overrides: Overrides = (), *, incomplete: bool = False) -> Resolved:
    """Load the recipe `source` (a file, a run folder or a shipped name) and put `overrides` over it.

    `incomplete` allows required text options to be missing: they have the value and the origin `REQUIRED`.

    Raises RecipeError with one line for each mistake: where, which option, what is wrong, how to fix it.
    """
    return resolve_document(read(source), overrides, incomplete=incomplete)


def resolve_document(
    document: Document,
    overrides: Overrides = (),
    base: Document | None = None,
    *,
    incomplete: bool = False,
) -> Resolved:
    """Like `resolve`, for a document that was already read; it overrides the recipe `base`, if given."""
    changes = parse_overrides(overrides)
    layers = Layers(document, base)
    task = layers.task(changes)
    typed, info = recipe_class(task), task_info(task)
    sections = info.sections
    layers.move_sections(sections, typed)
    changes = moved_overrides(changes, sections, typed)
    changes = [change.for_text() if takes_text(typed, change.path) else change for change in changes]
    layers.stack(typed, task_settings(task), changes)
    layers.take_synonyms(typed, info.synonyms)
    try:
        try:
            recipe = typed.model_validate_json(layers.json(), strict=True)
        except ValidationError as error:
            if not incomplete or not all(map(_can_be_given_later, error.errors())):
                raise
            for one in error.errors():
                layers.fill(tuple(map(str, one["loc"])), REQUIRED)
            recipe = typed.model_validate_json(layers.json(), strict=True)
    except ValidationError as error:
        lines = mistakes.lines(error, typed, layers.values, layers.places, document.name)
        raise RecipeError("\n".join(lines)) from None
    unknown = [
        f"{layers.origin(path)} {'.'.join(path)}: {kind} {name!r} is not known; {hint}"
        for path, kind, name, hint in unknown_names(recipe)
    ]
    if unknown:
        raise RecipeError("\n".join(unknown))
    resolved = Resolved(recipe, layers.origins(recipe.model_dump(mode="json")), document)
    _check_size(resolved, changes)
    return resolved


def _can_be_given_later(error: ErrorDetails) -> bool:
    """Whether an option is missing, not a part of a list that was written."""
    return error["type"] == "missing" and not any(isinstance(part, int) for part in error["loc"])


def _check_size(resolved: Resolved, changes: list[Override]) -> None:
    """Refuse a size that changes nothing because the recipe sets all of its options."""
    asked = [change for change in changes if change.path == ("size",)]
    size = resolved.recipe.size
    kind = getattr(resolved.recipe.model, "kind", None)
    preset = task_settings(resolved.recipe.task).sizes_of(kind).get(size)
    if asked and preset and f"size {size}" not in resolved.origins.values():
        raise RecipeError(
            f"{asked[-1].source} size: {resolved.document.name} sets every option of size {size} itself, so none would "
            "change; start from a recipe that leaves those options out"
        )
