"""Metric stream: sends the metrics of training to all sinks."""

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
    """A destination of metrics. Override the methods it supports."""

    keeps_all = False
    """Whether it receives every metric, regardless of `logging.log_metrics`."""

    def write(self, step: int, split: str, values: Mapping[str, float], epoch: int | None) -> None:
        """Write the metrics of a step. May be called again for the same step and split with other names."""

    def event(self, step: int, name: str, facts: Mapping[str, Any]) -> None:
        """Record an event at a step, such as a resume."""

    def media(self, step: int, previews: Mapping[str, Preview]) -> None:
        """Write audio and images."""

    def artifact(self, path: Path) -> None:
        """Handle a saved checkpoint."""

    def tick(self, step: int) -> None:
        """Called after every optimizer step with the number of steps done. Must be fast."""

    def sync(self) -> None:
        """Called at each checkpoint: what was written up to there must be on the disk, where it is read at a resume."""

    def close(self) -> None:
        """Flush pending data and close files."""


class MetricStream:
    """Sends metrics to every sink. Without sinks (ranks other than the first) it does nothing.

    Args:
        sinks: Where metrics go.
        only: Names or wildcards (`logging.log_metrics`); only matching metrics are sent, except to sinks that keep all.
            "loss" also matches "val_loss". None: all metrics.
        system: System monitor, read with the training metrics of a step.
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
        """Splits without a selected metric."""
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
                    "training.logging.log_metrics: %s matches none of the %s metrics, so none is shown; available: %s",
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
        """Send an event with its fields (JSON values), e.g. `event(20, "resumed", checkpoint="...")`."""
        for sink in self.sinks:
            sink.event(step, name, facts)

    def media(self, step: int, previews: Mapping[str, Preview]) -> None:
        """Send audio and images."""
        for sink in self.sinks:
            sink.media(step, previews)

    def artifact(self, path: Path) -> None:
        """Pass a saved checkpoint to the sinks that upload it."""
        for sink in self.sinks:
            sink.artifact(path)

    def tick(self, step: int) -> None:
        """Called after every optimizer step: updates the progress bar, in about a microsecond."""
        for tick in self._ticking:
            tick(step)

    def sync(self) -> None:
        """Have every sink that is read at a resume on the disk."""
        for sink in self.sinks:
            sink.sync()

    def close(self) -> None:
        """Close every sink. Warns about names in `log_metrics` that matched no metric."""
        for sink in self.sinks:
            sink.close()
        for wanted in self._only or ():
            names = self._wanted
            if names and not any(
                fnmatchcase(name, wanted) or fnmatchcase(name.removeprefix("val_"), wanted) for name in names
            ):
                log.warning(
                    "training.logging.log_metrics: no metric matched %s; available: %s",
                    wanted,
                    ", ".join(sorted(names)),
                )
        self.sinks = []
        self._ticking = []


def tag(names: Mapping[str, str], split: str, name: str) -> str:
    """The name of a metric in a sink: its entry in `names` under "split/name" or "name", else "split/name"."""
    full = name if "/" in name else f"{split}/{name}"
    return names.get(full) or names.get(name) or full
