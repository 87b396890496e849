"""Additional top-level keys of a task's recipes, whose options are moved to the sections that they belong to."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from phonate.config.documents import Document, Key, Place
from phonate.config.errors import RecipeError
from phonate.config.options import section
from phonate.config.overrides import Override
from phonate.config.settings import Settings

Sections = Mapping[str, tuple[str, ...]]
"""`TaskInfo.sections`."""


def moved_document(document: Document, sections: Sections, typed: type[Settings]) -> Document:
    """The document with all options under `sections` moved to their paths in `typed`, the recipe's type.

    Raises RecipeError if an option is set at both paths.
    """
    named = [key for key in sections if key in document.values]
    if not named:
        return document
    values = {key: value for key, value in document.values.items() if key not in named}
    places = {path: place for path, place in document.places.items() if not path or path[0] not in named}
    for key in named:
        for written, target, value in _moves(key, document.values[key], sections, typed, document):
            _put(values, target, value, written, places, document.places)
            for path, place in document.places.items():
                if path[: len(written)] == written:
                    shown = place.written or ".".join(path)
                    places[target + path[len(written) :]] = replace(place, written=shown)
    return replace(document, values=values, places=places)


def moved_overrides(changes: Sequence[Override], sections: Sections, typed: type[Settings]) -> list[Override]:
    """The overrides, with paths moved to those in `typed`."""
    return [moved for change in changes for moved in _moved_override(change, sections, typed)]


def _moved_override(change: Override, sections: Sections, typed: type[Settings]) -> Iterator[Override]:
    key, *rest = change.path
    if key not in sections:
        yield change
    elif not _is_section(typed, sections[key][0]):
        yield replace(change, path=(*sections[key][0].split("."), *rest))
    elif rest:
        yield replace(change, path=(*_section_of(rest[0], sections[key], typed), *rest))
    elif isinstance(change.value, Mapping):
        for name, value in change.value.items():
            yield replace(change, path=(*_section_of(name, sections[key], typed), name), value=value, typed=None)
    else:
        raise RecipeError(f"{change.source} {key}: expected a mapping (key: value)")


def _moves(
    key: str, value: Any, sections: Sections, typed: type[Settings], document: Document
) -> Iterator[tuple[Key, Key, Any]]:
    """The options under a top-level key: path as written, path in `typed`, value."""
    if not _is_section(typed, sections[key][0]):
        yield (key,), tuple(sections[key][0].split(".")), value
        return
    if value is None:  # a section left empty
        return
    if not isinstance(value, Mapping):
        raise RecipeError(f"{document.places[(key,)].value} {key}: expected a mapping (key: value)")
    for name, below in value.items():
        yield (key, name), (*_section_of(name, sections[key], typed), name), below


def _put(
    values: dict[str, Any],
    target: Key,
    value: Any,
    written: Key,
    places: Mapping[Key, Place],
    all_places: Mapping[Key, Place],
) -> None:
    """Set the value at `target`, copying the sections above it."""
    for part in target[:-1]:
        below = values.get(part)
        if below is not None and not isinstance(below, dict):
            return  # an error that validation reports with its place
        values[part] = dict(below or {})
        values = values[part]
    if target[-1] in values:
        earlier = places[target].key
        raise RecipeError(f"{all_places[written].key} {'.'.join(written)}: written twice, also at {earlier}")
    values[target[-1]] = value


def _class_at(typed: type[Settings], path: str) -> type[Settings] | None:
    found: type[Settings] | None = typed
    for part in path.split("."):
        found = section(found.model_fields[part].annotation) if found and part in found.model_fields else None
    return found


def _is_section(typed: type[Settings], path: str) -> bool:
    return _class_at(typed, path) is not None


def _section_of(name: str, paths: Sequence[str], typed: type[Settings]) -> Key:
    """The path of the section with the option `name`; for an unknown name, of the one with the most similar option."""

    def nearness(path: str) -> float:
        found = _class_at(typed, path)
        known = [] if found is None else [*found.model_fields, *found.refused_keys]
        return max((difflib.SequenceMatcher(None, name, one).ratio() for one in known), default=0.0)

    return tuple(max(paths, key=nearness).split("."))
