"""`phonate.load`: a run, or one of its checkpoints, as the object of its task."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from phonate.config.errors import CheckpointError, InputError
from phonate.config.tasks import TASKS, referred, task_info

if TYPE_CHECKING:
    import torch

    from phonate.tasks.conversion.inference import Converter
    from phonate.tasks.diarization.inference import Diarizer
    from phonate.tasks.language.inference import Generator
    from phonate.tasks.recognition.inference import Transcriber
    from phonate.tasks.sequence.inference import SequenceGenerator
    from phonate.tasks.speech.inference import Synthesiser
    from phonate.tasks.vocoder.inference import NeuralVocoder
    from phonate.training.inference import Inference

    Device = str | torch.device


@overload
def load(
    run: str | Path,
    task: Literal["conversion"],
    *,
    device: Device | None = None,
    vocoder: str | Path | None = None,
) -> Converter: ...


@overload
def load(
    run: str | Path, task: Literal["speech"], *, device: Device | None = None, vocoder: str | Path | None = None
) -> Synthesiser: ...


@overload
def load(run: str | Path, task: Literal["recognition"], *, device: Device | None = None) -> Transcriber: ...


@overload
def load(run: str | Path, task: Literal["diarization"], *, device: Device | None = None) -> Diarizer: ...


@overload
def load(run: str | Path, task: Literal["language"], *, device: Device | None = None) -> Generator: ...


@overload
def load(run: str | Path, task: Literal["sequence"], *, device: Device | None = None) -> SequenceGenerator: ...


@overload
def load(run: str | Path, task: Literal["vocoder"], *, device: Device | None = None) -> NeuralVocoder: ...


@overload
def load(
    run: str | Path, task: str | None = None, *, device: Device | None = None, vocoder: str | Path | None = None
) -> Inference: ...


def load(run: str | Path, task: str | None = None, *, device: Device | None = None, **options: Any) -> Inference:
    """The trained model of a run (its best checkpoint, or else its newest) or of one checkpoint, ready for use.

    Args:
        run: A run's folder or a checkpoint's.
        task: The task it must be of, which also tells type checkers what is returned; None: any.
        device: Such as "cuda:0"; None: cpu.
        vocoder: For speech and conversion: a run of the task vocoder to use instead of the recipe's, or griffin_lim.

    Returns:
        `Synthesiser` for speech, `Converter` for conversion, `Transcriber` for recognition, `Diarizer` for
        diarization, `Generator` for language, `SequenceGenerator` for sequence, `NeuralVocoder` for vocoder, and
        whatever a plug-in's task declares.

    Raises:
        CheckpointError: no checkpoint is there, or it is damaged or of another task.
        InputError: an unknown task or device, or an option that the task has no use for.
    """
    from phonate.training.checkpoints.trained import task_of_checkpoint

    if task is not None:
        TASKS.find(task)  # a typing mistake is reported as one
    found = task_of_checkpoint(run)
    if task not in (None, found):
        raise CheckpointError(f"{run}: holds a model of the task {found}, not of {task}")
    info = task_info(found)
    if info.inference is None:
        raise InputError(f"{run}: the task {found} has no inference; its TaskInfo names none")
    chosen = info.require_options(found, options)
    model: Inference = referred(info.inference).load(run, device=device, **chosen)
    return model
