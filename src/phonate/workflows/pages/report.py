"""Report of a run as a single self-contained HTML page: data, training curves, audio and evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from phonate.config.documents import parse
from phonate.config.errors import DataError, InputError
from phonate.config.metrics import ARROWS, NEWEST, better_of, with_losses
from phonate.config.tasks import TASKS, referred, task_info
from phonate.training.checkpoints import files, listing
from phonate.training.checkpoints.metadata import CheckpointMetadata
from phonate.training.checkpoints.resolve import is_checkpoint, packaged
from phonate.training.run import Run
from phonate.training.tracking.jsonl import read_events, read_metrics
from phonate.workflows.pages import plots
from phonate.workflows.pages.exhibits import LISTENING, duration, evaluation, listening, number, previews, read_json
from phonate.workflows.pages.rendering import render

_MOST_PROBED = 20_000


@dataclass(frozen=True)
class _Story:
    """Data read from a run folder."""

    run: Run
    recipe: dict[str, Any]
    lines: list[dict[str, Any]]
    """Lines of metrics.jsonl."""
    checkpoints: list[listing.CheckpointInfo]
    """Intact checkpoints, oldest first."""
    system: dict[str, Any]
    resumes: list[int]
    """Steps at which training was resumed."""

    @classmethod
    def read(cls, run: Run) -> _Story:
        recipe = _read_yaml(run.recipe)
        folder = run.path / str(_at(recipe, "training", "checkpoint", "save_dir") or "checkpoints")
        return cls(
            run=run,
            recipe=recipe,
            lines=read_metrics(run.metrics),
            checkpoints=[info for info in listing.scan(folder) if info.metadata],
            system=read_json(run.path / "system.json"),
            resumes=sorted({int(event["step"]) for event in read_events(run.metrics, "resumed")}),
        )

    @property
    def newest(self) -> CheckpointMetadata | None:
        return self.checkpoints[-1].metadata if self.checkpoints else None

    @property
    def best(self) -> listing.Best | None:
        return listing.best_of(self.checkpoints)

    @property
    def step(self) -> int:
        steps = [int(line["step"]) for line in self.lines] + [info.step for info in self.checkpoints]
        return max(steps, default=0)

    @property
    def seconds(self) -> float:
        """Training time, computed from the speed in each line of metrics."""
        total, last = 0.0, 0
        for line in self.lines:
            rate = line.get("steps_per_second")
            if line["split"] == "train" and rate:
                total += (line["step"] - last) / rate
                last = line["step"]
        return total


def write_report(path: str | Path) -> Path:
    """Write `report.html` into the run at `path` and return its path.

    Raises InputError if there is no run, or if a file for the page can't be read.
    """
    run = Run(packaged(Path(path)))
    if is_checkpoint(run.path):
        raise InputError(f"{path}: a checkpoint, not a run, so there is no training to report on")
    if not run.recipe.is_file():
        raise InputError(f"{run.path}: not a run (it has no recipe.yaml); phonate train makes one")
    run.write("report.html", render("report.html.jinja", _page(_Story.read(run))))
    return run.path / "report.html"


def _page(story: _Story) -> dict[str, Any]:
    """Template variables."""
    run = story.run
    compared = listening(run.path / LISTENING, story.recipe)
    return {
        "name": run.name,
        "path": str(run.path),
        "kind": f"phonate report: {story.recipe.get('task', 'training')}",
        "summary": _summary(story),
        "figures": _figures(story),
        "facts": _facts(story),
        "charts": _charts(story),
        "resumes": story.resumes,
        "checkpoints": [_checkpoint(info, story.best) for info in reversed(story.checkpoints)],
        "texts": _texts(run),
        "tables": evaluation(run.path / "evaluation.json"),
        "listening": compared or previews(run.previews),
    }


def _read_yaml(path: Path) -> dict[str, Any]:
    return parse(path.read_text(encoding="utf-8", errors="replace"), str(path)).values


def _at(document: Mapping[str, Any], *keys: str) -> Any:
    """A value in nested mappings; None if missing."""
    value: Any = document
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


# ---------------------------------------------------------------- words and figures


def _summary(story: _Story) -> str:
    """Summary of the run in a sentence or two."""
    metadata = story.newest
    model = f"A {metadata.model_name} of {_count(metadata.num_parameters)} parameters" if metadata else "A model"
    data = _at(story.recipe, "data", "path")
    text = f"{model}, trained{f' on {data}' if data else ''} for {story.step:,} steps"
    text += f" in {duration(story.seconds)}." if story.seconds else "."
    if story.resumes:
        at = ", ".join(f"{one:,}" for one in story.resumes)
        text += f" Training was stopped and resumed at step {at}."
    return text


def _figures(story: _Story) -> list[dict[str, str]]:
    """The headline numbers."""
    cards = []
    if story.best is not None and story.best.metric != NEWEST:
        step = int(story.best.name.rpartition("-")[2])
        cards.append((f"{story.best.value:.4g}", f"best {story.best.metric}, at step {step:,}"))
    cards.append((f"{story.step:,}", "optimizer steps"))
    if story.seconds:
        rate = f"{story.step / story.seconds:.3g} steps a second"
        cards.append((duration(story.seconds), f"of training, {rate}"))
    if story.newest is not None:
        size = f"{story.newest.model_size_mb:.3g} MB"
        cards.append((_count(story.newest.num_parameters), f"parameters, {size}"))
    return [{"value": value, "label": label} for value, label in cards]


def _facts(story: _Story) -> list[dict[str, str]]:
    """Rows of the table of facts, without unknown ones."""
    found = {**_what(story), **_how(story), **_where(story)}
    return [{"label": label, "value": str(value)} for label, value in found.items() if value not in (None, "")]


def _what(story: _Story) -> dict[str, Any]:
    inference = read_json(story.checkpoints[-1].path / files.INFERENCE) if story.checkpoints else {}
    return {
        "Task": story.recipe.get("task"),
        "Corpus": _at(story.recipe, "data", "path"),
        "Recordings": _recordings(story.recipe.get("data")),
        **_task_facts(story.recipe.get("task"), inference),
        "Model": story.newest and f"{story.newest.model_name}, size {story.recipe.get('size', 'default')}",
    }


def _task_facts(task: Any, inference: Mapping[str, Any]) -> dict[str, str]:
    """Facts that the task reports about its model; empty if its plug-in is not loaded."""
    if not inference or task not in TASKS.names():
        return {}
    facts = task_info(task).facts
    return {} if facts is None else dict(referred(facts)(inference))


def _recordings(data: Any) -> str | None:
    """Number and total length of the recordings, or the names of several corpora; None if the corpus is not available
    or contains only texts."""
    if isinstance(data, Mapping) and data.get("datasets"):
        return ", ".join(str(one["name"]) for one in data["datasets"])
    if not isinstance(data, Mapping) or "audio" not in data or not Path(str(data.get("path"))).exists():
        return None
    from phonate.data.manifests.manifest import list_corpus
    from phonate.data.manifests.rows import Row
    from phonate.data.settings import VoiceData

    chosen = {name: data[name] for name in ("format", "drop", "limit", "cache_dir") if name in data}
    listed, _ = list_corpus(VoiceData(path=str(data["path"]), **chosen))
    paths = [one.path for one in listed if isinstance(one, Row)]
    if len(paths) > _MOST_PROBED:
        return f"{len(paths):,}"
    return f"{len(paths):,}, {duration(sum(map(_seconds, paths)))} in all"


def _seconds(path: Path) -> float:
    """Length of a recording; 0 if it can't be read (training also rejected it)."""
    from phonate.audio.decoding import probe

    try:
        return probe(path).duration
    except DataError:
        return 0.0


