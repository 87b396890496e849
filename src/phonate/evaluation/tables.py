"""Results as rows of a table: systems down, metrics across."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from phonate.audio.decoding import FloatArray


@dataclass(frozen=True)
class Evaluation:
    """What `phonate evaluate` writes to RUN/evaluation.json."""

    task: str
    systems: dict[str, dict[str, float]]
    """System -> metric -> value."""
    focus: str
    """The system that is judged; the others stand beside it."""
    legend: str = ""
    """What the metrics mean, in a sentence or two."""
    notes: dict[str, Any] = field(default_factory=dict)
    """What was judged, on what, by which judges."""
    items: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Item -> what each judge said of the evaluated system."""
    sounds: dict[str, dict[str, FloatArray]] = field(default_factory=dict)
    """Item -> system -> waveform (samples,): a few to listen to, for the report."""
    sample_rate: int = 0
    """Of the sounds, in Hz."""

    def document(self) -> dict[str, Any]:
        """The figures as JSON."""
        return {
            "task": self.task,
            "systems": self.systems,
            "focus": self.focus,
            "legend": self.legend,
            "notes": self.notes,
            "items": self.items,
        }

    def header(self) -> list[str]:
        """Names of the columns."""
        return ["system", *self.metrics]

    def rows(self) -> list[list[str]]:
        """The table's cells; a metric that a system does not have is a dash."""
        metrics = self.metrics
        return [
            [name, *(f"{values[metric]:.3f}" if metric in values else "-" for metric in metrics)]
            for name, values in self.systems.items()
        ]

    @property
    def metrics(self) -> list[str]:
        """Names of all metrics, in the order in which the systems have them."""
        seen: dict[str, None] = {}
        for values in self.systems.values():
            seen.update(dict.fromkeys(values))
        return list(seen)
