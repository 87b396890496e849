"""Results as rows of a table: systems down, metrics across."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from phonate.audio.decoding import FloatArray

Better = Literal["lower", "higher", ""]
ARROWS = {"lower": "↓", "higher": "↑", "": ""}


@dataclass(frozen=True)
class Column:
    """How a metric is shown."""

    label: str
    unit: str = ""
    """A share (0..1) with the unit % is shown as per cent."""
    better: Better = ""
    """Which way is better, where one is."""

    @property
    def heading(self) -> str:
        """Label, unit and the direction that is better, such as `WER % ↓`."""
        return " ".join(part for part in (self.label, self.unit, ARROWS[self.better]) if part)

    def cell(self, value: float | None) -> str:
        """A value without its unit; a missing one is a dash."""
        if value is None:
            return "–"
        if self.unit == "%":
            return f"{100 * value:.1f}"
        return f"{value:.0f}" if abs(value) >= 100 else f"{value:.2f}" if abs(value) >= 10 else f"{value:.3g}"


COLUMNS = {
    "wer": Column("WER", "%", "lower"),
    "cer": Column("CER", "%", "lower"),
    "skipped": Column("skipped", "words", "lower"),
    "repeated": Column("repeated", "words", "lower"),
    "mos": Column("MOS", "1–5", "higher"),
    "speaker": Column("speaker similarity", "", "higher"),
    "mcd": Column("MCD", "dB", "lower"),
    "f0": Column("F0 error", "cents", "lower"),
    "voicing": Column("voicing error", "%", "lower"),
    "seconds": Column("length", "× natural"),
    "rtf": Column("RTF", "", "lower"),
    "pair": Column("similarity to target", "", "higher"),
    "own": Column("similarity to source", "", "lower"),
    "closer": Column("closer to target", "%", "higher"),
    "first": Column("target ranks first", "%", "higher"),
    "perplexity": Column("perplexity", "per token", "lower"),
    "character_perplexity": Column("perplexity", "per character", "lower"),
    "bits_per_character": Column("bits", "per character", "lower"),
}
"""Metrics that several tasks have."""


def column(metric: str, own: Mapping[str, Column] | None = None) -> Column:
    """How `metric` is shown: as in `own`, as in `COLUMNS`, or under its name."""
    return (own or {}).get(metric) or COLUMNS.get(metric) or Column(metric.replace("_", " "))


@dataclass(frozen=True)
class Evaluation:
    """What `phonate evaluate` writes to RUN/evaluation.json."""

    task: str
    systems: dict[str, dict[str, float]]
    """System -> metric -> value."""
    focus: str
    """The system that is evaluated; the others stand beside it."""
    legend: str = ""
    """What the metrics mean, in a sentence or two."""
    notes: dict[str, Any] = field(default_factory=dict)
    """What was measured, on what, by which scorers."""
    items: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Item -> what each scorer gave the evaluated system."""
    sounds: dict[str, dict[str, FloatArray]] = field(default_factory=dict)
    """Item -> system -> waveform (samples,): a few to listen to, for the report."""
    sample_rate: int = 0
    """Of the sounds, in Hz."""
    columns: dict[str, Column] = field(default_factory=dict)
    """Metric -> how it is shown, where that differs from `COLUMNS`."""

    def document(self) -> dict[str, Any]:
        """The figures as JSON."""
        return {
            "task": self.task,
            "systems": self.systems,
            "focus": self.focus,
            "legend": self.legend,
            "notes": self.notes,
            "items": self.items,
            "columns": {metric: asdict(column(metric, self.columns)) for metric in self.metrics},
        }

    def header(self, metrics: Sequence[str] | None = None) -> list[str]:
        """Headings of the columns, with units and which way is better; of those of `metrics` that were measured."""
        return ["system", *(column(metric, self.columns).heading for metric in self._shown(metrics))]

    def rows(self, metrics: Sequence[str] | None = None) -> list[list[str]]:
        """The table's cells; a metric that a system does not have is a dash."""
        shown = {metric: column(metric, self.columns) for metric in self._shown(metrics)}
        return [
            [name, *(one.cell(values.get(metric)) for metric, one in shown.items())]
            for name, values in self.systems.items()
        ]

    def _shown(self, metrics: Sequence[str] | None) -> list[str]:
        return [metric for metric in self.metrics if metrics is None or metric in metrics]

    @property
    def metrics(self) -> list[str]:
        """Names of all metrics, in the order in which the systems have them."""
        seen: dict[str, None] = {}
        for values in self.systems.values():
            seen.update(dict.fromkeys(values))
        return list(seen)
