"""One run of a search: a recipe with proposed values, trained in its own folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from phonate.compute.resources import Mode
from phonate.config.documents import Document
from phonate.config.errors import InputError, TrainingError
from phonate.config.overrides import Override, parse_overrides
from phonate.training.callbacks import Callback, TrainerView
from phonate.training.metrics import MetricWatch
from phonate.training.metrics import Mode as MetricMode
from phonate.training.tuning import TuningSettings

TABLE = "trials.csv"
"""File in a search's folder with its runs."""

State = Literal["complete", "pruned", "failed"]
Values = Mapping[str, Any]
"""Option path -> value."""
IsHopeless = Callable[[int, float], bool]
"""Called with the step and the metric of each validation; returns whether to stop the run."""


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

    def run(self, number: int, values: Values, name: str, is_hopeless: IsHopeless) -> Trial:
        """Train with `values` in RUN/trials/`name`, or resume an interrupted run there.

        After an InputError or TrainingError (such as a non-finite loss) the run is failed; other errors are raised.
        """
        from phonate.workflows.plan import plan
        from phonate.workflows.train import train_plan

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
            step = train_plan(planned, callbacks=[callback]).step
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
