"""The tasks that a session trains, as they declare it themselves (`phonate.config.tasks.SessionInfo`)."""

from __future__ import annotations

from typing import Any, Literal

from phonate.config.tasks import TASKS, SessionInfo, referred, task_info


def tasks_for(data: Literal["recordings", "texts"]) -> list[str]:
    """Names of the tasks that sessions train on this kind of data."""
    return [name for name, info in _all().items() if info.data == data]


def default_task(data: Literal["transcribed recordings", "recordings", "texts"]) -> str:
    """The task that a session chooses for this kind of data."""
    return next(name for name, info in _all().items() if info.default_for == data)


def default_recipe(data: Literal["transcribed recordings", "recordings", "texts"], pretrained: bool = False) -> str:
    """The shipped recipe for it; `pretrained`: for a configuration that names a pretrained model."""
    task = default_task(data)
    return (_all()[task].pretrained_recipe if pretrained else None) or task


def needs_text(task: str) -> bool:
    """Whether recordings without a text are of no use to a task."""
    info = task_info(task).session
    return info is not None and info.needs_text


def defaults(task: str, language: str) -> dict[str, Any]:
    """A task's overrides for recordings in a language."""
    info = task_info(task).session
    if info is None or info.defaults is None:
        return {}
    found: dict[str, Any] = referred(info.defaults)(language)
    return found


def _all() -> dict[str, SessionInfo]:
    return {name: info for name in TASKS.names() if (info := task_info(name).session) is not None}
