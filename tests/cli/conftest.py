"""A task that trains in no time."""

from __future__ import annotations

from pathlib import Path

import pytest

from phonate.workflows.scaffold import scaffold


@pytest.fixture
def train_my_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """`train` for the task of `phonate new`, in an empty folder; its recipe mine.yaml is still to be written."""
    plugin, _ = scaffold("task", "my_task", tmp_path)
    monkeypatch.chdir(tmp_path)
    return ["train", "mine.yaml", "--plugin", str(plugin), "--mode", "cpu"]
