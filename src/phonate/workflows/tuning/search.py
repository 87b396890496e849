"""`phonate train` with `training.tuning`: one run per trial, a table of the runs, and the recipe of the best one."""

from __future__ import annotations

import csv
import io
import logging
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phonate.config.errors import InputError, TrainingError
from phonate.config.tasks import task_info
from phonate.training.metrics import direction_of
from phonate.training.run import Run
from phonate.training.settings import TrainingSettings
from phonate.workflows.plan import Plan
from phonate.workflows.tuning.optuna_search import search as optuna_search
from phonate.workflows.tuning.ray_search import search as ray_search
from phonate.workflows.tuning.trial import TABLE, Experiment, Trial

logger = logging.getLogger("phonate")

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


def tune(plan: Plan) -> Search:
    """Run the search described by `training.tuning` of a planned recipe in the plan's folder.

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
        run.write("recipe.yaml", plan.written.to_yaml())
        experiment = Experiment(
            plan.source,
            plan.overrides,
            tuning,
            run.path,
            mode=plan.mode,
            device=plan.asked_device,
            plugins=tuple(Path(record["path"]) for record in plan.plugins),
        )
        found: list[Trial] = []
        for trial in _trials(experiment, settings.random_seed):
            found.append(trial)
            _write(Search(run, tuple(found), settings))
            _log(trial, settings)
            if len(found) == _FIRST_FAILURES and all(one.state == "failed" for one in found):
                raise TrainingError(f"training.tuning: the first {_FIRST_FAILURES} runs failed: {trial.reason}")
    search = Search(run, tuple(found), settings)
    if all(one.state != "complete" for one in found):
        raise TrainingError(f"{run.path}: none of the {len(found)} runs completed; {TABLE} lists the reasons")
    return search


def _trials(experiment: Experiment, seed: int) -> Iterator[Trial]:
    if experiment.settings.library == "optuna":
        return optuna_search(experiment, seed)
    return ray_search(experiment, seed)


def _write(search: Search) -> None:
    """Write the table, and the recipe of the best run."""
    table = io.StringIO()
    csv.writer(table).writerows(
        [[*search.header(), "reason"], *_with_reasons(search)],
    )
    search.run.write(TABLE, table.getvalue())
    if any(one.state == "complete" for one in search.trials):
        shutil.copyfile(search.run.path / search.best.run / "recipe.yaml", search.run.path / BEST)


def _with_reasons(search: Search) -> list[list[str]]:
    reasons = {one.run: one.reason for one in search.trials}
    return [[*row, reasons[row[0]]] for row in search.rows()]


def _log(trial: Trial, settings: TrainingSettings) -> None:
    shown = "" if trial.metric is None else f" {settings.tuning.metric} {trial.metric:.6g}"
    values = " ".join(f"{path}={_cell(value)}" for path, value in trial.values.items())
    of = settings.tuning.n_trials
    logger.info("run %d of %d %s:%s %s %s", trial.number + 1, of, trial.state, shown, values, trial.reason)


def _cell(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
