"""Every task has the same files in the same roles, and folders small enough to read."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

import phonate
from phonate.config.tasks import referred, task_info

TASKS = sorted(path.parent.name for path in (Path(phonate.__file__).parent / "tasks").glob("*/settings.py"))
ROLES = ("settings", "data", "model", "task", "inference")


@pytest.mark.parametrize("task", TASKS)
def test_a_task_has_a_file_for_each_role(task: str) -> None:
    home = Path(phonate.__file__).parent / "tasks" / task
    assert not [role for role in ROLES if not (home / f"{role}.py").is_file()]
    entries = [path for path in home.iterdir() if path.name not in ("__init__.py", "__pycache__")]
    assert len(entries) <= 15


@pytest.mark.parametrize("task", TASKS)
def test_what_a_task_declares_is_there(task: str) -> None:
    info = task_info(task)
    home = f"phonate.tasks.{task}"
    for role, reference in (("inference", info.inference), ("evaluation", info.evaluation), ("export", info.export)):
        if reference is not None:
            assert str(reference).startswith(f"{home}.{role}:")
    assert info.inference is not None
    pytest.importorskip("transformers" if task == "language" else "torch")
    assert issubclass(referred(info.inference), importlib.import_module("phonate").Inference)
    assert bool(info.formats) == (info.export is not None)
