"""The metrics that a run is steered by: the options that name them, their directions, and their best values so far.

A direction is declared once, by the task (`Task.metrics`). For a metric that no task declares one option may state it
(`greater_is_better`, `mode`, `direction`), which then holds for all that follow this metric. Imports no torch.
"""

from __future__ import annotations

import difflib
import logging
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from phonate.config.errors import InputError
from phonate.config.metrics import LOSS, NEWEST, Better, Metric, better_of, by_name, plain, told, with_losses
from phonate.config.registry import nearest
from phonate.training.registries import SCHEDULES

if TYPE_CHECKING:
    from phonate.training.callbacks import Callback
    from phonate.training.settings import TrainingSettings

logger = logging.getLogger(__name__)

Mode = Literal["min", "max"]
_FLAGS = {"lower": "false", "higher": "true"}
_MODES = {"lower": "min", "higher": "max"}
_DIRECTIONS = {"lower": "minimize", "higher": "maximize"}
_BY_WORD: Mapping[object, Better] = {
    **{"min": "lower", "minimize": "lower", False: "lower"},
    **{"max": "higher", "maximize": "higher", True: "higher"},
}


class UnknownMetricError(InputError):
    """A setting names a metric that validation does not report, or one of which nothing says what is better."""


@dataclass(frozen=True)
class MetricOption:
    """An option that names a metric, and the option beside it that may state the metric's direction."""

    setting: str
    """Path of the option, such as `training.early_stopping.metric`."""
    name: str
    """The metric, with or without `val_`."""
    beside: str
    """Path of the option for the direction."""
    words: Mapping[str, str]
    """How that option writes `lower` and `higher`."""
    better: Better | None
    """The direction: as given there, then as resolved. None: not given, and not declared by the task."""


def improves(value: float, best: float | None, *, higher: bool, min_delta: float = 0.0) -> bool:
    """Whether `value` is better than `best` by more than `min_delta`. The first value is; NaN never is."""
    if math.isnan(value):
        return False
    if best is None:
        return True
    return (value - best if higher else best - value) > min_delta


@dataclass
class Best:
    """The best validation so far."""

    metric: str
    greater_is_better: bool
    value: float | None = None
    step: int = 0

    def observe(self, metrics: Mapping[str, float], step: int) -> bool:
        """Note the metrics of a validation after `step` steps; whether it is the best so far."""
        value = float(step) if self.metric == NEWEST else metrics[self.metric]
        if not improves(value, self.value, higher=self.greater_is_better):
            return False
        self.value, self.step = value, step
        return True

    def state(self) -> dict[str, Any]:
        """All fields."""
        return asdict(self)

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Restore the value, unless it is of another metric: then the best is chosen anew."""
        if (saved["metric"], saved["greater_is_better"]) == (self.metric, self.greater_is_better):
            self.value, self.step = saved["value"], saved["step"]
        elif saved["value"] is not None:
            logger.info("the best checkpoint was chosen by %s; it is now chosen by %s", saved["metric"], self.metric)


class MetricWatch:
    """Counts the validations since `metric` last improved by more than `min_delta`.

    NaN does not count as an improvement.

    Args:
        metric: Its name, with or without `val_`.
        mode: Whether lower ("min") or higher ("max") is better. None: as the task declares; the trainer sets it.
        min_delta: Smaller changes are no improvement.
        setting: The option that names the metric, for error messages.
    """

    def __init__(
        self, metric: str, mode: Mode | None = None, min_delta: float = 0.0, setting: str = "training.callbacks.metric"
    ) -> None:
        if mode not in {"min", "max", None}:
            raise ValueError(f"mode: min or max, not {mode!r}")
        if min_delta < 0:
            raise ValueError("min_delta: 0 or more")
        self.metric = metric
        self.setting = setting
        self.mode = mode
        self.min_delta = min_delta
        self.best: float | None = None
        self.stale = 0
        self.declared: Sequence[Metric] = ()
        """What the task says of its metrics; the trainer sets it."""

    @property
    def best_in_words(self) -> str:
        """The best value with its unit."""
        return "nothing" if self.best is None else told(self.metric, self.best, self.declared)

    def observe(self, metrics: Mapping[str, float]) -> bool:
        """Record a validation. Returns whether it is the best so far; raises InputError if the metric is missing."""
        if self.metric not in metrics:
            raise InputError(f"the validation has no metric {self.metric!r}; {nearest(self.metric, list(metrics))}")
        value = float(metrics[self.metric])
        if improves(value, self.best, higher=self.mode == "max", min_delta=self.min_delta):
            self.best, self.stale = value, 0
            return True
        self.stale += 1
        return False

    @property
    def option(self) -> MetricOption:
        """The option that names the metric."""
        place = self.setting.removesuffix("metric")
        tuning = place == "training.tuning."
        beside, words = ("direction", _DIRECTIONS) if tuning else ("mode", _MODES)
        return MetricOption(self.setting, self.metric, place + beside, words, _BY_WORD.get(self.mode))

    def state(self) -> dict[str, Any]:
        """The best value and the number of validations since, as JSON."""
        return {"best": self.best, "stale": self.stale}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore `state`."""
        best = state["best"]
        self.best = None if best is None else float(best)
        self.stale = int(state["stale"])


