"""From a recipe and overrides to typed settings, with the origin of every value.

Order: overrides > recipe > the preset of `size` > defaults. Sections merge key by key; any other value,
lists and free mappings such as `training.loss.weights` included, replaces what was under it. Paths in a
recipe are relative to the current directory, not to the recipe.
"""

from __future__ import annotations

import copy
import difflib
import itertools
import json
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from io import StringIO
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML
from ruamel.yaml.representer import SafeRepresenter
from ruamel.yaml.tag import Tag

from phonate.config.documents import DEEPEST, Document, Key, Place, parse_value, read, value_at
from phonate.config.errors import RecipeError, in_command
from phonate.config.registry import listed, nearest
from phonate.config.settings import Settings, mistake_lines, section, takes_text, unknown_names
from phonate.config.tasks import TASKS, TaskSettings, task_info, task_settings

# ------------------------------------------------------------------------------------------- Overrides

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
    """What was typed, on the command line or in a list."""

    def for_text(self) -> Override:
        """The override for an option that is a text: what was typed, such as 007, unless it is null."""
        keeps = self.typed is None or self.value is None or isinstance(self.value, (str, list, dict))
        return self if keeps else replace(self, value=self.typed)


Overrides = Iterable[str | Override] | Mapping[str, Any]
"""Words as on the command line, or a mapping, or parsed already."""


def parse_overrides(overrides: Overrides) -> list[Override]:
    """The overrides in order. Values on the command line are YAML 1.2: `null`, `[a, b]` and `{a: 1}` work; text
    needs no quotes, and for an option that is a text neither do numbers (`Override.for_text`).

    Raises RecipeError when one is not `key.path=value` or its value is not YAML.
    """
    if isinstance(overrides, Mapping):
        return [Override(_path(str(key), PYTHON), value, PYTHON) for key, value in overrides.items()]
    if isinstance(overrides, str):
        overrides = [overrides]
    pairs = itertools.pairwise([*overrides, ""])
    source = COMMAND_LINE if in_command() else PYTHON
    return [one if isinstance(one, Override) else _parse(one, after, source) for one, after in pairs]


def _parse(text: str, following: object, source: str) -> Override:
    """The override that a word of the `source` is. `following`: the word behind it."""
    key, equals, value = text.partition("=")
    if not equals:
        near = shlex.quote(f"data.path={text}") if os.path.exists(text) else ""
        if "." in text and isinstance(following, str) and following and "=" not in following:
            near = shlex.quote(f"{text}={following}")
        meant = f"; did you mean {near}?" if near else ""
        raise RecipeError(f"{source} {text}: an override is written key.path=value, without spaces{meant}")
    path = _path(key.strip(), source)
    return Override(path, _value(value, f"{source} {key.strip()}"), source, value.strip())


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


# ------------------------------------------------------- Additional top-level keys of a task's recipes

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
    settings: type[Settings] | None = typed
    for part in path.split("."):
        settings = (
            section(settings.model_fields[part].annotation) if settings and part in settings.model_fields else None
        )
    return settings


def _is_section(typed: type[Settings], path: str) -> bool:
    return _class_at(typed, path) is not None


def _section_of(name: str, paths: Sequence[str], typed: type[Settings]) -> Key:
    """The path of the section with the option `name`; for an unknown name, of the one with the most similar option."""

    def nearness(path: str) -> float:
        settings = _class_at(typed, path)
        known = [] if settings is None else [*settings.model_fields, *settings.refused_keys]
        return max((difflib.SequenceMatcher(None, name, one).ratio() for one in known), default=0.0)

    return tuple(max(paths, key=nearness).split("."))


# ------------------ Preset, recipe and overrides merged, with the place where each value was written

Origin = str
"""`command line`, `overrides`, `recipe.yaml:12:5`, `size small`, `data: 8 minutes` or `default`; where another option's
value is taken, its origin and its key."""

Locate = Callable[[Key], Place | None]
"""Where a path was written."""

PARTS = ("data", "model", "training")
EPOCHS, MAX_STEPS = ("training", "epochs"), ("training", "max_steps")
"""Two ways to say how long training lasts. Steps count where both are written together; epochs that are written alone
replace the steps of the layers below."""


