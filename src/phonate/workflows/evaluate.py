"""Evaluation and export of a run, by its task's own."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phonate.config.errors import InputError, option
from phonate.config.registry import nearest
from phonate.config.tasks import referred, require_options, task_info
from phonate.evaluation.tables import STEP, Evaluation
from phonate.training.checkpoints.files import FIGURES
from phonate.training.checkpoints.listing import best_or_latest, has_checkpoint, is_checkpoint, located, no_run
from phonate.training.checkpoints.listing import info as checkpoint_info
from phonate.training.checkpoints.loading import recipe_of
from phonate.training.run import Run
from phonate.workflows.load import pretrained_task, task_of
from phonate.workflows.pages.report import LISTENING, Clip, Example, Listening

if TYPE_CHECKING:
    from phonate.nn.pretrained import MergeReport, Stored
    from phonate.nn.settings import Dtype

logger = logging.getLogger("phonate")


# ------------------------------ Evaluate a run: its task's own evaluation, written to the run's folder


def evaluate(
    run: str | Path,
    data: str | None = None,
    vocoder: str | None = None,
    *,
    device: str | None = None,
    tune: bool = False,
    output: str | Path | None = None,
    **options: Any,
) -> Evaluation:
    """Evaluate a run, or for voice cloning a merged model, on held-out data.

    Writes `evaluation.json`, the figures of the report and what was measured on each item, and, where the evaluation
    has audio, `samples/` for the report's players.

    Args:
        run: A run's folder, or what else `phonate.load` takes: base/voice and checkpoints need an `output`.
        data: A corpus; None: what the run's training kept for validation.
        vocoder: For tasks that take one: a run to use instead of the recipe's, or griffin_lim.
        device: Such as "cuda:0"; None: cpu.
        tune: First choose, on what training kept for validation, the values that inference decides with.
        output: The folder to write to; None: `run`.
        options: For voice cloning dtype, codec and base, as `phonate.load` takes them.

    Raises InputError for a folder that is no run, a task that has no evaluation (`TaskInfo.evaluation`), an option
    that the task has no use for, or a model of the package or a checkpoint without `output`.
    """
    source = located(Path(run))
    elsewhere = f"give a folder for the figures with {option('output')}"
    if output is None and source != Path(run):
        raise InputError(f"{run}: part of phonate, where nothing is written; {elsewhere}")
    if output is None and pretrained_task(source) is not None:
        raise InputError(f"{run}: a pretrained model, to which nothing is added; {elsewhere}")
    if output is None and is_checkpoint(source):
        raise InputError(f"{run}: a checkpoint, to which nothing is added; {elsewhere}")
    if output is None and not source.is_dir():
        raise no_run(run, f"no such run (a name on the hub needs {option('output')}, too)")
    written = Run(Path(output or run))
    if written.path.exists() and not written.path.is_dir():
        raise InputError(f"{option('output', str(written.path))}: a file; give a folder for the figures")
    task = task_of(run)
    info = task_info(task)
    if info.evaluation is None:
        raise InputError(f"{run}: the task {task} has no evaluation")
    options = require_options(task, {"vocoder": vocoder, **options}, info.options)
    if tune:
        _tune(run, source, data, device)
    if data is None and source != Path(run):
        raise InputError(f"{run}: its recordings are not part of phonate; give others with {option('data')}")
    evaluation = _with_step(referred(info.evaluation)(source, data, device=device, **options), source)
    _write(written, evaluation)
    return evaluation


def _tune(run: str | Path, source: Path, data: str | None, device: str | None) -> None:
    task = task_of(source)
    tuning = task_info(task).tuning
    if tuning is None:
        raise InputError(f"{option('tune', True)}: inference of the task {task} has nothing to tune; leave it out")
    if data is not None:
        raise InputError(
            f"{option('tune', True)} chooses on what training held out, not on {option('data', data)}: tune without "
            "it, then evaluate with it"
        )
    if source != Path(run) or is_checkpoint(source):
        raise InputError(f"{run}: {option('tune', True)} writes to the run that it tunes; give the folder of one")
    referred(tuning)(source, device=device)


def _with_step(evaluation: Evaluation, source: Path) -> Evaluation:
    """With the step of the checkpoint, where `source` is a run."""
    if not has_checkpoint(source):
        return evaluation
    return replace(evaluation, notes={STEP: checkpoint_info(best_or_latest(source)).step, **evaluation.notes})


def _write(run: Run, evaluation: Evaluation) -> None:
    """Write the figures and the audio where the report looks for them."""
    run.path.mkdir(parents=True, exist_ok=True)
    figures = run.path / FIGURES
    if figures.is_file():
        logger.info("%s: replaced that of an earlier evaluation; another %s keeps both", figures, option("output"))
    run.write_json(FIGURES, evaluation.document())
    if evaluation.sounds:
        _write_sounds(run, evaluation)


def _write_sounds(run: Run, evaluation: Evaluation) -> None:
    """Write the audio where the report looks for it."""
    from phonate.audio.decoding import write_audio

    folder = (run.path / LISTENING).parent
    examples = []
    for number, (item, systems) in enumerate(evaluation.sounds.items(), start=1):
        clips = []
        for place, (name, waveform) in enumerate(systems.items(), start=1):
            file = f"evaluated-{number}-{place}.flac"
            write_audio(folder / file, waveform, evaluation.sample_rate)
            clips.append(Clip(label=name, path=file))
        examples.append(Example(title=item, clips=tuple(clips)))
    run.write_json(LISTENING, Listening(examples=tuple(examples)).model_dump())


# ------------- Write a checkpoint in a form that other programs run, by its task's own export or merge


def export(source: Path, target: Path, form: str, options: Mapping[str, Any] | None = None) -> list[Path]:
    """Write the checkpoint `source` in the form `form` (onnx, say) to the file or folder `target`; returns the files.

    `options`: of the task's export, such as vocoder; None stands for its default.

    Raises InputError for a form that the task does not have (`TaskInfo.formats`), or an option that it has no use for.
    """
    task = recipe_of(source).task
    info = task_info(task)
    if info.export is None:
        raise InputError(f"{option('form', form)}: the task {task} of {source} is exported as weights only")
    if form not in info.formats:
        raise InputError(
            f"{option('form', form)}: the task {task} does not have it; {nearest(form, list(info.formats))}"
        )
    chosen = require_options(task, options or {}, info.export_options)
    written: list[Path] = referred(info.export)(source, target, form, **chosen)
    return written


def merge(
    source: Path, target: Path, dtype: Dtype = "auto", quantization: Stored | None = None, base: str | None = None
) -> MergeReport:
    """Write the model of the checkpoint `source`, its adapters added to the weights of their base, to the new folder
    `target`. `base`: where that is; None: where it was in training.

    Raises InputError for a task without adapters, and what its own merge raises.
    """
    from phonate.nn.pretrained import MergeRequest

    task = recipe_of(source).task
    info = task_info(task)
    if info.merge is None:
        raise InputError(f"{source}: models of the task {task} have no adapters to merge; export it instead")
    report: MergeReport = referred(info.merge)(MergeRequest(source, target, dtype, quantization, base))
    return report
