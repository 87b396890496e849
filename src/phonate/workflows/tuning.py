"""`phonate train` with `training.tuning`: one run per trial, by Optuna or Ray Tune, and the best recipe.

The study is stored as a journal in RUN/study.log, from which an interrupted search continues, starting with the
interrupted run.

Ray runs the trials in worker processes, as many in parallel as there are devices. It keeps its state in RUN/ray, from
which an interrupted search continues.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import math
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from phonate.compute.resources import Mode
from phonate.config.documents import Document
from phonate.config.errors import InputError, TrainingError, option, optional_package
from phonate.config.randomness import derived_seed
from phonate.config.resolve import Override, parse_overrides
from phonate.config.tasks import task_info
from phonate.training.callbacks import Callback, TrainerView
from phonate.training.checkpoints import files
from phonate.training.metrics import MetricWatch, direction_of
from phonate.training.metrics import Mode as MetricMode
from phonate.training.plan import TRIALS, Plan, plan
from phonate.training.run import Run
from phonate.training.settings import RangeSettings, TrainingSettings, TuningSettings

logger = logging.getLogger("phonate")

# ----------------------- One run of a search: a recipe with proposed values, trained in its own folder

State = Literal["complete", "pruned", "failed"]
Values = Mapping[str, Any]
"""Option path -> value."""
IsHopeless = Callable[[int, float], bool]
"""Called with the step and the metric of each validation; returns whether to stop the run."""
Train = Callable[[Plan, Sequence[Callback]], int]
"""Trains what was planned, with further callbacks; returns the number of steps."""


@dataclass(frozen=True)
class Trial:
    """The outcome of one run."""

    number: int
    state: State
    values: dict[str, Any]
    metric: float | None
    """The best value of the metric; None if it was never measured."""
    step: int
    """Number of optimizer steps; 0 for failed runs."""
    seconds: float
    """Training time, excluding that before an interruption."""
    run: str
    """The run's folder, relative to that of the search."""
    reason: str = ""
    """Why the run failed."""