def watches(callbacks: Iterable[Callback]) -> list[MetricWatch]:
    """What callbacks watch."""
    return [one for callback in callbacks if isinstance(one := getattr(callback, "watch", None), MetricWatch)]


def directed(
    settings: TrainingSettings, declared: Sequence[Metric] | None, callbacks: Sequence[Callback]
) -> tuple[TrainingSettings, list[MetricOption]]:
    """`settings` with the directions of the metrics that they name, and the options that name them; `callbacks` are
    told theirs.

    Args:
        declared: The task's metrics. None: it does not declare them.

    Raises:
        UnknownMetricError: an option names a metric that the task does not declare.
        InputError: an option contradicts a declared direction, or another option.
    """
    best = "checkpoint.monitor_metric" if settings.checkpoint.monitor_metric else "validation.metric_for_best_model"
    selection = MetricOption(
        f"training.{best}",
        settings.best_metric,
        "training.validation.greater_is_better",
        _FLAGS,
        _BY_WORD.get(settings.validation.greater_is_better),
    )
    options = [selection]
    scheduler = settings.scheduler
    # as far as the schedule says what it reads
    reads = SCHEDULES.get(scheduler.type).reads
    if reads is None or "metric" in reads:
        mode = _BY_WORD.get(scheduler.mode)
        path = "training.scheduler"
        options.append(MetricOption(f"{path}.metric", scheduler.metric, f"{path}.mode", _MODES, mode))
    watching = watches(callbacks)
    options += [one.option for one in watching]
    validated = options if settings.best_metric != NEWEST else options[1:]
    if declared is not None:
        check_metrics(validated, {LOSS, *by_name(*declared)})
    directions = resolve_directions(options, by_name(*declared or ()))
    for one in watching:
        one.mode, one.declared = _mode(directions.get(plain(one.metric))), declared or ()
    update = {
        "validation": {"greater_is_better": directions.get(plain(settings.best_metric)) == "higher"},
        "scheduler": {"mode": _mode(directions.get(plain(scheduler.metric)))},
    }
    parts = {name: getattr(settings, name).model_copy(update=values) for name, values in update.items()}
    resolved = [replace(one, better=directions.get(plain(one.name))) for one in validated]
    return settings.model_copy(update=parts), resolved


