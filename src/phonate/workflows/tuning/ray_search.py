"""Search with Ray Tune (Liaw et al. 2018): random search, pruned by the median stopping rule.

Ray runs the trials in worker processes, as many in parallel as there are devices. It keeps its state in RUN/ray, from
which an interrupted search continues.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from phonate.config.packages import optional_package
from phonate.config.randomness import derived_seed
from phonate.training.tuning import RangeSettings, TuningSettings
from phonate.workflows.tuning.trial import Experiment, Trial

_FOLDER = "ray"
_BEFORE_PRUNING = 5
"""Minimum number of runs before others are pruned."""


def search(experiment: Experiment, seed: int) -> Iterator[Trial]:
    """The outcome of each run, after all have finished. Raises MissingPackageError without Ray."""
    ray, tune = _package("ray"), _package("ray.tune")
    os.environ["RAY_CHDIR_TO_TRIAL_DIR"] = "0"  # paths in a recipe are relative to the current directory
    settings = experiment.settings
    absolute = replace(experiment, folder=experiment.folder.resolve())
    gpus = _gpus()
    ray.init(include_dashboard=False, log_to_driver=False, ignore_reinit_error=True)
    try:
        trainable = tune.with_resources(tune.with_parameters(_train, experiment=absolute), {"cpu": 1, "gpu": gpus})
        state = absolute.folder / _FOLDER
        if tune.Tuner.can_restore(str(state)):
            tuner = tune.Tuner.restore(str(state), trainable=trainable, resume_unfinished=True, restart_errored=False)
        else:
            tuner = tune.Tuner(
                trainable,
                param_space={path: _space(tune, space) for path, space in settings.search_space.items()},
                tune_config=_config(tune, settings, seed),
                run_config=tune.RunConfig(name=_FOLDER, storage_path=str(absolute.folder), verbose=0),
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

    found = experiment.run(number, config, f"trial-{number:04d}", report)
    worst = math.inf if experiment.settings.direction == "minimize" else -math.inf  # Ray needs a number
    metric = worst if found.metric is None else found.metric
    tune.report({"metric": metric, "step": found.step, "outcome": vars(found)})


def _number(trial_id: str) -> int:
    """The number of a trial, from its id or its folder's name (..._00003, ..._00003_3_lr=...)."""
    return next(int(part) for part in trial_id.split("_") if len(part) == 5 and part.isdigit())


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