def _how(story: _Story) -> dict[str, Any]:
    training = story.recipe.get("training", {})
    optimizer, schedule = training.get("optimizer", {}), training.get("scheduler", {})
    warm_up = f", {schedule.get('warmup_steps')} steps of warm-up" if schedule.get("warmup_steps") else ""
    accumulated = training.get("gradient_accumulation_steps", 1)
    return {
        "Batch": f"{training.get('batch_size')}{f' x {accumulated} accumulated' if accumulated > 1 else ''}",
        "Optimizer": f"{optimizer.get('type')}, peak learning rate {optimizer.get('lr')}",
        "Schedule": f"{schedule.get('type')}{warm_up}",
        "Seed": training.get("random_seed"),
        "Resumed": ", ".join(f"at step {step:,}" for step in story.resumes) or "never",
    }


def _where(story: _Story) -> dict[str, Any]:
    system, metadata = story.system, story.newest
    if not system:
        return {}
    commit = metadata.git_commit if metadata else None
    changed = " with changes" if metadata and metadata.git_dirty else ""
    return {
        "Machine": ", ".join(system.get("gpus", [])) or f"{system['cpu_count']} processor cores, no GPU",
        "System": f"{system['platform']}, Python {system['python']}, torch {system['torch']}",
        "Code": commit and f"commit {commit[:12]}{changed}",
        "Command": " ".join(["phonate", *system["command"][1:]]),
    }


