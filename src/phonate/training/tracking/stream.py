"""The one way in which metrics leave training."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phonate.training.task import Preview
    from phonate.training.tracking.system import SystemMonitor

log = logging.getLogger(__name__)


class Sink:
    """A place that metrics go to. Override what it can do."""

    keeps_all = False
    """Whether it gets every metric, whatever `logging.log_metrics` selects."""

    def write(self, step: int, split: str, values: Mapping[str, float], epoch: int | None) -> None:
        """Take the metrics of a step. The same step and split may come again with further names."""

    def event(self, step: int, name: str, facts: Mapping[str, Any]) -> None:
        """Take something that happened at a step, such as a resume."""

    def media(self, step: int, previews: Mapping[str, Preview]) -> None:
        """Take sounds and pictures."""

    def artifact(self, path: Path) -> None:
        """Take a checkpoint that was saved."""

    def tick(self, step: int) -> None:
        """Learn that `step` optimizer steps are done. Called after every step: must cost next to nothing."""

    def close(self) -> None:
        """Write out what is held back and let go of files."""


class MetricStream:
    """Sends metrics to every sink. A stream without sinks (ranks other than the first) does nothing.

    Args:
        sinks: Where metrics go.
        only: Names or wildcards; sinks that do not keep all get no other metrics (`logging.log_metrics`). "loss" stands
            for "val_loss" too. None: every sink gets all.
        system: Read beside the training metrics of a step.
    """

    def __init__(
        self,
        sinks: Iterable[Sink] = (),
        only: Iterable[str] | None = None,
        system: SystemMonitor | None = None,
    ) -> None:
        self.sinks = list(sinks)
        self._ticking = [sink.tick for sink in self.sinks if type(sink).tick is not Sink.tick]
        self._only = None if only is None else tuple(only)
        self._wanted: dict[str, bool] = {}
        self._silent: set[str] = set()
        """Splits of which nothing is kept."""
        self._system = system
        self._system_step: int | None = None

    def emit(self, step: int, split: str, values: Mapping[str, float], epoch: int | None = None) -> None:
        """Send metrics of optimizer step `step` (steps taken so far); `split` is "train" or "validation"."""
        if not self.sinks:
            return
        if self._system is not None and split == "train" and step != self._system_step:
            self._system_step = step
            values = {**values, **self._system.read()}
        selected = values
        if self._only is not None:
            selected = {name: value for name, value in values.items() if self._keeps(name)}
            if values and not selected and split not in self._silent:
                self._silent.add(split)
                log.warning(
                    "training.logging.log_metrics: none of %s is among the %s metrics, so none is shown; there is: %s",
                    ", ".join(self._only),
                    split,
                    ", ".join(sorted(values)),
                )
        for sink in self.sinks:
            if shown := values if sink.keeps_all else selected:
                sink.write(step, split, shown, epoch)

    def _keeps(self, name: str) -> bool:
        kept = self._wanted.get(name)
        if kept is None:
            plain = name.removeprefix("val_")
            kept = any(fnmatchcase(name, wanted) or fnmatchcase(plain, wanted) for wanted in self._only or ())
            self._wanted[name] = kept
        return kept

    def event(self, step: int, name: str, **facts: Any) -> None:
        """Send an event with its facts (JSON values), e.g. `event(20, "resumed", checkpoint="...")`."""
        for sink in self.sinks:
            sink.event(step, name, facts)

    def media(self, step: int, previews: Mapping[str, Preview]) -> None:
        """Send sounds and pictures."""
        for sink in self.sinks:
            sink.media(step, previews)

    def artifact(self, path: Path) -> None:
        """Offer a finished checkpoint to the sinks that upload."""
        for sink in self.sinks:
            sink.artifact(path)

    def tick(self, step: int) -> None:
        """After every optimizer step: moves the progress bar, in about a microsecond."""
        for tick in self._ticking:
            tick(step)

    def close(self) -> None:
        """Close every sink. Says which names in `log_metrics` met no metric."""
        for sink in self.sinks:
            sink.close()
        for wanted in self._only or ():
            names = self._wanted
            if names and not any(
                fnmatchcase(name, wanted) or fnmatchcase(name.removeprefix("val_"), wanted) for name in names
            ):
                log.warning(
                    "training.logging.log_metrics: nothing was called %s; there was: %s",
                    wanted,
                    ", ".join(sorted(names)),
                )
        self.sinks = []
        self._ticking = []


def tag(names: Mapping[str, str], split: str, name: str) -> str:
    """What a sink calls the metric: its entry in `names` under "split/name" or "name", else "split/name"."""
    full = name if "/" in name else f"{split}/{name}"
    return names.get(full) or names.get(name) or full
