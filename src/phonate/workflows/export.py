"""Write a checkpoint in a form that other programs run, by its task's own export or merge."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phonate.config.errors import InputError
from phonate.config.registry import nearest
from phonate.config.tasks import referred, require_options, task_info
from phonate.training.checkpoints.trained import recipe_of

if TYPE_CHECKING:
    from phonate.nn.pretrained.merging import MergeReport, Stored
    from phonate.nn.pretrained.settings import Dtype


def export(source: Path, target: Path, form: str, given: Mapping[str, Any] | None = None) -> list[Path]:
    """Write the checkpoint `source` in the form `form` (onnx, say) to the file or folder `target`; returns the files.

    `given`: options of the task's export, such as vocoder; None stands for its default.

    Raises InputError for a form that the task does not have (`TaskInfo.formats`), or an option that it has no use for.
    """
    task = recipe_of(source).task
    info = task_info(task)
    if info.export is None:
        raise InputError(f"--format {form}: the task {task} of {source} is exported as weights only")
    if form not in info.formats:
        raise InputError(f"--format {form}: the task {task} does not have it; {nearest(form, list(info.formats))}")
    options = require_options(task, given or {}, info.export_options)
    written: list[Path] = referred(info.export)(source, target, form, **options)
    return written


def merge(
    source: Path, target: Path, dtype: Dtype = "auto", quantization: Stored | None = None, base: str | None = None
) -> MergeReport:
    """Write the model of the checkpoint `source`, its adapters added to the weights of their base, to the new folder
    `target`. `base`: where that is; None: where it was in training.

    Raises InputError for a task without adapters, and what its own merge raises.
    """
    from phonate.nn.pretrained.merging import MergeRequest

    task = recipe_of(source).task
    info = task_info(task)
    if info.merge is None:
        raise InputError(f"{source}: models of the task {task} have no adapters to merge; export it instead")
    report: MergeReport = referred(info.merge)(MergeRequest(source, target, dtype, quantization, base))
    return report
