"""`phonate.load`: a run, or one of its checkpoints, as the object of its task."""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from phonate.config.errors import InputError, json_mistake
from phonate.config.tasks import TASKS, TaskInfo, referred, require_options, task_info

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from phonate.tasks.cloning.inference import VoiceCloner
    from phonate.tasks.conversion.inference import Converter
    from phonate.tasks.diarization.inference import Diarizer
    from phonate.tasks.language.inference import Generator
    from phonate.tasks.recognition.inference import Recogniser
    from phonate.tasks.sequence.inference import SequenceGenerator
    from phonate.tasks.speech.inference import Synthesiser
    from phonate.tasks.vocoder.inference import NeuralVocoder
    from phonate.training.inference import Inference

    Device = str | torch.device

_NAME = "model.name: "
"""How errors about pretrained models begin in training."""


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
def load(
    run: str | Path, task: Literal["recognition"], *, device: Device | None = None, base: str | Path | None = None
) -> Recogniser: ...


@overload
def load(run: str | Path, task: Literal["diarization"], *, device: Device | None = None) -> Diarizer: ...


@overload
def load(
    run: str | Path, task: Literal["language"], *, device: Device | None = None, base: str | Path | None = None
) -> Generator: ...


@overload
def load(run: str | Path, task: Literal["sequence"], *, device: Device | None = None) -> SequenceGenerator: ...


@overload
def load(run: str | Path, task: Literal["vocoder"], *, device: Device | None = None) -> NeuralVocoder: ...


@overload
def load(
    run: str | Path,
    task: Literal["cloning"],
    *,
    device: Device | None = None,
    dtype: str | None = None,
    codec: str | Path | None = None,
    base: str | Path | None = None,
    voices: str | Path | None = None,
) -> VoiceCloner: ...


@overload
def load(
    run: str | Path,
    task: str | None = None,
    *,
    device: Device | None = None,
    vocoder: str | Path | None = None,
    dtype: str | None = None,
    codec: str | Path | None = None,
    base: str | Path | None = None,
    voices: str | Path | None = None,
) -> Inference: ...


def load(run: str | Path, task: str | None = None, *, device: Device | None = None, **options: Any) -> Inference:
    """The trained model of a run (its best checkpoint, or else its newest) or of one checkpoint, ready for use.

    Args:
        run: A run's folder or a checkpoint's; for cloning also a merged model's, or a model's name on the hub; for
            recognition also whisper, the best Whisper that is installed, whisper/NAME, or a Whisper in a folder or
            on the hub.
        task: The task it must be of, which also tells type checkers what is returned; None: any.
        device: Such as "cuda:0"; None: cpu.
        vocoder: For speech and conversion: a run of the task vocoder to use instead of the recipe's, or griffin_lim.
        dtype: For cloning: fp32, bf16, fp16 or int8; None: as in training.
        codec: For cloning: a folder with the codec, or its name on the hub; None: that of the training.
        base: For adapters (cloning, language, recognition): a folder with the model that they were trained on, or its
            name on the hub; None: where it was in training.
        voices: For cloning: a folder with NAME.wav and NAME.txt for each voice.

    Returns:
        `Synthesiser` for speech, `Converter` for conversion, `Recogniser` for recognition, `Diarizer` for
        diarization, `Generator` for language, `SequenceGenerator` for sequence, `NeuralVocoder` for vocoder,
        `VoiceCloner` for cloning, and whatever a plug-in's task declares.

    Raises:
        CheckpointError: no checkpoint is there, or it is damaged or of another task (WrongTaskError, exit code 2).
        InputError: an unknown task or device, or an option that the task has no use for.
    """
    if task is not None:
        TASKS.find(task)  # a typing mistake is reported as one
    with _named_as_given(run):
        own = task_of(run, task)
        if task not in (None, own):
            from phonate.training.checkpoints.listing import wrong_task

            raise wrong_task(run, own, task)
        info = task_info(own)
        if info.inference is None:
            raise InputError(f"{run}: the task {own} has no inference; its TaskInfo names none")
        chosen = require_options(own, options, info.options)
        model: Inference = referred(info.inference).load(run, device=device, **chosen)
    return model


@contextmanager
def _named_as_given(run: str | Path) -> Iterator[None]:
    """Within this block errors about the model `run` do not begin with the option of recipes that names such models."""
    try:
        yield
    except InputError as error:
        if str(error).startswith(f"{_NAME}{run}: "):
            error.args = (str(error).removeprefix(_NAME), *error.args[1:])
        raise


def task_of(run: str | Path, expected: str | None = None) -> str:
    """The task of a run, a checkpoint or a model. What is not on this machine may be on the hub: any name for a
    `wanted` task that looks there, and where none is wanted ORGANISATION/MODEL if no folder ORGANISATION is here.

    Raises CheckpointError and InputError as `load`.
    """
    from phonate.training.checkpoints.listing import HUB_NAME, located
    from phonate.training.checkpoints.loading import task_of_checkpoint

    path = located(Path(run))
    if (pretrained := pretrained_task(run)) is not None:
        return pretrained
    file: Path | None = path / "config.json"
    if not path.exists():
        if expected is not None and task_info(expected).model_types and not _is_below(path):
            return expected
        if expected is None and HUB_NAME.fullmatch(str(run)) and not _is_below(path):
            from phonate.nn.pretrained import pretrained_file

            with _named_as_given(run):
                file = pretrained_file(str(run), "config.json")
    if file is not None and file.is_file():
        described = _config(file)
        for name in TASKS.names():
            if _loads(task_info(name), described):
                return name
    return task_of_checkpoint(run, expected)


def pretrained_task(run: str | Path) -> str | None:
    """The task of a model that comes trained, such as whisper or whisper/small; None for what is none, or is a path."""
    first = str(run).partition("/")[0]
    return (
        None if Path(run).exists() else next((one for one in TASKS.names() if first in task_info(one).pretrained), None)
    )


def _loads(info: TaskInfo, described: dict[str, Any]) -> bool:
    """Whether a task's inference loads models with such a config.json."""
    if "model_type" in described:
        return described["model_type"] in info.model_types
    return any(key in described for key in info.model_keys)


def _is_below(path: Path) -> bool:
    """Whether `path` is in a folder that is here, such as runs, so that it is no name on the hub."""
    return path.parent != Path() and path.parent.is_dir()


def _config(file: Path) -> dict[str, Any]:
    """What a config.json holds."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:  # of JSON and of UTF-8
        raise InputError(f"{file}: is no JSON ({json_mistake(error)}); export the model again") from error
    return content if isinstance(content, dict) else {}