class Layers:
    """The values of a recipe while its layers are merged, lowest first, and where each was written."""

    def __init__(self, document: Document, base: Document | None = None) -> None:
        self.document = document
        self.documents = [document] if base is None else [base, document]
        """Lowest first."""
        self._implied: tuple[str, Origin] | None = None
        """A task that no document names, and what implies it."""
        self.values: dict[str, Any] = {}
        self.places: dict[Key, Place] = {}
        self._typed: type[Settings] | None = None
        self._section = cache(_inner)  # asked for the same ones hundreds of times

    def task(self, changes: list[Override]) -> str:
        """The task's name, from the overrides, the recipe, or an option that only one task has."""
        place, name = self.top("task", changes)
        if name is None:
            name = self._implied_task(changes)
        if not isinstance(name, str) or name not in TASKS.names():
            raise RecipeError(f"{place} task: no task {name!r}; {nearest(str(name), TASKS.names())}")
        return name

    def _implied_task(self, changes: list[Override]) -> str:
        """The task of a recipe that names none, from the options that tasks declare for it."""
        implied = {}
        for task in TASKS.names():
            for key in task_info(task).implied_by:
                path = tuple(key.split("."))
                if any(path in document.places for document in self.documents) or any(
                    change.path[: len(path)] == path for change in changes
                ):
                    implied[task] = key
        if len(implied) != 1:
            why = f" ({' and '.join(implied.values())} imply different ones)" if implied else ""
            raise RecipeError(f"{self.document.name}: no task{why}; write task: with one of {listed(TASKS.names())}")
        ((task, key),) = implied.items()
        self._implied = task, f"implied by {key}"
        return task

    def move_sections(self, sections: Sections, typed: type[Settings]) -> None:
        """Move what stands under the task's own top-level keys to where it belongs in `typed`."""
        self.documents = [moved_document(document, sections, typed) for document in self.documents]

    def top(self, key: str, changes: list[Override]) -> tuple[str, Any]:
        """Place and value of a top-level key, before anything is merged."""
        place, value = self.document.name, None
        for document in self.documents:
            if key in document.values:
                place, value = document.places[(key,)].value, document.values[key]
        for change in changes:
            if change.path == (key,):
                place, value = change.source, change.value
        return place, value

    def stack(self, typed: type[Settings], settings: TaskSettings, changes: list[Override]) -> None:
        """Preset, then recipes, then overrides."""
        self._typed = typed
        place, size = self.top("size", changes)
        size = "default" if size is None else size
        preset: Mapping[str, Any] = {}
        if isinstance(size, str):
            sizes = settings.sizes_of(self._kind(changes))
            preset = sizes.get(size, {})
            if size not in sizes and size != "default":
                hint = nearest(size, list(sizes)) if sizes else "this task has no sizes"
                raise RecipeError(f"{place} size: no size {size!r}; {hint}")
        self._merge(typed, preset, (), lambda path: Place.of(f"size {size}"))
        self.places = {path: place for path, place in self.places.items() if not isinstance(self._at(path), dict)}
        self._merge(typed, {part: {} for part in PARTS}, (), lambda path: None)
        if self._implied is not None:
            task, origin = self._implied
            self._merge(typed, {"task": task}, (), lambda path: Place.of(origin))
        for document in self.documents:
            # `training:` with nothing under it is a section left empty, not null
            written = {key: {} if value is None and key in PARTS else value for key, value in document.values.items()}
            self._merge(typed, written, (), document.places.get)
            if value_at(written, EPOCHS) is not None and value_at(written, MAX_STEPS) is None:
                where = document.places.get(EPOCHS, Place.of(document.name))
                self._set(typed, Override(MAX_STEPS, None, where.value))
        for change in changes:
            self._set(typed, change)
        epochs = next((change for change in changes if gives(change, EPOCHS)), None)
        if epochs is not None and not any(gives(change, MAX_STEPS) for change in changes):
            self._set(typed, Override(MAX_STEPS, None, epochs.source))

    def take_synonyms(self, typed: type[Settings], synonyms: Mapping[str, str]) -> None:
        """Give each option that has no value the one that was written under its synonym (`TaskInfo.synonyms`)."""
        for second, first in synonyms.items():
            path = tuple(second.split("."))
            value = value_at(self.values, path)
            if value is not None and value_at(self.values, first.split(".")) is None:
                self._set(typed, Override(tuple(first.split(".")), value, f"{self.places[path].value} {second}"))

    def _kind(self, changes: list[Override]) -> Any:
        """The value of `model.kind`, before anything is merged."""
        kind = None
        for document in self.documents:
            written = document.values.get("model")
            kind = written.get("kind", kind) if isinstance(written, Mapping) else kind
        for change in changes:
            if change.path == ("model", "kind"):
                kind = change.value
            elif change.path == ("model",) and isinstance(change.value, Mapping):
                kind = change.value.get("kind", kind)
        return kind

    def _merge(self, within: Any, upper: Mapping[str, Any], path: Key, place: Locate) -> None:
        """Merge `upper` into the values under `path`; `within` is the settings class there, if any."""
        target = self._at(path)
        for key, value in upper.items():
            self._put(self._section(within, key), target, (*path, key), value, place)

    def _put(self, inner: Any, target: Any, path: Key, value: Any, place: Locate) -> None:
        """Set one value: sections are merged, anything else is replaced."""
        key: Any = int(path[-1]) if isinstance(target, list) else path[-1]
        if inner is not None and isinstance(value, Mapping):
            below = target.get(key) if isinstance(target, dict) else target[key]
            if not isinstance(below, dict):
                target[key] = {}
            self._note(path, place)
            self._merge(inner, value, path, place)
            return
        if isinstance(target, list) or key in target:  # else nothing was written there before
            for old in [known for known in self.places if known[: len(path)] == path]:
                del self.places[old]
        target[key] = copy.deepcopy(value)
        for below_path in _paths(value, path):
            self._note(below_path, place)

    def _note(self, path: Key, place: Locate) -> None:
        where = place(path)
        if where is not None:
            self.places[path] = where

    def _at(self, path: Key) -> Any:
        value: Any = self.values
        for part in path:
            value = value[int(part)] if isinstance(value, list) else value[part]
        return value

    def _set(self, typed: type[Settings], change: Override) -> None:
        """Apply one override, creating missing sections above it."""
        within: Any = typed
        target: Any = self.values
        for depth, part in enumerate(change.path[:-1], start=1):
            path = change.path[:depth]
            if isinstance(target, list):
                self._check_position(change, target, part)
                target = target[int(part)]
                continue
            within = self._section(within, part)
            if not isinstance(target.get(part), dict | list):
                self._put(None, target, path, {}, lambda _: Place.of(change.source))
            target = target[part]
        if isinstance(target, list):
            self._check_position(change, target, change.path[-1])
        elif not isinstance(target, dict):
            raise RecipeError(
                f"{change.source} {'.'.join(change.path)}: no such option, as the one above it is a single value"
            )
        inner = self._section(within, change.path[-1])
        self._put(inner, target, change.path, change.value, lambda _: Place.of(change.source))

    @staticmethod
    def _check_position(change: Override, target: list[Any], part: str) -> None:
        if not (part.isdecimal() and int(part) < len(target)):
            raise RecipeError(
                f"{change.source} {'.'.join(change.path)}: {part} is no position in a list of {len(target)}"
            )

    def fill(self, path: Key, value: str) -> None:
        """Put `value` where nothing was written, with itself as its origin."""
        self._put(None, self._at(path[:-1]), path, value, lambda _: Place.of(value))

    def json(self) -> str:
        """The values as JSON, the form in which pydantic is strict but takes lists for tuples."""
        try:
            text = json.dumps(self.values, default=_plain, ensure_ascii=False)
            text.encode("utf-8")
            return text
        except UnicodeEncodeError:  # the name of a file, given from Python
            wrong = next((path for path in _paths(self.values, ()) if _is_not_utf8(self._at(path))), ())
            place = f"{self.origin(wrong)} {'.'.join(wrong)}".strip()
            raise RecipeError(f"{place}: {self._at(wrong)!r} is not UTF-8, as recipes are; rename it") from None
        except (TypeError, ValueError, RecursionError) as error:
            raise RecipeError(f"{self.document.name}: a value that YAML can't express: {error}") from None

    def origins(self, resolved: Mapping[str, Any]) -> dict[Key, Origin]:
        """Where every value of the resolved recipe came from."""
        return {path: self.origin(path) for path in _leaves(resolved, ())}

    def origin(self, path: Key) -> Origin:
        """Where the value at `path` was written."""
        for length in range(len(path), 0, -1):
            place = self.places.get(path[:length])
            # a mapping above the value says nothing about it; a short form (`data: folder`) does
            if place and (length == len(path) or not isinstance(self._at(path[:length]), dict)):
                return place.value
        return self._inherited(path) or "default"

    def _inherited(self, path: Key) -> Origin | None:
        """Where the value of another section was written that stands for the one at `path` (`Settings.inherits`)."""
        within = self._typed
        for depth, key in enumerate(path):
            if within is None:
                return None
            if (shared := within.inherits.get(key)) is not None:
                other = (*path[:depth], shared, *path[depth + 1 :])
                return f"{self.places[other].value} {'.'.join(other)}" if other in self.places else None
            within = self._section(within, key)
        return None


