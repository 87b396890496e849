"""Result tables: one row per system, one column per metric."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from phonate.config.errors import PhonateError
from phonate.config.metrics import DIRECTIONS, Metric, by_name

if TYPE_CHECKING:
    from phonate.audio.decoding import FloatArray

logger = logging.getLogger("phonate")

SHARED = by_name(
    Metric("wer", "lower", "%", "WER"),
    Metric("cer", "lower", "%", "CER"),
    Metric("cpwer", "lower", "%", "cpWER"),
    Metric("tcpwer", "lower", "%", "tcpWER"),
    Metric("skipped", "lower", "words", "skipped"),
    Metric("repeated", "lower", "words", "repeated"),
    Metric("mos", "higher", "1–5", "MOS"),
    Metric("speaker", "higher", "", "speaker similarity"),
    Metric("mcd", "lower", "dB", "MCD"),
    Metric("f0", "lower", "cents", "F0 error"),
    Metric("voicing", "lower", "%", "voicing error"),
    Metric("seconds", "", "× natural", "length"),
    Metric("rtf", "", "", "RTF"),
    Metric("pair", "higher", "", "similarity to target"),
    Metric("own", "lower", "", "similarity to source"),
    Metric("closer", "higher", "%", "closer to target"),
    Metric("first", "higher", "%", "target ranks first"),
    Metric("perplexity", "lower", "per token", "perplexity"),
    Metric("character_perplexity", "lower", "per character", "perplexity"),
    Metric("bits_per_character", "lower", "per character", "bits"),
)
"""Metrics shared by several tasks."""

RTF = "seconds of computation per second of audio, timed once, on this machine under its load at the time"


def described(name: str, own: Mapping[str, Metric] | None = None) -> Metric:
    """The metric `name`: from `own`, from `SHARED`, or its name alone."""
    return (own or {}).get(name) or SHARED.get(name) or Metric(name, "")


def legend(
    meanings: Mapping[str, str], systems: Mapping[str, Mapping[str, Any]], own: Mapping[str, Metric] | None = None
) -> str:
    """What those metrics mean that a system was measured by, called as the table calls them, and what a copy is.

    Args:
        meanings: Name of a metric, or of several with a common meaning, separated by commas -> what it means.
        systems: System -> metric -> value.
        own: The task's metrics.
    """
    measured = {name for values in systems.values() for name, value in values.items() if value is not None}
    copies = sorted((name for name in systems if name.endswith(" copy")), key=len)[:1]
    explained = [f"{name}: the recording, computed anew from its spectrogram" for name in copies]
    for names, meaning in meanings.items():
        if titles := [described(name, own).title for name in names.split(", ") if name in measured]:
            explained.append(f"{', '.join(titles)}: {meaning}")
    return f"{'; '.join(explained)}." if explained else ""


BeforeT = TypeVar("BeforeT")


def before_training(init_from: str | None, load: Callable[[str], BeforeT]) -> dict[str, BeforeT]:
    """The model that training began from, such as the packaged one, by the name that tables give it; none where it is
    gone."""
    if init_from is None:
        return {}
    try:
        return {f"{init_from}, where training began": load(init_from)}
    except PhonateError as error:
        logger.warning("what training began from is not compared: %s", error)
        return {}


FEW = 10
"""Items of an evaluation; of fewer, a difference says little."""
TUNED_ON = "tuned_on"
"""The note of what the values were chosen on that inference decides with."""
STEP = "step"
"""The note of the checkpoint that was evaluated."""
THESE = "these recordings"
"""Its value for those that the evaluation is on."""


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
    columns: Mapping[str, Metric] = field(default_factory=dict)
    """Metrics by name that are not `SHARED`, or differ."""
    compared: tuple[str, ...] = ()
    """The systems that say most beside the evaluated one; empty for all."""
    start: str = ""
    """The system that training began from; empty where it is none of them."""

    @property
    def caveats(self) -> list[str]:
        """What makes the figures say less than they seem to."""
        caveats = []
        if self.notes.get(TUNED_ON) == THESE:
            caveats.append("what inference decides with was chosen on these recordings: the figures are not a test")
        for name in ("recordings", "clips", "texts", "pairs"):
            count = self.notes.get(name)
            if isinstance(count, int) and 0 < count < FEW:
                few = f"a single {name.removesuffix('s')} says" if count == 1 else f"so few {name} say"
                caveats.append(f"{few} little: give {FEW} or more that the model was not trained on, by --data")
        return caveats

    def document(self) -> dict[str, Any]:
        """The figures as JSON."""
        return {
            "task": self.task,
            "systems": {name: _measured(values) for name, values in self.systems.items()},
            "focus": self.focus,
            "legend": self.legend,
            "notes": self.notes,
            "caveats": self.caveats,
            "items": {name: _measured(scores) for name, scores in self.items.items()},
            "columns": {name: described(name, self.columns).document() for name in self.metrics},
            "compared": [*self.compared],
            "start": self.start,
        }

    def header(self, metrics: Sequence[str] | None = None) -> list[str]:
        """Column headings with units and better direction, for those of `metrics` that were measured."""
        return ["system", *(described(metric, self.columns).heading for metric in self._columns(metrics))]

    def directions(self, metrics: Sequence[str] | None = None) -> str:
        """What the arrows in `header` mean; "" where it has none."""
        return DIRECTIONS if any(described(one, self.columns).better for one in self._columns(metrics)) else ""

    def rows(self, metrics: Sequence[str] | None = None) -> list[list[str]]:
        """Cells of the table; a missing metric is a dash."""
        shown = {metric: described(metric, self.columns) for metric in self._columns(metrics)}
        return [
            [name, *(one.cell(_measured(values).get(metric)) for metric, one in shown.items())]
            for name, values in self.systems.items()
        ]

    def _columns(self, metrics: Sequence[str] | None) -> list[str]:
        return [metric for metric in self.metrics if metrics is None or metric in metrics]

    @property
    def metrics(self) -> list[str]:
        """Names of all metrics, in the order of the systems."""
        names: dict[str, None] = {}
        for values in self.systems.values():
            names.update(dict.fromkeys(values))
        return list(names)


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def in_words(value: object) -> str:
    """A value for people: `threshold 0.5, smoothing (width 3)`; what is null in a mapping is left out."""
    if not isinstance(value, Mapping):
        return str(value)
    known = {name.replace("_", " "): one for name, one in value.items() if one is not None}
    return ", ".join(
        f"{name} ({in_words(one)})" if isinstance(one, Mapping) else f"{name} {one}" for name, one in known.items()
    )


def _measured(scores: Mapping[str, Any]) -> dict[str, Any]:
    """Without those that are not finite, such as the F0 error where no frame is voiced."""
    return {name: one for name, one in scores.items() if not isinstance(one, float) or math.isfinite(one)}