class TuningCallback(Callback):
    """Reports each validation to the search, and stops the run if it is pruned."""

    def __init__(self, settings: TuningSettings, is_hopeless: IsHopeless) -> None:
        mode: MetricMode = "min" if settings.direction == "minimize" else "max"
        self.watch = MetricWatch(settings.metric, mode, setting="training.tuning.metric")
        self.pruned = False
        self._is_hopeless = is_hopeless

    def on_validation_end(self, trainer: TrainerView, metrics: Mapping[str, float]) -> None:
        """Report the metric, and stop if the run is pruned."""
        self.watch.observe(metrics)
        if self._is_hopeless(trainer.step, float(metrics[self.watch.metric])):
            self.pruned = trainer.should_stop = True

    def state_dict(self) -> dict[str, Any]:
        """The best value so far, and whether the run was pruned."""
        return {**self.watch.state(), "pruned": self.pruned}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state`."""
        self.watch.restore(state)
        self.pruned = bool(state["pruned"])


@dataclass(frozen=True)
class Experiment:
    """What all runs of a search share."""

    source: str | Path | Document
    overrides: tuple[Override, ...]
    settings: TuningSettings
    folder: Path
    """The search's folder."""
    mode: Mode
    device: str | None
    plugins: tuple[Path, ...]
    train: Train

    def run(self, number: int, values: Values, name: str, is_hopeless: IsHopeless) -> Trial:
        """Train with `values` in RUN/trials/`name`, or resume an interrupted run there.

        After an InputError or TrainingError (such as a non-finite loss) the run is failed; other errors are raised.
        """
        callback = TuningCallback(self.settings, is_hopeless)
        folder = self.folder / "trials" / name
        resume = "auto" if folder.exists() else None
        own: dict[str, Any] = {**values, "training.tuning.library": None}
        changes = [*self.overrides, *parse_overrides(own)]
        started = time.monotonic()
        step, reason = 0, ""
        try:
            planned = plan(
                self.source,
                changes,
                resume=resume,
                mode=self.mode,
                device=self.device,
                output=folder,
                plugins=self.plugins,
            )
            step = self.train(planned, [callback])
        except (InputError, TrainingError) as error:
            reason = str(error)
        state: State = "failed" if reason else "pruned" if callback.pruned else "complete"
        if state == "complete" and callback.watch.best is None:
            state, reason = "failed", f"{self.settings.metric} was never finite"
        return Trial(
            number,
            state,
            dict(values),
            callback.watch.best,
            step,
            round(time.monotonic() - started, 1),
            f"trials/{name}",
            reason,
        )


# -------- Search with Optuna (Akiba et al. 2019): tree-structured Parzen estimator with median pruning

STUDY = "study.log"
_NAME = "phonate"
_FOLDER_ATTRIBUTE = "folder"
_OUTCOME = "outcome"
_BEFORE_PRUNING = 5
"""Minimum number of runs before others are pruned."""


def optuna_search(experiment: Experiment, seed: int) -> Iterator[Trial]:
    """The outcome of each run, starting with those of earlier calls. Raises MissingPackageError without Optuna."""
    optuna = optional_package("optuna", "training.tuning.library optuna", "'phonate[tuning]'")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    settings = experiment.settings
    study = _study(optuna, experiment.folder, settings, seed)
    done = [Trial(**one.user_attrs[_OUTCOME]) for one in study.trials if _OUTCOME in one.user_attrs]
    yield from done
    for stopped in [one for one in study.trials if one.state == optuna.trial.TrialState.RUNNING]:
        study.enqueue_trial(stopped.params, user_attrs={_FOLDER_ATTRIBUTE: stopped.user_attrs.get(_FOLDER_ATTRIBUTE)})
        study.tell(stopped.number, state=optuna.trial.TrialState.FAIL)
    for number in range(len(done), settings.n_trials):
        trial = study.ask()
        values = {path: _suggest(trial, path, space) for path, space in settings.search_space.items()}
        name = trial.user_attrs.get(_FOLDER_ATTRIBUTE) or f"trial-{number:04d}"
        trial.set_user_attr(_FOLDER_ATTRIBUTE, name)

        def is_hopeless(step: int, value: float, trial: Any = trial) -> bool:
            trial.report(value, step)
            return bool(settings.pruning and trial.should_prune())

        outcome = experiment.run(number, values, name, is_hopeless)
        trial.set_user_attr(_OUTCOME, vars(outcome))
        states = optuna.trial.TrialState
        if outcome.state == "failed":
            study.tell(trial, state=states.FAIL)
        elif outcome.state == "pruned":
            study.tell(trial, state=states.PRUNED)
        else:
            study.tell(trial, outcome.metric)
        yield outcome


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
            f"{'higher' if settings.direction == 'maximize' else 'lower'}; start another one with {option('output')}"
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


# ---------- Search with Ray Tune (Liaw et al. 2018): random search, pruned by the median stopping rule

_RAY_FOLDER = "ray"
"""Minimum number of runs before others are pruned."""


def ray_search(experiment: Experiment, seed: int) -> Iterator[Trial]:
    """The outcome of each run, after all have finished. Raises MissingPackageError without Ray."""
    ray, tune = _package("ray"), _package("ray.tune")
    os.environ["RAY_CHDIR_TO_TRIAL_DIR"] = "0"  # paths in a recipe are relative to the current directory
    settings = experiment.settings
    absolute = replace(experiment, folder=experiment.folder.resolve())
    gpus = _gpus()
    ray.init(include_dashboard=False, log_to_driver=False, ignore_reinit_error=True)
    try:
        trainable = tune.with_resources(tune.with_parameters(_train, experiment=absolute), {"cpu": 1, "gpu": gpus})
        state = absolute.folder / _RAY_FOLDER
        if tune.Tuner.can_restore(str(state)):
            tuner = tune.Tuner.restore(str(state), trainable=trainable, resume_unfinished=True, restart_errored=False)
        else:
            tuner = tune.Tuner(
                trainable,
                param_space={path: _space(tune, space) for path, space in settings.search_space.items()},
                tune_config=_config(tune, settings, seed),
                run_config=tune.RunConfig(name=_RAY_FOLDER, storage_path=str(absolute.folder), verbose=0),
            )
        results = tuner.fit()
    finally:
        ray.shutdown()
    for result in sorted(results, key=lambda one: _number(Path(one.path).name)):
        yield _outcome(result, settings)


def _package(name: str) -> Any:
    return optional_package(name, "training.tuning.library raytune", "'phonate[raytune]'")


def _train(config: dict[str, Any], experiment: Experiment) -> None:
    """One run, in a Ray worker process."""
    tune = _package("ray.tune")
    number = _number(tune.get_context().get_trial_id())

    def report(step: int, value: float) -> bool:
        tune.report({"metric": value, "step": step})
        return False  # Ray terminates pruned workers itself

    outcome = experiment.run(number, config, f"trial-{number:04d}", report)
    worst = math.inf if experiment.settings.direction == "minimize" else -math.inf  # Ray needs a number
    metric = worst if outcome.metric is None else outcome.metric
    tune.report({"metric": metric, "step": outcome.step, "outcome": vars(outcome)})


def _number(trial_id: str) -> int:
    """The number of a trial, from its id (b1f07_00003) or its folder's name (_train_b1f07_00003_3_lr=...). What comes
    before it, five random digits of base 16, may be a decimal number, too."""
    found = re.search(r"(?:^|_)[0-9a-f]{5}_(\d{5})(?:_|$)", trial_id)
    assert found, trial_id
    return int(found[1])


def _config(tune: Any, settings: TuningSettings, seed: int) -> Any:
    schedulers, variants = _package("ray.tune.schedulers"), _package("ray.tune.search.basic_variant")
    rule: Any = schedulers.FIFOScheduler()
    if settings.pruning:
        rule = schedulers.MedianStoppingRule(time_attr="step", grace_period=1, min_samples_required=_BEFORE_PRUNING)
    return tune.TuneConfig(
        metric="metric",
        mode="min" if settings.direction == "minimize" else "max",
        num_samples=settings.n_trials,
        scheduler=rule,
        search_alg=variants.BasicVariantGenerator(random_state=derived_seed("tuning", seed) % 2**32),
    )


def _space(tune: Any, space: list[Any] | RangeSettings) -> Any:
    """Ray's distribution for a list or a range."""
    if isinstance(space, list):
        return tune.choice(space)
    if space.step is not None:  # not quniform, whose values are multiples of the step
        return tune.choice(space.grid)
    if space.whole:
        draw = tune.lograndint if space.log else tune.randint
        return draw(int(space.low), int(space.high) + 1)  # Ray excludes the upper bound
    draw = tune.loguniform if space.log else tune.uniform
    return draw(space.low, space.high)


def _outcome(result: Any, settings: TuningSettings) -> Trial:
    """The outcome of a run; runs that Ray terminated have not reported it themselves."""
    if "outcome" in (result.metrics or {}):
        return Trial(**result.metrics["outcome"])
    number = _number(Path(result.path).name)
    history = result.metrics_dataframe
    values = [] if history is None else [float(value) for value in history["metric"]]
    best = None if not values else min(values) if settings.direction == "minimize" else max(values)
    return Trial(
        number,
        "failed" if result.error is not None else "pruned",
        dict(result.config),
        best,
        0 if history is None else int(history["step"].max()),
        0.0 if history is None else round(float(history["time_total_s"].max()), 1),
        f"trials/trial-{number:04d}",
        "" if result.error is None else str(result.error).splitlines()[-1],
    )


def _gpus() -> int:
    import torch

    return min(1, torch.cuda.device_count())


# -------------------------------------------------------------- `phonate train` with `training.tuning`

BEST = "best.yaml"
_FIRST_FAILURES = 3
"""The search is aborted if this many runs fail at the beginning."""


@dataclass(frozen=True)
class Search:
    """A finished search."""

    run: Run
    """The search's folder."""
    trials: tuple[Trial, ...]
    settings: TrainingSettings

    @property
    def best(self) -> Trial:
        """The completed run with the best metric."""
        sign = 1.0 if self.settings.tuning.direction == "minimize" else -1.0
        complete = [one for one in self.trials if one.state == "complete" and one.metric is not None]
        return min(complete, key=lambda one: sign * (one.metric or 0.0))

    def header(self) -> list[str]:
        """Column headings of the table."""
        return ["run", "state", self.settings.tuning.metric, *self.settings.tuning.search_space, "step", "seconds"]

    def rows(self) -> list[list[str]]:
        """A row for each run, best first."""
        sign = 1.0 if self.settings.tuning.direction == "minimize" else -1.0
        order = sorted(
            self.trials, key=lambda one: (one.state != "complete", one.metric is None, sign * (one.metric or 0.0))
        )
        return [
            [
                one.run,
                one.state,
                "" if one.metric is None else f"{one.metric:.6g}",
                *(_cell(one.values[path]) for path in self.settings.tuning.search_space),
                str(one.step),
                f"{one.seconds:g}",
            ]
            for one in order
        ]


def tune(plan: Plan, train: Train) -> Search:
    """Run the search that `training.tuning` of a planned recipe describes in the plan's folder, each run by `train`.

    Writes `study.log` (Optuna), the runs `trials/trial-0000` and so on, `trials.csv`, and `best.yaml`, the recipe of
    the best run. With `resume` ("auto" or a search's folder) it continues an interrupted search, or adds runs after
    `n_trials` was raised.

    Raises InputError for an unknown option or metric, MissingPackageError without the library, TrainingError if no run
    completes.
    """
    settings: TrainingSettings = plan.written.recipe.training
    plan.check()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise InputError("training.tuning: a search is one process; start it without torchrun or accelerate launch")
    direction = direction_of(settings, task_info(plan.written.recipe.task).metrics)
    tuning = settings.tuning.model_copy(update={"direction": direction})
    settings = settings.model_copy(update={"tuning": tuning})
    run = Run(plan.run)
    with run.opened(resuming=plan.resume is not None):
        run.write(files.RECIPE, plan.written.to_yaml())
        experiment = Experiment(
            plan.source,
            plan.overrides,
            tuning,
            run.path,
            mode=plan.mode,
            device=plan.asked_device,
            plugins=tuple(Path(record["path"]) for record in plan.plugins),
            train=train,
        )
        trials: list[Trial] = []
        for trial in (
            (optuna_search(experiment, settings.random_seed))
            if (experiment.settings.library == "optuna")
            else (ray_search(experiment, settings.random_seed))
        ):
            trials.append(trial)
            _write(Search(run, tuple(trials), settings))
            _log(trial, settings)
            if len(trials) == _FIRST_FAILURES and all(one.state == "failed" for one in trials):
                raise TrainingError(f"training.tuning: the first {_FIRST_FAILURES} runs failed: {trial.reason}")
    search = Search(run, tuple(trials), settings)
    if all(one.state != "complete" for one in trials):
        raise TrainingError(f"{run.path}: none of the {len(trials)} runs completed; {TRIALS} lists the reasons")
    return search


def _write(search: Search) -> None:
    table = io.StringIO()
    reasons = {one.run: one.reason for one in search.trials}
    csv.writer(table).writerows(
        [[*search.header(), "reason"], *[[*row, reasons[row[0]]] for row in search.rows()]],
    )
    search.run.write(TRIALS, table.getvalue())
    if any(one.state == "complete" for one in search.trials):
        shutil.copyfile(search.run.path / search.best.run / files.RECIPE, search.run.path / BEST)


def _log(trial: Trial, settings: TrainingSettings) -> None:
    shown = "" if trial.metric is None else f" {settings.tuning.metric} {trial.metric:.6g}"
    values = " ".join(f"{path}={_cell(value)}" for path, value in trial.values.items())
    of = settings.tuning.n_trials
    logger.info("run %d of %d %s:%s %s %s", trial.number + 1, of, trial.state, shown, values, trial.reason)


def _cell(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