def _inner(within: type[Settings] | None, key: str) -> type[Settings] | None:
    if within is None or key not in within.model_fields:
        return None
    return section(within.model_fields[key].annotation)


def gives(change: Override, path: Key) -> bool:
    """Whether an override sets the option at `path`, by itself or within a section."""
    depth = len(change.path)
    return change.path == path[:depth] and (depth == len(path) or value_at(change.value, path[depth:]) is not None)


def _paths(value: Any, path: Key) -> list[Key]:
    """`path` and every path below it in a plain value."""
    paths = [path]
    if isinstance(value, Mapping):
        items: Iterable[tuple[Any, Any]] = value.items()
    else:
        items = enumerate(value) if isinstance(value, list | tuple) else ()
    for key, child in items:
        paths.extend(_paths(child, (*path, str(key))))
    return paths


def _leaves(value: Any, path: Key) -> list[Key]:
    if isinstance(value, dict) and value:
        return [leaf for key, child in value.items() for leaf in _leaves(child, (*path, str(key)))]
    return [path]


def _is_not_utf8(value: Any) -> bool:
    return isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value)


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Settings):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} {value!r}")


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
        return value_at(self.values, path)


_OTHER_IN_YAML_1_1 = re.compile(r"(?i:y|n|yes|no|on|off)|[-+]?\d[\d_]*(:[0-5]?\d)+(\.[\d_]*)?")
"""Texts that readers of YAML 1.1, such as PyYAML, take for booleans or numbers to the base of 60."""


