"""Search with Optuna (Akiba et al. 2019): tree-structured Parzen estimator with median pruning.

The study is stored as a journal in RUN/study.log, from which an interrupted search continues, starting with the
interrupted run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from phonate.config.errors import InputError
from phonate.config.packages import optional_package
from phonate.config.randomness import derived_seed
from phonate.training.tuning import RangeSettings, TuningSettings
from phonate.workflows.tuning.trial import Experiment, Trial

STUDY = "study.log"
_NAME = "phonate"
_FOLDER = "folder"
_OUTCOME = "outcome"
_BEFORE_PRUNING = 5
"""Minimum number of runs before others are pruned."""


def search(experiment: Experiment, seed: int) -> Iterator[Trial]:
    """The outcome of each run, starting with those of earlier calls. Raises MissingPackageError without Optuna."""
    optuna = optional_package("optuna", "training.tuning.library optuna", "'phonate[tuning]'")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    settings = experiment.settings
    study = _study(optuna, experiment.folder, settings, seed)
    done = [Trial(**one.user_attrs[_OUTCOME]) for one in study.trials if _OUTCOME in one.user_attrs]
    yield from done
    for stopped in [one for one in study.trials if one.state == optuna.trial.TrialState.RUNNING]:
        study.enqueue_trial(stopped.params, user_attrs={_FOLDER: stopped.user_attrs.get(_FOLDER)})
        study.tell(stopped.number, state=optuna.trial.TrialState.FAIL)
    for number in range(len(done), settings.n_trials):
        trial = study.ask()
        values = {path: _suggest(trial, path, space) for path, space in settings.search_space.items()}
        name = trial.user_attrs.get(_FOLDER) or f"trial-{number:04d}"
        trial.set_user_attr(_FOLDER, name)

        def is_hopeless(step: int, value: float, trial: Any = trial) -> bool:
            trial.report(value, step)
            return bool(settings.pruning and trial.should_prune())

        found = experiment.run(number, values, name, is_hopeless)
        trial.set_user_attr(_OUTCOME, vars(found))
        states = optuna.trial.TrialState
        if found.state == "failed":
            study.tell(trial, state=states.FAIL)
        elif found.state == "pruned":
            study.tell(trial, state=states.PRUNED)
        else:
            study.tell(trial, found.metric)
        yield found


def _study(optuna: Any, folder: Path, settings: TuningSettings, seed: int) -> Any:
    journal = optuna.storages.journal
    path = folder / STUDY
    storage = optuna.storages.JournalStorage(journal.JournalFileBackend(str(path)))
    study = optuna.create_study(
        storage=storage,
        study_name=_NAME,
        direction=settings.direction,
        pruner=optuna.pruners.MedianPruner(_BEFORE_PRUNING) if settings.pruning else optuna.pruners.NopPruner(),
        load_if_exists=True,
    )
    if study.direction.name.lower() != settings.direction:
        raise InputError(
            f"{path}: this search was begun to {study.direction.name.lower()} {settings.metric}, which is better when "
            f"{'higher' if settings.direction == 'maximize' else 'lower'}; start another one with --output"
        )
    # with the same seed after a resume, the sampler would repeat its first proposals
    study.sampler = optuna.samplers.TPESampler(seed=derived_seed("tuning", seed, len(study.trials)) % 2**32)
    return study


def _suggest(trial: Any, path: str, space: list[Any] | RangeSettings) -> Any:
    """A value from a list or a range."""
    if isinstance(space, list):
        if any(isinstance(value, list | dict) for value in space):  # Optuna's choices must be scalars
            return json.loads(trial.suggest_categorical(path, [json.dumps(value) for value in space]))
        return trial.suggest_categorical(path, space)
    if space.whole:
        return trial.suggest_int(path, space.low, space.high, log=space.log, step=space.step or 1)
    return trial.suggest_float(path, space.low, space.high, log=space.log, step=space.step)
