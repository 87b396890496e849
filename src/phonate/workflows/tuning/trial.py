"""One run of a search: a recipe with proposed values, trained into a folder of its own."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from phonate.config.errors import InputError, TrainingError
from phonate.training.callbacks import Callback, TrainerView
from phonate.training.callbacks._watch import MetricWatch
from phonate.training.tuning import TuningSettings

State = Literal["complete", "pruned", "failed"]
Values = Mapping[str, Any]
"""Option path -> value."""
IsHopeless = Callable[[int, float], bool]
"""Told the step and the metric of each validation; says whether the run is to be stopped."""


@dataclass(frozen=True)
class Trial:
    """The outcome of one run."""

    number: int
    state: State
    values: dict[str, Any]
    metric: float | None
    """The best value of the metric; None: it was never measured."""
    step: int
    """Optimizer steps done; 0 for one that failed."""
    seconds: float
    """Time it took, that before an interruption left out."""
    run: str
    """The run's folder, relative to that of the search."""
    reason: str = ""
    """Why it failed."""


class TuningCallback(Callback):
    """Reports each validation to a search, and stops the run when it is hopeless."""

    def __init__(self, settings: TuningSettings, is_hopeless: IsHopeless) -> None:
        mode: Literal["min", "max"] = "min" if settings.direction == "minimize" else "max"
        self.watch = MetricWatch(settings.metric, mode, setting="training.tuning.metric")
        self.pruned = False
        self._is_hopeless = is_hopeless

    def on_validation_end(self, trainer: TrainerView, metrics: Mapping[str, float]) -> None:
        """Report, and stop if told so."""
        self.watch.observe(metrics)
        if self._is_hopeless(trainer.step, float(metrics[self.watch.metric])):
            self.pruned = trainer.should_stop = True

    def state_dict(self) -> dict[str, Any]:
        """The best value so far, and whether the run was stopped."""
        return {**self.watch.state(), "pruned": self.pruned}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state`."""
        self.watch.restore(state)
        self.pruned = bool(state["pruned"])


@dataclass(frozen=True)
class Experiment:
    """What all runs of a search have in common."""

    source: str | Path
    overrides: Sequence[str] | Mapping[str, Any]
    settings: TuningSettings
    folder: Path
    """The search's folder."""
    options: Mapping[str, Any]
    """Further arguments of `phonate.workflows.train.train`: mode, device."""

    def run(self, number: int, values: Values, name: str, is_hopeless: IsHopeless) -> Trial:
        """Train with `values` in RUN/trials/`name`, or continue there what was interrupted.

        A run that can't be trained with these values, or whose loss is not finite, has failed; anything else is raised.
        """
        from phonate.workflows.train import train

        callback = TuningCallback(self.settings, is_hopeless)
        folder = self.folder / "trials" / name
        resume = "auto" if folder.exists() else None
        changes = combined(self.overrides, {**values, "training.tuning.library": None})
        started = time.monotonic()
        step, reason = 0, ""
        try:
            step = train(self.source, changes, resume=resume, output=folder, callbacks=[callback], **self.options).step
        except (InputError, TrainingError) as error:
            reason = str(error)
        state: State = "failed" if reason else "pruned" if callback.pruned else "complete"
        if state == "complete" and callback.watch.best is None:
            state, reason = "failed", f"{self.settings.metric} was never a number"
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


def combined(overrides: Sequence[str] | Mapping[str, Any], values: Values) -> Sequence[str] | Mapping[str, Any]:
    """`overrides` with `values` over them."""
    if isinstance(overrides, Mapping):
        return {**overrides, **values}
    given = [overrides] if isinstance(overrides, str) else list(overrides)
    return [*given, *(f"{path}={json.dumps(value)}" for path, value in values.items())]
