from __future__ import annotations

from pathlib import Path

import pytest

from phonate.config.tasks import TASKS


@pytest.fixture(autouse=True)
def toy_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """The task `toy` is known during the test."""
    from toy_task import SIZES, ToyData, ToyModel, ToyTask

    from phonate.config.tasks import TaskEntry

    monkeypatch.setattr(TASKS, "_registered", {})
    TASKS.register("toy", TaskEntry(ToyData, ToyModel, task=ToyTask, sizes=SIZES))


@pytest.fixture
def recipe_file(tmp_path: Path) -> Path:
    """A valid recipe with a few values of its own."""
    path = tmp_path / "recipe.yaml"
    path.write_text(
        "task: toy\n"
        "data:\n"
        "  path: recordings\n"
        "model:\n"
        "  layers:\n"
        "    widths: [4, 4]\n"
        "training:\n"
        "  epochs: 3\n"
        "  optimizer:\n"
        "    type: sgd\n"
        "    lr: 2e-4\n"
    )
    return path
