"""Judge a run: its task's own evaluation, put down in the run's folder."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path

from phonate.config.errors import InputError
from phonate.config.resolve import resolve
from phonate.config.tasks import TASKS
from phonate.evaluation.tables import Evaluation
from phonate.training.run import Run
from phonate.workflows.pages.exhibits import LISTENING, Clip, Example, Listening

FIGURES = "evaluation.json"


def evaluate(run: str | Path, data: str | None = None, vocoder: str | None = None) -> Evaluation:
    """Judge the run in the folder `run` on the corpus `data`, or on what its recipe keeps for that, with the sound of
    the run `vocoder`, or else of the one that the recipe names.

    Writes `evaluation.json`: the figures of the report, and what was measured on each item; and `samples/` for the
    report's players, where the evaluation has sounds. A task can be judged
    when its package has a module `evaluation` with `evaluate(run, data, vocoder)`.

    Raises InputError for a folder that is no run, or a task that has no evaluation.
    """
    folder = Run(Path(run))
    if not folder.recipe.is_file():
        raise InputError(f"{run}: no recipe.yaml here; give the folder of a run")
    task = resolve(folder.recipe).recipe.task
    home = TASKS.find(task)
    if not isinstance(home, str) or importlib.util.find_spec(f"{home}.evaluation") is None:
        raise InputError(f"{run}: the task {task} has no evaluation")
    found: Evaluation = importlib.import_module(f"{home}.evaluation").evaluate(folder.path, data, vocoder)
    folder.write_json(FIGURES, found.document())
    if found.sounds:
        _write_sounds(folder, found)
    return found


def _write_sounds(run: Run, found: Evaluation) -> None:
    """Put the sounds where the report looks for them."""
    import soundfile

    folder = (run.path / LISTENING).parent
    folder.mkdir(exist_ok=True)
    examples = []
    for number, (item, systems) in enumerate(found.sounds.items(), start=1):
        clips = []
        for place, (name, waveform) in enumerate(systems.items(), start=1):
            file = f"evaluated-{number}-{place}.flac"
            soundfile.write(folder / file, waveform, found.sample_rate, subtype="PCM_16")
            clips.append(Clip(label=name, path=file))
        examples.append(Example(title=item, clips=tuple(clips)))
    run.write_json(LISTENING, Listening(examples=tuple(examples)).model_dump())