_tag = cache(lambda name: Tag(suffix=name))


class _Representer(SafeRepresenter):
    """Writes values so that readers of YAML 1.1 and of 1.2 find the same."""

    def represent_scalar(self, tag: Any, value: Any, style: Any = None, anchor: Any = None) -> Any:
        """A value. Tags of the same name are one object, as each spells its name out when it is first asked for."""
        return super().represent_scalar(_tag(tag) if isinstance(tag, str) else tag, value, style, anchor)

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
    yaml = YAML(typ="safe")  # libyaml's, where it is installed
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
    trains: bool = True,
) -> Resolved:
    """Like `resolve`, for a document that was already read; it overrides the recipe `base`, if given.

    `trains`: whether it is to be trained, so that the losses, optimizers and so on that it names must be known.
    """
    changes = parse_overrides(overrides)
    layers = Layers(document, base)
    task = layers.task(changes)
    typed, info = recipe_class(task), task_info(task)
    sections = info.sections
    layers.move_sections(sections, typed)
    changes = [moved for change in changes for moved in _moved_override(change, sections, typed)]
    changes = [change.for_text() if takes_text(typed, change.path) else change for change in changes]
    layers.stack(typed, task_settings(task), changes)
    layers.take_synonyms(typed, info.synonyms)
    try:
        try:
            recipe = typed.model_validate_json(layers.json(), strict=True)
        except ValidationError as error:
            later = [one for one in error.errors() if incomplete and _can_be_given_later(one)]
            if not later:
                raise
            for one in later:  # other mistakes are told by the second look
                layers.fill(tuple(map(str, one["loc"])), REQUIRED)
            recipe = typed.model_validate_json(layers.json(), strict=True)
    except ValidationError as error:
        lines = mistake_lines(error, typed, layers.values, layers.places, document.name)
        raise RecipeError("\n".join(lines)) from None
    unknown = [
        f"{layers.origin(path)} {'.'.join(path)}: {kind} {name!r} is not known; {hint}"
        for path, kind, name, hint in (unknown_names(recipe) if trains else ())
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
    sizes = [change for change in changes if change.path == ("size",)]
    size = resolved.recipe.size
    kind = getattr(resolved.recipe.model, "kind", None)
    preset = task_settings(resolved.recipe.task).sizes_of(kind).get(size)
    if sizes and preset and f"size {size}" not in resolved.origins.values():
        raise RecipeError(
            f"{sizes[-1].source} size: {resolved.document.name} sets every option of size {size} itself, so none would "
            "change; start from a recipe that leaves those options out"
        )