def _checkpoint(info: listing.CheckpointInfo, best: listing.Best | None) -> dict[str, Any]:
    metadata = info.metadata
    assert metadata is not None
    size = sum(file.stat().st_size for file in info.path.rglob("*") if file.is_file())
    return {
        "name": info.name,
        "best": best is not None and best.name == info.name,
        "saved": f"{metadata.timestamp:%Y-%m-%d %H:%M:%S} UTC",
        "epoch": metadata.epoch,
        "train_loss": number(metadata.train_loss),
        "val_loss": number(metadata.val_loss),
        "size": f"{size / 1e6:.1f} MB",
    }


def _texts(run: Run) -> list[dict[str, str]]:
    titles = {"recipe.yaml": "Recipe", "model_summary.txt": "Model"}
    return [
        {"title": title, "content": (run.path / name).read_text(encoding="utf-8")}
        for name, title in titles.items()
        if (run.path / name).is_file()
    ]


def _count(count: int) -> str:
    return f"{count / 1e6:.3g} M" if count >= 1e6 else f"{count / 1e3:.3g} k"


# ---------------------------------------------------------------- charts


def _charts(story: _Story) -> list[dict[str, Any]]:
    """Losses first, then validation metrics of the task, then learning rate, gradient norm and speed."""
    lines = story.lines
    groups: dict[str, list[plots.Series]] = {"Loss": []}
    for split in ("train", "validation"):
        name = "training" if split == "train" else "validation"
        groups["Loss"] += _series(lines, split, "loss", name, dots=split == "validation")
    for metric in _names(lines, "validation"):
        if metric not in {"loss", "step", "epoch"} and not _is_term(metric, lines):
            groups[_titled(metric, story)] = _series(lines, "validation", metric, "validation", dots=True)
    for metric in _names(lines, "train"):
        title = next((t for start, t in _TRAINING_CHARTS.items() if metric.startswith(start)), None)
        if title:
            groups.setdefault(title, []).extend(_series(lines, "train", metric, metric.replace("_", " ")))
    marks = [(step, "resumed") for step in story.resumes]
    charts = [
        {
            "title": title,
            "names": [one.name for one in series],
            "svg": Markup(plots.line_chart(series, title, marks, log=title == "Loss")),  # texts are escaped there
        }
        for title, series in groups.items()
    ]
    return [chart for chart in charts if chart["svg"]]


_TRAINING_CHARTS = {
    "learning_rate": "Learning rate",
    "grad_norm": "Gradient norm before clipping",
    "steps_per_second": "Speed, steps a second",
}


def _titled(metric: str, story: _Story) -> str:
    """The metric in words, with an arrow in its better direction where the task declares it."""
    task = story.recipe.get("task")
    declared = task_info(task).metrics if task in TASKS.names() else None
    better = better_of(metric, {} if declared is None else with_losses([metric], declared)) or ""
    return " ".join(filter(None, (metric.replace("_", " ").capitalize(), ARROWS[better])))


def _names(lines: Sequence[Mapping[str, Any]], split: str) -> list[str]:
    return list(dict.fromkeys(name for line in lines if line["split"] == split for name in line if name != "split"))


def _is_term(metric: str, lines: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a validation metric only repeats the loss (its only term)."""
    own = [line for line in lines if line["split"] == "validation" and metric in line]
    return all(line[metric] == line.get("loss") for line in own)


def _series(
    lines: Sequence[Mapping[str, Any]], split: str, metric: str, name: str, dots: bool = False
) -> list[plots.Series]:
    points = [
        (line["step"], line[metric])
        for line in lines
        if line["split"] == split and isinstance(line.get(metric), int | float)
    ]
    return [plots.Series(name, [x for x, _ in points], [y for _, y in points], dots)] if points else []
