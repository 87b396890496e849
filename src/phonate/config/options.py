"""Enumerates options from settings classes, for error messages, the reference page and `explain`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from phonate.config.registry import Named, load, nearest
from phonate.config.settings import Settings


@dataclass(frozen=True)
class Option:
    """One option of a recipe."""

    path: tuple[str, ...]
    field: FieldInfo
    owner: type[Settings]
    """The settings class of the field."""

    @property
    def key(self) -> str:
        """Its dotted path."""
        return ".".join(self.path)

    @property
    def description(self) -> str:
        """The docstring under the field, on one line."""
        text = self.field.description or self.owner.documentation().get(self.path[-1], "")
        return " ".join(text.split())


def section(annotation: Any) -> type[Settings] | None:
    """The settings class that a field holds: of `X`, `X | None` or `Annotated[X, ...]`, but not of lists."""
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        return annotation
    origin = get_origin(annotation)
    if origin in (list, tuple, dict, set, frozenset):
        return None
    return next((found for part in get_args(annotation) if (found := section(part))), None)


def _sections(annotation: Any) -> list[type[Settings]]:
    """All settings classes in a type, including those of list items and mapping values."""
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        return [annotation]
    return [found for part in get_args(annotation) for found in _sections(part)]


def options(settings: type[Settings], prefix: tuple[str, ...] = ()) -> Iterator[Option]:
    """Every option under `settings`, depth first in the order of declaration; sections are not listed."""
    for name, info in settings.model_fields.items():
        inner = section(info.annotation)
        if inner is None:
            yield Option((*prefix, name), info, settings)
        else:
            yield from options(inner, (*prefix, name))


def _classes_at(settings: type[Settings], path: tuple[str, ...]) -> list[type[Settings]]:
    """The settings classes whose options may stand under `path`."""
    classes: list[type[Settings]] = [settings]
    for part in path:
        fields = [found.model_fields[part] for found in classes if part in found.model_fields]
        if fields:
            classes = [inner for info in fields for inner in _sections(info.annotation)]
    return classes


def names_at(settings: type[Settings], path: tuple[str, ...]) -> list[str]:
    """The option names that may stand under `path`."""
    return sorted({name for found in _classes_at(settings, path) for name in found.model_fields})


def refusal(settings: type[Settings], path: tuple[str, ...]) -> str | None:
    """Why there is no option at `path`, where a settings class says so (`Settings.refused_keys`)."""
    return next(
        (found.refused_keys[path[-1]] for found in _classes_at(settings, path[:-1]) if path[-1] in found.refused_keys),
        None,
    )


def option_at(settings: type[Settings], path: tuple[str, ...]) -> Option | None:
    """The option at `path`, or none."""
    option: Option | None = None
    current: type[Settings] | None = settings
    for part in path:
        if current is None or part not in current.model_fields:
            return None
        option = Option(path, current.model_fields[part], current)
        current = section(option.field.annotation)
    return option


def takes_text(settings: type[Settings], path: tuple[str, ...]) -> bool:
    """Whether the option at `path` is a text, or null, and nothing else."""
    option = option_at(settings, path)
    return option is not None and _is_text(option.field.annotation)


def _is_text(annotation: Any) -> bool:
    if get_origin(annotation) is Annotated:
        return _is_text(get_args(annotation)[0])
    members = [part for part in get_args(annotation) if part is not NoneType]
    return annotation is str or (get_origin(annotation) in (Union, UnionType) and all(map(_is_text, members)))


def describe(settings: type[Settings], path: tuple[str, ...]) -> str:
    """The docstring of the option at `path`, or nothing."""
    option = option_at(settings, path)
    return option.description if option else ""


def unknown_names(settings: Settings, prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str, str, str]]:
    """Path, kind, name and hint of each name in `settings` that is not in its registry (see `Named`)."""
    for key, info in type(settings).model_fields.items():
        value, path = getattr(settings, key), (*prefix, key)
        if isinstance(value, Settings):
            yield from unknown_names(value, path)
        elif isinstance(value, tuple | list):
            for index, item in enumerate(value):
                if isinstance(item, Settings):
                    yield from unknown_names(item, (*path, str(index)))
        for mark in info.metadata:
            if isinstance(mark, Named):
                registry = load(mark.registry)
                for name, place in _names(value, path):
                    if name not in registry.names():
                        yield place, registry.kind, name, nearest(name, registry.names())


def _names(value: Any, path: tuple[str, ...]) -> list[tuple[str, tuple[str, ...]]]:
    """The names that a `Named` field holds, and their paths: its text, or the keys of its mapping."""
    if isinstance(value, dict):
        return [(name, (*path, name)) for name in value]
    return [(value, path)] if isinstance(value, str) else []
