"""The options of phonate are a promise. A new, renamed or dropped one is a conscious act.

After such an act: `python tests/config/test_options.py > tests/config/options.txt`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from phonate.config.settings import Settings, options
from phonate.config.tasks import TASKS, TaskRegistry, task_settings
from phonate.training.settings import TrainingSettings

FROZEN = Path(__file__).with_name("options.txt")


def paths(settings: type[Settings], prefix: tuple[str, ...]) -> Iterator[str]:
    return (option.key for option in options(settings, prefix))


def current() -> list[str]:
    """Every option: the trainer's, then `task: path` of each task in the package."""
    found = ["task", "size", *paths(TrainingSettings, ("training",))]
    for task in TaskRegistry(TASKS.package).names():
        settings = task_settings(task)
        for part in ("data", "model"):
            found += [f"{task}: {path}" for path in paths(getattr(settings, part), (part,))]
        if settings.training is not TrainingSettings:
            own = set(paths(settings.training, ("training",))) - set(found)
            found += [f"{task}: {path}" for path in sorted(own)]
    return found


def test_the_options_are_those_of_the_list() -> None:
    now, frozen = set(current()), set(FROZEN.read_text().split("\n")) - {""}
    assert not now - frozen, f"new options; see {__file__}: {sorted(now - frozen)}"
    assert not frozen - now, f"options that are gone; see {__file__}: {sorted(frozen - now)}"


@pytest.mark.parametrize("task", TaskRegistry(TASKS.package).names())
def test_every_option_says_what_it_is(task: str) -> None:
    settings = task_settings(task)
    for part in (settings.data, settings.model, settings.training):
        undocumented = [option.key for option in options(part) if not option.description]
        assert not undocumented


if __name__ == "__main__":
    print("\n".join(current()))
