"""What a metric is: its name, unit, and whether lower or higher is better. Imports no torch.

A task declares its metrics; the selection of checkpoints, schedules, callbacks, searches, tables and reports ask here.
Every metric is a sum over a count, both added up over the whole validation set, or is derived from such.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

LOSS = "loss"
"""The weighted sum of all loss terms."""
NEWEST = "step"
"""As the metric that selects the best checkpoint: the newest is the best."""
Better = Literal["lower", "higher", ""]
DIRECTIONS = "↑ higher is better, ↓ lower is better"
ARROWS = {"lower": "↓", "higher": "↑", "": ""}
_LEAST = 0.001
"""What is nearer to zero is not worth its digits."""
_SPLITS = ("val_", "train_")
_BUILT_IN: Mapping[str, Better] = {LOSS: "lower", NEWEST: "higher"}
_OPPOSED = ("adversarial", "discriminator")
"""The terms of a game of two networks: one's gain is the other's loss, and neither direction is better."""


@dataclass(frozen=True)
class Metric:
    """A metric. Unless it says otherwise it is a loss: better when lower, without a unit."""

    name: str
    better: Better = "lower"
    """The better direction; empty where there is none."""
    unit: str = ""
    """With the unit %, a share (0..1) is shown in percent."""
    label: str = ""
    """How tables call it. Empty: by its name."""

    @property
    def is_term(self) -> bool:
        """Whether it is a term of the loss, of which no more than the name is declared."""
        return (self,) == losses([self.name])

    @property
    def title(self) -> str:
        """The label, or else the name in words."""
        return self.label or self.name.replace("_", " ")

    @property
    def heading(self) -> str:
        """Title, unit and better direction, such as `WER % ↓`."""
        return " ".join(part for part in (self.title, self.unit, ARROWS[self.better]) if part)

    @property
    def unit_in_words(self) -> str:
        """The unit as it stands behind a value in a sentence, where a scale such as 1–5 would say nothing."""
        return "" if "–" in self.unit else self.unit

    def document(self) -> dict[str, str]:
        """How it is shown, as JSON."""
        return {"label": self.title, "unit": self.unit, "better": self.better}

    def cell(self, value: float | None) -> str:
        """Format a value without its unit; a missing value is a dash."""
        if value is None:
            return "–"
        if self.unit == "%":
            return f"{100 * value:.1f}"
        if 0.0 < abs(value) < _LEAST:
            return f"< {_LEAST}" if value > 0.0 else f"> -{_LEAST}"
        return f"{value:.0f}" if abs(value) >= 100 else f"{value:.2f}" if abs(value) >= 10 else f"{value:.3g}"

    def told(self, value: float, digits: int = 4) -> str:
        """A value with its unit, as log lines and sentences have it: 0.3121, or 39.33 %."""
        return f"{100 * value if self.unit == '%' else value:.{digits}g} {self.unit_in_words}".rstrip()


def told(name: str, value: float, declared: Iterable[Metric], digits: int = 4) -> str:
    """The value of a metric `name`, with or without its split, as `Metric.told`."""
    return by_name(*declared).get(plain(name), Metric(name)).told(value, digits)


RANKED = 6
"""Digits where values are ranked, which may differ little."""


def by_name(*metrics: Metric) -> dict[str, Metric]:
    """`metrics` by their names."""
    return {one.name: one for one in metrics}


def losses(names: Iterable[str]) -> tuple[Metric, ...]:
    """The metrics of loss terms."""
    return tuple(Metric(name, "" if name in _OPPOSED else "lower") for name in names)


def with_losses(names: Iterable[str], declared: Iterable[Metric]) -> dict[str, Metric]:
    """`declared` by name; others of `names`, without `val_` and `train_`, are loss terms."""
    return {**by_name(*losses(map(plain, names))), **by_name(*declared)}


def plain(name: str) -> str:
    """The name of a metric without its split: `loss` of `val_loss` and of `train_loss`."""
    for split in _SPLITS:
        if name.startswith(split):
            return name.removeprefix(split)
    return name


def better_of(name: str, declared: Mapping[str, Metric]) -> Better | None:
    """The better direction of the metric `name`, with or without `val_` or `train_`. None: nobody declares it."""
    own = plain(name)
    if own in declared:
        return declared[own].better
    return _BUILT_IN.get(own)
