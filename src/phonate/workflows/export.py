"""Write a checkpoint in a form that other programs run, as its task knows how to."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path

from phonate.config.errors import InputError
from phonate.config.registry import nearest
from phonate.config.resolve import resolve
from phonate.config.tasks import TASKS
from phonate.training.checkpoints import files


def export(source: Path, target: Path, form: str, vocoder: str | None = None) -> list[Path]:
    """Write the checkpoint `source` in the form `form` (onnx, say) to the file or folder `target`.

    A task can be exported when its package has a module `export` with FORMATS and
    `export(source, target, form, vocoder)`, which returns the files it wrote.

    Raises InputError for a form that the task does not have.
    """
    task = resolve(source / files.RECIPE).recipe.task
    home = TASKS.find(task)
    if not isinstance(home, str) or importlib.util.find_spec(f"{home}.export") is None:
        raise InputError(f"--format {form}: the task {task} of {source} is exported as weights only")
    module = importlib.import_module(f"{home}.export")
    if form not in module.FORMATS:
        raise InputError(f"--format {form}: the task {task} does not have it; {nearest(form, module.FORMATS)}")
    written: list[Path] = module.export(source, target, form, vocoder)
    return written
