"""What training measured, as curves, as a table of what it measured once, and as a sentence where there is neither."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from phonate.config.documents import value_at
from phonate.config.metrics import ARROWS, LOSS, Metric, with_losses
from phonate.config.words import number_of
from phonate.workflows.pages import plots

Lines = Sequence[Mapping[str, Any]]
"""Of metrics.jsonl."""

_TRAINING = {
    "learning_rate": "Learning rate",
    "grad_norm": "Gradient norm before clipping",
    "steps_per_second": "Speed, steps a second",
}
"""How the name of a metric of training begins -> the title of its chart."""


@dataclass(frozen=True)
class Curves:
    """The charts of a run, and what stands for those that it has not."""

    charts: list[dict[str, Any]]
    """Losses and what the task measures."""
    details: list[dict[str, Any]]
    """The terms of the loss, learning rate, gradient norm and speed."""
    once: list[dict[str, str]]
    """Rows of what validation measured only once."""
    at: int
    """The step of that validation."""
    missing: list[str]
    """Why there is nothing, and what to do."""


def curves(
    lines: Lines,
    recipe: Mapping[str, Any],
    step: int,
    resumes: Sequence[int],
    declared: Sequence[Metric] | None,
    ended: bool,
) -> Curves:
    """Losses first, then validation metrics of the task; as details the loss's terms, and how training went.

    `step`: the run's last one; `resumes`: the steps at which it was resumed; `declared`: the task's metrics;
    `ended`: whether training has.
    """
    metrics = {} if declared is None else with_losses(_names(lines, "validation"), declared)
    groups: dict[str, list[plots.Series]] = {}
    details: dict[str, list[plots.Series]] = {}
    training = _series(lines, "train", LOSS, "training") or _series(lines, "epoch", LOSS, "training")
    validation = _series(lines, "validation", LOSS, "validation", dots=True)
    if _same_terms(lines, metrics):
        groups["Loss"] = training + validation
    else:  # one below or above the other would say nothing
        groups |= {"Loss in training": training, "Loss in validation, which has other terms": validation}
    once = [] if any(len(one.xs) > 1 for one in training + validation) else [Metric(LOSS)]
    for name in _names(lines, "validation"):
        if name in {LOSS, "step", "epoch"} or _is_term(name, lines):
            continue
        metric = metrics.get(name) or Metric(name, "")
        series = _series(lines, "validation", name, "validation", dots=True, scale=100 if metric.unit == "%" else 1)
        if len(series[0].xs) > 1:
            (details if metric.is_term else groups)[_titled(metric)] = series
        else:
            once.append(metric)
    for name in _names(lines, "train"):
        title = next((title for start, title in _TRAINING.items() if name.startswith(start)), None)
        if title:
            part = name.partition("/")[2] or name
            details.setdefault(title, []).extend(_series(lines, "train", name, part.replace("_", " ")))
    marks = [(one, "resumed") for one in resumes]
    charts, more = (
        [_chart(title, series, marks) for title, series in some.items() if any(len(one.xs) > 1 for one in series)]
        for some in (groups, details)
    )
    validated = [line for line in lines if line["split"] == "validation"]
    rows = [_row(metric, validated[-1]) for metric in once if validated and metric.name in validated[-1]]
    at = int(validated[-1]["step"]) if validated else 0
    return Curves(charts, more, rows, at, _missing(lines, recipe, step, ended))


def _same_terms(lines: Lines, metrics: Mapping[str, Metric]) -> bool:
    """Whether the losses of training and of validation are sums of the same terms, as far as is declared."""
    terms = {name for name, metric in metrics.items() if metric.is_term}
    validated = terms & {*_names(lines, "validation")}
    return validated == terms & {*_names(lines, "train"), *_names(lines, "epoch")} or not validated


def _missing(lines: Lines, recipe: Mapping[str, Any], step: int, ended: bool) -> list[str]:
    """Why there are no curves, or fewer than usual, and what to do."""
    found = []
    splits = {line["split"] for line in lines}
    interval = value_at(recipe, ("training", "logging", "interval"))
    if "train" not in splits and step:
        found.append(
            f"Learning rate, gradient norm and speed are logged every {interval} steps (training.logging.interval); "
            f"this run has {step:,}."
        )
    if "validation" not in splits:
        found.append(not_validated(recipe, ended))
    return found


def not_validated(recipe: Mapping[str, Any], ended: bool) -> str:
    """Why no validation has taken place in a training that has `ended` or not, and what to do."""
    if not ended:
        interval = value_at(recipe, ("training", "validation", "interval"))
        every = (
            number_of(interval, "step")
            if isinstance(interval, int)
            else "epoch"
            if interval == "1 epochs"
            else interval
        )
        return f"Nothing was validated yet: that comes every {every} (training.validation.interval), and at the end."
    return (
        "Nothing was validated, as nothing was kept for it: set data.validation, such as 0.1, and give so much that "
        "this is a recording or more."
    )


def _chart(title: str, series: Sequence[plots.Series], marks: Sequence[tuple[float, str]]) -> dict[str, Any]:
    svg = plots.line_chart(series, title, marks, log=title.startswith("Loss"))
    return {"title": title, "names": [one.name for one in series], "svg": Markup(svg)}  # texts are escaped there


def _titled(metric: Metric) -> str:
    """The metric in words, with its unit and an arrow in its better direction."""
    title = f"{metric.title[:1].upper()}{metric.title[1:]}"
    unit = f", {metric.unit}" if metric.unit else ""
    return f"{title}{unit} {ARROWS[metric.better]}".strip()


def _row(metric: Metric, line: Mapping[str, Any]) -> dict[str, str]:
    return {"label": _titled(metric), "value": metric.cell(line[metric.name])}


def _names(lines: Lines, split: str) -> list[str]:
    return list(dict.fromkeys(name for line in lines if line["split"] == split for name in line if name != "split"))


def _is_term(metric: str, lines: Lines) -> bool:
    """Whether a validation metric only repeats the loss (its only term)."""
    own = [line for line in lines if line["split"] == "validation" and metric in line]
    return all(line[metric] == line.get(LOSS) for line in own)


def _series(
    lines: Lines, split: str, metric: str, name: str, dots: bool = False, scale: float = 1.0
) -> list[plots.Series]:
    points = [
        (line["step"], scale * line[metric])
        for line in lines
        if line["split"] == split and isinstance(line.get(metric), int | float)
    ]
    return [plots.Series(name, [x for x, _ in points], [y for _, y in points], dots)] if points else []
