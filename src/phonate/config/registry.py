"""Registries: names in recipes -> objects. The only way for a lower layer to reach a higher one."""

from __future__ import annotations

import difflib
import functools
import hashlib
import importlib
import importlib.util
import itertools
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from phonate.config.errors import InputError, to_plug_in

if TYPE_CHECKING:
    from importlib.metadata import Distribution

T = TypeVar("T")

_loaded: list[dict[str, str]] = []
"""The plug-ins of this process."""


_LISTED = 40
"""Names that a message lists, at most."""
_FEW = 8
"""The same where something else lists all."""
_LOOKED_AT = 10_000
"""Names in a folder that are compared with a mistyped one, at most."""


def nearest(name: str, known: list[str], elsewhere: str = "") -> str:
    """`did you mean X?`, or the known names where none is near. `elsewhere`: see `listed`."""
    if not known:
        return f"none is registered; a plug-in registers one ({to_plug_in(['FILE'])})"
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]}?"
    return f"there is only {known[0]!r}" if len(known) == 1 else f"choose from {listed(sorted(known), elsewhere)}"


def looked_in(path: Path) -> str:
    """` in FOLDER` with the folder that a relative `path` is looked for in; "" for an absolute one."""
    return "" if path.is_absolute() else f" in {Path.cwd()}"


def nearest_path(path: Path) -> str:
    """`; did you mean X?` with what lies beside a `path` that is not there and is called much like it; else ""."""
    try:
        names = [entry.name for entry in itertools.islice(path.parent.iterdir(), _LOOKED_AT)]
    except OSError:  # there is no such folder either, or it can't be read
        return ""
    close = difflib.get_close_matches(path.name, names, n=1, cutoff=0.8)
    return f"; did you mean {path.with_name(close[0])}?" if close else ""


def listed(names: Sequence[str], elsewhere: str = "") -> str:
    """Names for a message, in quotes: a voice may be called `recordings`. Of very many, the first; of many, where all
    are listed `elsewhere`."""
    most = _FEW if elsewhere else _LISTED
    if len(names) <= most:
        return ", ".join(map(repr, names))
    more = f" and {len(names) - most} more" + (f" ({elsewhere} lists all)" if elsewhere else "")
    return ", ".join(map(repr, names[:most])) + more


class UnknownVoiceError(InputError):
    """A speaker that a model does not know.

    Args:
        name: Of the speaker.
        known: The names of the model's.
    """

    def __init__(self, name: str, known: list[str]) -> None:
        which = nearest(name, known, "phonate.load(RUN).speakers in Python")
        super().__init__(f"speaker {name!r} is not in this model; {which}")
        self.name, self.known = name, known


@dataclass(frozen=True)
class Named:
    """Marks a settings field that holds a name, or names as keys: `type: Annotated[str, Named("module:REGISTRY")]`.

    Resolving a recipe looks the name up, so that a mistaken one is reported with its line before anything is built.
    The registry's module must not import torch.
    """

    registry: str


@functools.cache
def _entry_points(group: str) -> dict[str, str]:
    """Name -> value of an entry-point group; of two distributions with the same name the first counts."""
    declaring: dict[str, Distribution] = {}
    for one, text in _declared():
        if f"[{group}]" in text:
            declaring.setdefault(one.name, one)
    return {point.name: point.value for one in declaring.values() for point in one.entry_points.select(group=group)}


@functools.cache
def _declared() -> list[tuple[Distribution, str]]:
    """The installed distributions that declare entry points, and how. To parse them all, as
    `importlib.metadata.entry_points` does, takes twice as long."""
    from importlib.metadata import distributions  # takes long

    return [(one, text) for one in distributions() if (text := one.read_text("entry_points.txt"))]


class Registry(Generic[T]):
    """Entries of one kind (losses, callbacks, tasks, ...), found by name and imported on use.

    Three sources, later ones first: the package's own `entries` (name -> `module:name`), entry points of other packages
    under `group`, and `register`. An entry point that names a module means the public object called like the entry,
    underscores and case aside, with or without `suffix`: `FocalLoss` for `focal`.
    """

    def __init__(
        self,
        kind: str,
        entries: Mapping[str, str] = MappingProxyType({}),
        *,
        suffix: str = "",
        group: str | None = None,
    ) -> None:
        self.kind = kind
        self.suffix = suffix.lower()
        self.group = group
        self._own = dict(entries)
        self._registered: dict[str, T | str] = {}

    def register(self, name: str, entry: T | str) -> None:
        """Add `entry`, an object or a `module:name` string, as `name`. A second entry replaces the first."""
        self._registered[name] = entry

    def own(self) -> Mapping[str, str]:
        """The entries that come with phonate."""
        return self._own

    def _plugged_in(self) -> dict[str, str]:
        return _entry_points(self.group) if self.group else {}

    def names(self) -> list[str]:
        """Every name, sorted, without importing what they name."""
        return sorted({*self.own(), *self._plugged_in(), *self._registered})

    def find(self, name: str) -> T | str:
        """The entry of `name` without importing it: a registered object, `module:name`, or a module's dotted name.

        Raises InputError with the nearest name.
        """
        if name in self._registered:
            return self._registered[name]
        plugged_in = self._plugged_in()
        if name in plugged_in:
            return plugged_in[name]
        own = self.own()
        if name in own:
            return own[name]
        raise InputError(f"{self.kind} {name!r} is not known; {nearest(name, self.names())}")

    def get(self, name: str) -> T:
        """The entry called `name`. Raises InputError with the nearest name."""
        entry = self.find(name)
        if not isinstance(entry, str):
            return entry
        if ":" in entry:
            return cast(T, load(entry))
        return cast(T, public_object(importlib.import_module(entry), name, self.suffix))


def public_object(module: ModuleType, name: str, suffix: str) -> Any:
    """The object of `module` called `name`, underscores and case aside, with or without `suffix`. What it defines comes
    before what it imports: a task called sequence may well use collections.abc.Sequence."""
    spelling = name.replace("_", "").lower()
    objects = []
    for attribute, value in vars(module).items():
        plain = attribute.replace("_", "").lower()
        named_so = plain in {spelling, spelling + suffix} and not attribute.startswith("_")
        if named_so and not isinstance(value, ModuleType):  # csv.py may well import csv
            objects.append(value)
    if not objects:
        raise InputError(f"{module.__name__} defines nothing called {spelling} (with or without {suffix!r})")
    return next((one for one in objects if getattr(one, "__module__", None) == module.__name__), objects[0])


def load(target: str) -> Any:
    """The object that a `module:name` string names."""
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def loaded_plugins() -> list[dict[str, str]]:
    """Path and SHA-256 of the plug-in files of this process, in the order in which they were run."""
    return list(_loaded)


def load_plugin(path: str | Path) -> dict[str, str]:
    """Run a plug-in file; returns its path and SHA-256, which the run records.

    A file runs once. Raises InputError, with file and line, when it fails.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such plug-in file")
    record = {"path": str(path.resolve()), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    if record in _loaded:
        return record
    spec = importlib.util.spec_from_file_location(f"phonate_plugin_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        line = error.lineno if isinstance(error, SyntaxError) else frames[-1].lineno if frames else 1
        raise InputError(f"{path}:{line}: the plug-in fails: {type(error).__name__}: {error}") from error
    _loaded.append(record)
    return record
