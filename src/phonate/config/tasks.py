"""What can be trained, by name: settings without torch first, the task's code only when it is to run.

A task is a package with two modules: `settings`, free of torch, with the constants DATA and MODEL (Settings
classes), `SIZES: {size: {"model": {...}, "training": {...}}}` and, if the trainer's own do not do, TRAINING,
and, where `model.kind` has sizes of its own, `KINDS: {kind: SIZES}`;
and `task`, with the class `<Name>Task(recipe)`. Packages under `phonate.tasks` are found by their folder's
name, those of other distributions by an entry point of group `phonate.tasks` (`name = "package.module"`), and
a single plug-in file says `TASKS.register("name", TaskEntry(...))`.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from phonate.config.errors import InputError
from phonate.config.registry import Registry, load, public_object
from phonate.config.settings import Settings

Sizes = Mapping[str, Mapping[str, Any]]

_TRAINING = "phonate.training.settings:TrainingSettings"


@dataclass(frozen=True)
class TaskSettings:
    """The settings classes of a task."""

    data: type[Settings]
    model: type[Settings]
    training: type[Settings]
    sizes: Sizes
    """Preset by size: a part of a recipe."""
    kinds: Mapping[str, Sizes] = field(default_factory=dict)
    """The presets of those values of `model.kind` that have their own."""

    def sizes_of(self, kind: Any) -> Sizes:
        """The presets for a `model.kind`."""
        return self.kinds.get(kind, self.sizes) if isinstance(kind, str) else self.sizes


@dataclass(frozen=True)
class TaskEntry:
    """A task registered by a plug-in."""

    data: type[Settings]
    model: type[Settings]
    task: Any
    """The task's class, called with the recipe, or a `module:name` string."""
    sizes: Sizes = field(default_factory=dict)
    training: type[Settings] | None = None


class TaskRegistry(Registry[Any]):
    """The registry of tasks: its entries are packages, so a folder without settings is not one."""

    def _files(self) -> list[str]:
        return [name for name in super()._files() if _has_module(f"{self.package}.{name}", "settings")]


def _has_module(package: str, name: str) -> bool:
    spec = importlib.util.find_spec(package)
    return bool(spec and spec.submodule_search_locations and importlib.util.find_spec(f"{package}.{name}"))


TASKS = TaskRegistry("task", "phonate.tasks", group="phonate.tasks")


def task_settings(name: str) -> TaskSettings:
    """The settings classes of task `name`, without its code. Raises InputError for unknown names."""
    entry = TASKS.find(name)
    if isinstance(entry, TaskEntry):
        return TaskSettings(entry.data, entry.model, entry.training or load(_TRAINING), entry.sizes)
    module = importlib.import_module(f"{entry}.settings")
    missing = [constant for constant in ("DATA", "MODEL") if not hasattr(module, constant)]
    if missing:
        raise InputError(f"{entry}.settings has no {' and no '.join(missing)}, so it describes no task")
    training = getattr(module, "TRAINING", None) or load(_TRAINING)
    sizes, kinds = getattr(module, "SIZES", {}), getattr(module, "KINDS", {})
    return TaskSettings(module.DATA, module.MODEL, training, sizes, kinds)


def task_class(name: str) -> Any:
    """The class of task `name`; calling it with a recipe gives the task."""
    entry = TASKS.find(name)
    if isinstance(entry, TaskEntry):
        return load(entry.task) if isinstance(entry.task, str) else entry.task
    return public_object(importlib.import_module(f"{entry}.task"), name, "task")
