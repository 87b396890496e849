"""Plug-ins may draw from the global generators: their numbers, too, are the same after a resume."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from processes import HERE, final, rows

import phonate_process

PLUGIN = f"""
import random, sys
sys.path.insert(0, {str(HERE)!r})
import numpy as np
from small_tasks import Nothing, RegressionTask
from phonate.config.tasks import TASKS, TaskEntry

class Drawing(RegressionTask):
    def loss(self, model, batch, phase):
        batch = {{**batch, "x": batch["x"] + random.random() + np.random.random()}}
        return super().loss(model, batch, phase)

TASKS.register("drawing", TaskEntry(data=Nothing, model=Nothing, task=Drawing))
"""
RECIPE = """
task: drawing
training:
  batch_size: 4
  scheduler: {type: constant}
  checkpoint: {interval: 3}
  validation: {interval: 3, previews: false}
  logging: {interval: 1, tensorboard: false, system: false}
"""


def train(run: Path, *further: str) -> None:
    command = ["--plugin", "drawing.py", "train", "drawing.yaml", "--mode", "cpu"]
    command += ["--output", run.name, *further]
    done = phonate_process.run(*command, cwd=run.parent)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_plug_in_that_draws_from_the_global_generators_resumes_exactly(tmp_path: Path) -> None:
    """In processes of their own: rich draws from Python's generator when it is first imported."""
    (tmp_path / "drawing.py").write_text(PLUGIN)
    (tmp_path / "drawing.yaml").write_text(RECIPE)
    train(tmp_path / "straight", "training.max_steps=6")
    train(tmp_path / "resumed", "training.max_steps=3")
    train(tmp_path / "resumed", "training.max_steps=6", "--resume", "auto")
    straight, resumed = final(tmp_path / "straight"), final(tmp_path / "resumed")
    assert all(torch.equal(straight[name], resumed[name]) for name in straight)
    assert [row["loss"] for row in rows(tmp_path / "straight") if row.get("split") == "train"] == [
        row["loss"] for row in rows(tmp_path / "resumed") if row.get("split") == "train"
    ]
