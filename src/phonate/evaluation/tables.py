"""Result tables: one row per system, one column per metric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from phonate.audio.decoding import FloatArray

Better = Literal["lower", "higher", ""]
ARROWS = {"lower": "↓", "higher": "↑", "": ""}


@dataclass(frozen=True)
class Column:
    """Display format of a metric."""

    label: str
    unit: str = ""
    """With the unit %, a share (0..1) is shown in percent."""
    better: Better = ""
    """The better direction, if any."""

    @property
    def heading(self) -> str:
        """Label, unit and better direction, such as `WER % ↓`."""
        return " ".join(part for part in (self.label, self.unit, ARROWS[self.better]) if part)

    def cell(self, value: float | None) -> str:
        """Format a value without its unit; a missing value is a dash."""
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
"""Metrics shared by several tasks."""


def column(metric: str, own: Mapping[str, Column] | None = None) -> Column:
    """Display format of `metric`: from `own`, from `COLUMNS`, or its name."""
    return (own or {}).get(metric) or COLUMNS.get(metric) or Column(metric.replace("_", " "))


@dataclass(frozen=True)
class Evaluation:
    """What `phonate evaluate` writes to RUN/evaluation.json."""

    task: str
    systems: dict[str, dict[str, float]]
    """System -> metric -> value."""
    focus: str
    """The evaluated system; the others are for comparison."""
    legend: str = ""
    """Meaning of the metrics, in a sentence or two."""
    notes: dict[str, Any] = field(default_factory=dict)
    """Details of the evaluation: data and scorers."""
    items: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Item -> scores of the evaluated system."""
    sounds: dict[str, dict[str, FloatArray]] = field(default_factory=dict)
    """Item -> system -> waveform (samples,): a few examples for the report."""
    sample_rate: int = 0
    """Sample rate of the sounds in Hz."""
    columns: dict[str, Column] = field(default_factory=dict)
    """Metric -> display format, if it differs from `COLUMNS`."""

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
        """Column headings with units and better direction, for those of `metrics` that were measured."""
        return ["system", *(column(metric, self.columns).heading for metric in self._shown(metrics))]

    def rows(self, metrics: Sequence[str] | None = None) -> list[list[str]]:
        """Cells of the table; a missing metric is a dash."""
        shown = {metric: column(metric, self.columns) for metric in self._shown(metrics)}
        return [
            [name, *(one.cell(values.get(metric)) for metric, one in shown.items())]
            for name, values in self.systems.items()
        ]

    def _shown(self, metrics: Sequence[str] | None) -> list[str]:
        return [metric for metric in self.metrics if metrics is None or metric in metrics]

    @property
    def metrics(self) -> list[str]:
        """Names of all metrics, in the order of the systems."""
        seen: dict[str, None] = {}
        for values in self.systems.values():
            seen.update(dict.fromkeys(values))
        return list(seen)