def resolve_directions(options: Iterable[MetricOption], declared: Mapping[str, Metric]) -> dict[str, Better]:
    """The direction of each metric that `options` name (without `val_`), where it is declared or stated.

    Raises InputError for an option that contradicts a declared direction or another option, and for a metric that has
    no better direction.
    """
    directions: dict[str, Better] = {}
    stated: dict[str, MetricOption] = {}
    for one in options:
        name, given = plain(one.name), one.better
        better = better_of(name, declared)
        if better == "":
            raise InputError(f"{one.setting}: {one.name} is neither better when lower nor when higher; choose another")
        if better is not None:
            if given not in (None, better):
                raise InputError(
                    f"{one.beside}={one.words[str(given)]} contradicts {one.setting}={one.name}, which is better when "
                    f"{better}; leave {one.beside} out"
                )
            directions[name] = better
        elif given is not None:
            first = stated.setdefault(name, one)
            if first.better != given:
                raise InputError(
                    f"{one.beside}={one.words[given]} contradicts {first.beside}={first.words[str(first.better)]}: "
                    f"both are about {name}; correct one of them"
                )
            directions[name] = given
    return directions


def direction_of(settings: TrainingSettings, declared: Sequence[Metric] | None) -> Literal["minimize", "maximize"]:
    """The direction of `training.tuning.metric`, which a search needs before its first run.

    Args:
        declared: The metrics of the task (`TaskInfo.metrics`) besides its loss terms. None: it does not declare them.

    Raises InputError where nothing says it, or `training.tuning.direction` contradicts it.
    """
    tuning, given = settings.tuning, settings.tuning.direction
    path = "training.tuning"
    option = MetricOption(f"{path}.metric", tuning.metric, f"{path}.direction", _DIRECTIONS, _BY_WORD.get(given))
    known = {} if declared is None else with_losses([tuning.metric], declared)
    better = resolve_directions([option], known).get(plain(tuning.metric))
    if better is None:
        raise undirected(option)
    return "maximize" if better == "higher" else "minimize"


def check_metrics(options: Sequence[MetricOption], known: Collection[str]) -> None:
    """Raise UnknownMetricError for an option whose metric is not among the `known` names (without `val_`)."""
    for one in options:
        reported = sorted(f"val_{name}" for name in known)
        if one.name not in {*known, *reported}:
            close = difflib.get_close_matches(one.name, [*reported, *known], n=1, cutoff=0.6)
            hint = f"; did you mean {close[0]}?" if close else "."
            raise UnknownMetricError(
                f"{one.setting}: validation reports no metric {one.name!r}{hint} It reports {', '.join(reported)}"
            )


_SPEED = ("steps_per_second", "samples_per_second", "data_wait")
_MEASURED = ("learning_rate", "grad_norm", "grad_scale", "sparsity", *_SPEED)
"""What the trainer and the package's callbacks report of training, besides losses."""
_FAMILIES = ("learning_rate", "grad_norm/", "memory/", "system/", "time/")
"""How names begin of which a model or a machine has several."""


def check_shown(names: Iterable[str], reported: Iterable[str]) -> None:
    """Raise UnknownMetricError for a name in `training.logging.log_metrics`, unless it is a pattern, that is neither
    among the metrics that the task has `reported` nor among those of the trainer."""
    known = [LOSS, *reported, *_MEASURED]
    for name in names:
        is_pattern = any(character in name for character in "*?[")
        if not is_pattern and not name.startswith(_FAMILIES) and name.removeprefix("val_") not in known:
            raise UnknownMetricError(
                f"training.logging.log_metrics: nothing reports a metric {name!r}; {nearest(name, sorted({*known}))}"
            )


def check_measured(options: Sequence[MetricOption], metrics: Collection[str], terms: Collection[str]) -> None:
    """Check `options` against what a validation reported: its `metrics`, among them the loss `terms`.

    Raises UnknownMetricError for a metric that is missing, and for one without a direction that is no loss.
    """
    check_metrics(options, metrics)
    for one in options:
        if one.better is None and plain(one.name) not in {LOSS, *terms}:
            raise undirected(one)


def undirected(option: MetricOption) -> UnknownMetricError:
    """The error where nothing says which direction of a metric is better."""
    words = " or ".join(option.words.values())
    return UnknownMetricError(
        f"{option.setting}: nothing says whether {option.name} is better when lower or higher; set {option.beside} to "
        f"{words}, or declare it in the task's metrics"
    )


def _mode(better: Better | None) -> Mode | None:
    return None if not better else "max" if better == "higher" else "min"
