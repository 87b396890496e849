"""Report of a run as a single self-contained HTML page: data, training curves, audio and evaluation.

They are plain data files in the run folder: `samples/samples.json` (`Listening`), `evaluation.json`
(`Figures`), and `previews/` for other audio and images of the task.
"""

from __future__ import annotations

import json
import logging
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ConfigDict, Field, ValidationError, field_validator

from phonate.audio.mel_filters import band_edges
from phonate.compute.remote import on_disk
from phonate.config.documents import parse, value_at
from phonate.config.errors import DataError, InputError, json_mistake
from phonate.config.metrics import ARROWS, LOSS, NEWEST, Metric, by_name, plain
from phonate.config.settings import Settings
from phonate.config.tasks import TASKS, TaskInfo, referred, task_info
from phonate.config.words import duration, number_of
from phonate.evaluation.tables import FEW, STEP, described
from phonate.training import ledger
from phonate.training.checkpoints import files, listing
from phonate.training.checkpoints.listing import is_checkpoint, located, no_run
from phonate.training.checkpoints.metadata import CheckpointMetadata
from phonate.training.ledger import told
from phonate.training.run import SUMMARY, Run, parameter_counts
from phonate.training.tracking import missing_metrics, read_events, read_metrics
from phonate.workflows.pages import plots
from phonate.workflows.pages.curves import curves, not_validated
from phonate.workflows.pages.plots import render

logger = logging.getLogger(__name__)

# ------- Contents of a report besides the training files: sounds to compare, images, tables of figures

LISTENING = "samples/samples.json"
"""Path in the run folder of the list of sounds."""
_SOUNDS = {".wav", ".flac", ".mp3", ".ogg"}


class Clip(Settings):
    """A sound of an example."""

    label: str
    """Label, such as "converted"."""
    path: str
    """Its file, relative to `samples.json`."""
    note: str = ""
    """Text under the label."""


class Example(Settings):
    """A group of sounds, such as a source, its conversion and the target's own voice."""

    title: str = ""
    """Description."""
    clips: tuple[Clip, ...]
    """Sounds in display order."""


class Listening(Settings):
    """Contents of `samples.json`."""

    note: str = ""
    """Description of the sounds."""
    examples: tuple[Example, ...]
    """Examples in display order."""


class Figures(Settings):
    """The part of `evaluation.json` shown in the report: the model, baselines and upper bounds."""

    model_config = ConfigDict(extra="ignore")

    systems: dict[str, dict[str, float | None]]
    """System -> metric -> value; a missing one is shown as a dash."""
    focus: str = ""
    """The system that is evaluated."""
    legend: str = ""
    """Meaning of the metrics."""
    notes: dict[str, Any] = Field(default_factory=dict)
    """What it was measured on."""
    caveats: list[str] = Field(default_factory=list)
    """What makes the figures say less than they seem to."""
    columns: dict[str, Metric] = Field(default_factory=dict)
    """Metric -> how it is shown. Others are shown by their names."""
    compared: list[str] = Field(default_factory=list)
    """The systems that say most beside the evaluated one; empty for all."""
    start: str = ""
    """The system that training began from."""

    @field_validator("columns", mode="before")
    @classmethod
    def _named(cls, columns: Any) -> Any:
        return {name: {"name": name, **one} for name, one in columns.items()}


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file; {} if there is no file. Raises InputError if it is damaged."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON ({json_mistake(error)}); delete it or write it again") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: not a JSON object; delete it or write it again")
    return content


def number(value: float | None) -> str:
    """Format a number for a table cell."""
    return "–" if value is None else f"{value:.4g}"


def evaluation(path: Path) -> list[dict[str, Any]]:
    """The table of `evaluation.json`; empty if there is none. Raises InputError if it is not valid `Figures`."""
    content = read_json(path)
    if not content:
        return []
    figures = _validated(Figures, content, path)
    metrics = list(dict.fromkeys(metric for values in figures.systems.values() for metric in values))
    shown = [described(metric, figures.columns) for metric in metrics]
    rows = [
        {
            "name": name,
            "focus": name == figures.focus,
            "cells": [one.cell(values.get(metric)) for metric, one in zip(metrics, shown, strict=True)],
        }
        for name, values in figures.systems.items()
    ]
    headings = [{**one.document(), "arrow": ARROWS[one.better], "heading": one.heading} for one in shown]
    note = " ".join([figures.legend, *(f"{one[0].upper()}{one[1:]}." for one in figures.caveats)]).strip()
    return [{"title": "Evaluation", "note": note, "columns": headings, "rows": rows}]


def listening(path: Path, recipe: Mapping[str, Any]) -> dict[str, Any]:
    """The sounds of `samples.json` with their spectrograms; {} if there is no such file."""
    content = read_json(path)
    if not content:
        return {}
    page_content = _validated(Listening, content, path)
    pictures = _Pictures(recipe)
    examples = [
        {
            "title": example.title,
            "clips": [
                {
                    "label": clip.label,
                    "note": clip.note,
                    "sound": _sound(path.parent / clip.path),
                    **pictures.of(path.parent / clip.path),
                }
                for clip in example.clips
            ],
        }
        for example in page_content.examples
    ]
    return {"note": page_content.note, "examples": examples}


ContentT = TypeVar("ContentT", bound=Settings)


def _validated(kind: type[ContentT], content: Any, path: Path) -> ContentT:
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise InputError(f"{path}: {where}: {first['msg']}") from error


def _sound(path: Path) -> str:
    """A recording as a data URL, at its own sample rate."""
    from phonate.audio.decoding import read_audio

    return plots.sound_url(*read_audio(path))


class _Pictures:
    def __init__(self, recipe: Mapping[str, Any]) -> None:
        from phonate.audio.processor import AudioProcessor
        from phonate.audio.settings import AudioConfig

        audio = recipe.get("data", {}).get("audio")
        mels = isinstance(audio, Mapping) and audio.keys() <= AudioConfig.model_fields.keys()  # not Kaldi's features
        self.processor = AudioProcessor(AudioConfig(**audio) if mels else None)

    def of(self, path: Path) -> dict[str, Any]:
        """The spectrogram of a recording, and where its axes have which labels."""
        audio, waveform = self.processor.config, self.processor.load(path)
        picture = plots.data_url(plots.spectrogram_png(self.processor.mel(waveform).T), "image/png")
        edges = band_edges(audio.n_mels, audio.fmin, audio.fmax)
        return {"picture": picture, **plots.spectrogram_axes(len(waveform) / audio.sample_rate, edges)}


def previews(folder: Path, recipe: Mapping[str, Any], captions: Mapping[str, str]) -> dict[str, Any]:
    """The sounds and pictures in a run's folder of previews, in the order of `captions`, then by name; {} if there are
    none. A sound has a spectrogram drawn of it, instead of a picture of its name or its name with `_mel`."""
    paths = sorted(folder.glob("*")) if folder.is_dir() else []
    sounds = {path.stem: path for path in paths if path.suffix in _SOUNDS}
    pictures = {path.stem: path for path in paths if path.suffix == ".png"}
    names = [*captions, *sorted(sounds.keys() | pictures.keys())]
    drawn = _Pictures(recipe) if sounds else None
    clips = []
    for name in dict.fromkeys(names):
        clip = {"label": name.replace("_", " "), "note": captions.get(name, ""), "picture": "", "sound": ""}
        if drawn is not None and name in sounds:
            clips.append({**clip, "sound": _sound(sounds[name]), **drawn.of(sounds[name])})
        elif name in pictures and name.removesuffix("_mel") not in sounds:
            clips.append({**clip, "picture": plots.data_url(pictures[name].read_bytes(), "image/png")})
    return {"note": "From the latest validation.", "examples": [{"title": "", "clips": clips}]} if clips else {}


# ------------------------------------------------ Report of a run as a single self-contained HTML page

_MOST_PROBED = 20_000
_NAMED = 10
"""Recordings that were left out and are named."""


@dataclass(frozen=True)
class _Story:
    run: Run
    recipe: dict[str, Any]
    lines: list[dict[str, Any]]
    """Lines of metrics.jsonl."""
    checkpoints: list[listing.CheckpointInfo]
    """Intact checkpoints, oldest first."""
    system: dict[str, Any]
    missing: str
    """Which lines of metrics.jsonl are missing."""
    resumes: list[int]
    """Steps at which training was resumed."""
    spent: dict[str, float]
    """Seconds of all processes by kind."""
    timed: int
    """Steps that were done when their seconds were noted last."""

    @classmethod
    def read(cls, run: Run) -> _Story:
        recipe = parse(run.recipe.read_text(encoding="utf-8", errors="replace"), str(run.recipe)).values
        folder = run.path / str(value_at(recipe, ("training", "checkpoint", "save_dir")) or "checkpoints")
        lines = read_metrics(run.metrics)
        checkpoints = [info for info in listing.scan(folder) if info.metadata]
        trained = (int(line["step"]) for line in lines if line["split"] == "train")
        timed = ledger.newest_step(run.path / ledger.FILE)
        last = max((*trained, *(info.step for info in checkpoints), timed))
        resumed = {int(event["step"]) for event in read_events(run.metrics, "resumed")}
        return cls(
            run=run,
            recipe=recipe,
            lines=lines,
            missing=missing_metrics(run.metrics),
            checkpoints=checkpoints,
            system=read_json(run.path / files.SYSTEM),
            resumes=sorted(step for step in resumed if step < last),  # nothing was trained where it was at its end
            spent=ledger.read(run.path / ledger.FILE),
            timed=timed,
        )

    @property
    def newest(self) -> CheckpointMetadata | None:
        return self.checkpoints[-1].metadata if self.checkpoints else None

    @property
    def best(self) -> listing.Best | None:
        return listing.best_of(self.checkpoints)

    @property
    def best_step(self) -> int | None:
        best = self.best
        return None if best is None else next(info.step for info in self.checkpoints if info.name == best.name)

    @property
    def step(self) -> int:
        steps = [int(line["step"]) for line in self.lines] + [info.step for info in self.checkpoints]
        return max([self.timed, *steps])

    @property
    def ended(self) -> bool:
        """Whether all steps or epochs of the recipe are done, as far as it names them."""
        steps, epochs = (value_at(self.recipe, ("training", name)) for name in ("max_steps", "epochs"))
        if isinstance(steps, int):
            return self.step >= steps
        return not isinstance(epochs, int) or (self.newest is not None and self.newest.epoch >= epochs)

    @property
    def info(self) -> TaskInfo:
        """What the run's task offers; nothing if its plug-in is not loaded."""
        task = self.recipe.get("task")
        return task_info(task) if task in TASKS.names() else TaskInfo()


def write_report(path: str | Path) -> Path:
    """Write `report.html` into the run at `path` and return its path.

    Raises InputError if there is no run, or if a file for the page can't be read.
    """
    run = Run(located(on_disk(path)))
    if is_checkpoint(run.path):
        raise InputError(f"{path}: a checkpoint, not a run, so there is no training to report on")
    if not run.recipe.is_file():
        raise no_run(run.path, "no such run" if not run.path.exists() else "not a run (it has no recipe.yaml)")
    story = _Story.read(run)
    if story.missing:
        logger.warning("%s: %s missing; the curves go on without them", run.metrics, story.missing)
    run.write("report.html", render("report.html.jinja", _page(story)))
    return run.path / "report.html"


def _page(story: _Story) -> dict[str, Any]:
    run, info = story.run, story.info
    compared = listening(run.path / LISTENING, story.recipe)
    return {
        "name": run.name,
        "path": shlex.quote(str(run.path)),
        "kind": f"phonate report: {story.recipe.get('task', 'training')}",
        "summary": f"{_summary(story)} {_verdict(story)}",
        "next": _next(story),
        "figures": _figures(story),
        "facts": _facts(story),
        "validation": info.validation if (run.path / files.FIGURES).exists() and _is_measured(story) else "",
        "curves": curves(story.lines, story.recipe, story.step, story.resumes, info.metrics, story.ended),
        "resumes": story.resumes,
        "checkpoints": [_checkpoint(info, story.best) for info in reversed(story.checkpoints)],
        "texts": _texts(run),
        "tables": evaluation(run.path / files.FIGURES),
        "listening": compared or previews(run.previews, story.recipe, info.previews),
        "silent": _silent(story),
    }


def _is_measured(story: _Story) -> bool:
    """Whether validation measured more than the loss."""
    names = {one.name for one in story.info.metrics or () if not one.is_term}
    return any(names & line.keys() for line in story.lines if line["split"] == "validation")


def _next(story: _Story) -> list[dict[str, str]]:
    """What to do with the model, as commands."""
    run, info = shlex.quote(str(story.run.path)), story.info
    evaluated = (story.run.path / files.FIGURES).exists()
    nothing_kept = story.ended and not any(line["split"] == "validation" for line in story.lines)
    commands = {
        "To train it to its end": "" if story.ended else story.run.resume_command(),
        "To use it": story.run.use(info, story.recipe),
        "To evaluate it, on data that it was not trained on": ""
        if evaluated or info.evaluation is None
        else f"phonate evaluate {run}{' --data PATH' if nothing_kept else ''}",
    }
    return [{"what": what, "command": command} for what, command in commands.items() if command and story.checkpoints]


def _silent(story: _Story) -> str:
    """Why there is nothing to hear or see, and what to do."""
    task = story.recipe.get("task")
    if value_at(story.recipe, ("training", "validation", "previews")) is False:
        return "Training kept no sounds and pictures: training.validation.previews is false."
    if not story.info.previews:
        return f"The training of the task {task} keeps no sounds or pictures."
    if not any(line["split"] == "validation" for line in story.lines):
        return f"Sounds and pictures come from validation. {not_validated(story.recipe, story.ended)}"
    first = next(iter(story.info.previews.values()))
    return f"None of the recordings kept for validation (data.validation) can be shown: this task shows {first}."


def _summary(story: _Story) -> str:
    """Summary of the run in a sentence or two."""
    metadata = story.newest
    model = f"A model of the task {value_at(story.recipe, ('task',))}"
    if metadata:
        model += f" with {_parameters(story, metadata)}"
    data = value_at(story.recipe, ("data", "path"))
    source = value_at(story.recipe, ("training", "init_from"))
    whose = ", a model of the package" if source in files.PACKAGED and not Path(source).exists() else ""
    began = f" It began from {source}{whose}." if source else ""
    text = f"{model}, trained{f' on {data}' if data else ''} for {_steps(story)}{_took(story.spent)}.{began}"
    if story.resumes:
        at = ", ".join(f"{one:,}" for one in story.resumes)
        text += f" Training was stopped and resumed at step {at}."
    if story.missing:
        text += f" Of metrics.jsonl, {story.missing} missing."
    return text


def _parameters(story: _Story, metadata: CheckpointMetadata) -> str:
    """How many parameters there are, and how many of them were trained where not all were."""
    counts = parameter_counts(story.run)
    if counts is None:
        return f"{_count(metadata.num_parameters)} parameters"
    every, trained = counts
    return f"{_count(every)} parameters{f', {_count(trained)} of them trained' if trained < every else ''}"


def _steps(story: _Story) -> str:
    """The steps that were trained, of how many where these are not all."""
    steps, epochs = (value_at(story.recipe, ("training", name)) for name in ("max_steps", "epochs"))
    if story.ended:
        return number_of(story.step, "step")
    training = story.recipe.get("training", {})
    callbacks = [one.get("type") for one in training.get("callbacks") or () if isinstance(one, Mapping)]
    early = bool(training.get("early_stopping")) or "early_stopping" in callbacks
    rest = "stopped early or unfinished" if early else "unfinished"
    if isinstance(steps, int):
        return f"{story.step:,} of {steps:,} steps ({rest})"
    return f"{number_of(story.step, 'step')}, {story.newest.epoch if story.newest else 0} of {epochs} epochs ({rest})"


def _took(spent: Mapping[str, float]) -> str:
    """The time in which the run was training, and how long it was not."""
    return f" in {duration(whole)}{ledger.idle(spent)}" if (whole := ledger.running(spent)) else ""


_METRICS_IN_WORDS = 3
_PARTS = {"der": ("miss", "false_alarm", "confusion")}
"""What a metric is the sum of."""
_DETAILS = frozenset({"cer", "skipped", "repeated", *_PARTS["der"]})
"""Metrics that say in other words, or in parts, what another one says."""


def _evaluated(story: _Story) -> Figures | None:
    path = story.run.path / files.FIGURES
    content = read_json(path)
    return _validated(Figures, content, path) if content else None


def _ranked(figures: Figures) -> list[Metric]:
    """What the evaluated system was measured by and has a better direction; first what says most."""
    own = figures.systems.get(figures.focus, {})
    shown = [described(name, figures.columns) for name in sorted(own, key=_DETAILS.__contains__)]
    return [metric for metric in shown if metric.better and own[metric.name] is not None]


def _verdict(story: _Story) -> str:
    """How good the model is, beside what it was compared with, in a sentence or two."""
    figures = _evaluated(story)
    if figures is None:
        return _validated_so(story)
    own = figures.systems.get(figures.focus, {})
    others = {
        name: values
        for name, values in figures.systems.items()
        if name != figures.focus and name in (figures.compared or figures.systems)
    }
    parts = []
    for metric in _ranked(figures):
        compared = [
            f"{other}: {_valued(values[metric.name], metric)}"
            for other, values in others.items()
            if metric.name in values
        ]
        if compared:
            value = f"{_valued(own[metric.name], metric)}{_in_parts(metric, own, figures.columns)}"
            parts.append(f"{metric.title} {value} ({'; '.join(compared)}; {metric.better} is better)")
    step = figures.notes.get(STEP)
    of = f" the checkpoint of step {step:,}" if isinstance(step, int) else ""
    shown = parts[: 1 if _PARTS.keys() & own.keys() else _METRICS_IN_WORDS]
    if not parts:
        return ""
    return f"Evaluated{of}{_sample(figures.notes, 'wer' in own)}: {'; '.join(shown)}.{_than_start(figures)}"


def _than_start(figures: Figures) -> str:
    """That the model is worse than what it started from, by the metric that says most."""
    own, before = (figures.systems.get(name, {}) for name in (figures.focus, figures.start))
    metric = next((one for one in _ranked(figures) if before.get(one.name) is not None), None)
    if metric is None:
        return ""
    now, then = own[metric.name], before[metric.name]
    if now is None or then is None or now == then or (now < then) == (metric.better == "lower"):
        return ""
    return f" That is worse than {figures.start} ({metric.title} {_valued(then, metric)})."


def _in_parts(metric: Metric, values: Mapping[str, float | None], declared: Mapping[str, Metric]) -> str:
    """What the value of the metric is the sum of."""
    parts = [described(name, declared) for name in _PARTS.get(metric.name, ()) if name in values]
    return f" = {' + '.join(f'{one.title} {_valued(values[one.name], one)}' for one in parts)}" if parts else ""


def _validated_so(story: _Story) -> str:
    """What validation says of a model that was not evaluated: of its best checkpoint where there is one."""
    best, step = story.best, story.best_step
    validated = [one for one in story.lines if one["split"] == "validation"]
    line = next((one for one in reversed(validated) if one["step"] == step), validated[-1] if validated else None)
    if line is None:
        return "Nothing says yet how good it is."
    at = f"at step {line['step']:,}{' (the best checkpoint)' if line['step'] == step else ''}"
    own = [one for one in story.info.metrics or () if one.better and one.name in line]
    chosen = "" if best is None else plain(best.metric)
    own.sort(key=lambda one: (one.name != chosen, one.name in _DETAILS))
    parts = [f"{one.title} {_valued(line[one.name], one)}" for one in own]
    if not parts:
        loss = number(line.get(LOSS))
        return f"On what it was not trained on its loss is {loss} {at}, which does not say how good it is: evaluate it."
    figures = "; ".join(parts[:_METRICS_IN_WORDS])
    return f"In validation {at}: {figures}; compared with nothing yet: evaluating it does that, and explains each."


_SAMPLES = ("texts", "recordings", "clips", "pairs", "documents", "number")
"""What the notes of an evaluation call its items."""
_FEW_WORDS = 500
"""Words of which each is over 0.2 points of a word error rate."""


def _sample(notes: Mapping[str, Any], word_errors: bool) -> str:
    """On how many items and words the figures are measured, and what one word is where they are few and have
    `word_errors`."""
    items = next(((name, notes[name]) for name in _SAMPLES if isinstance(notes.get(name), int)), None)
    if items is None:
        return ""
    name, count = items
    what = "items" if name == "number" else name
    single = f"a single {what.removesuffix('s')}, which says little"
    several = f"{count:,} {what}{', which say little' if count < FEW else ''}"
    text = f" on {single if count == 1 else several}"
    words = notes.get("words")
    if not isinstance(words, int) or not words:
        return text
    few = f"; one word is about {100 / words:.1f} points of WER" if word_errors and words < _FEW_WORDS else ""
    return f"{text} ({number_of(words, 'word')}{few})"


def _valued(value: float | None, metric: Metric) -> str:
    return f"{metric.cell(value)} {metric.unit_in_words}".strip()


def _figures(story: _Story) -> list[dict[str, str]]:
    cards = []
    figures = _evaluated(story)
    if figures is not None:
        own, step = figures.systems.get(figures.focus, {}), figures.notes.get(STEP)
        at = f", at step {step:,}" if isinstance(step, int) else ""
        ranked = _ranked(figures)
        shown = [one for place, one in enumerate(ranked) if place == 0 or one.name == "mos"]
        cards += [(_valued(own[one.name], one), f"{one.title} in the evaluation{at}") for one in shown]
    elif story.best is not None and story.best.metric != NEWEST:
        metric = described(plain(story.best.metric), by_name(*(story.info.metrics or ())))
        label = f"best {metric.title} in validation, at step {story.best_step:,}"
        cards.append((_valued(story.best.value, metric), label))
    cards.append((f"{story.step:,}", "optimizer steps"))
    if whole := ledger.running(story.spent):
        computed = sum(story.spent.get(kind, 0.0) for kind in ("train", "data", "compile"))
        rate = f"; {story.step / computed:.3g} steps a second while it trained" if computed and story.step else ""
        cards.append((duration(whole), f"of work, preparation and validation included{rate}"))
    if story.newest is not None:
        size = f"{story.newest.model_size_mb:.3g} MB"
        every, _ = parameter_counts(story.run) or (story.newest.num_parameters, 0)
        cards.append((_count(every), f"parameters; a checkpoint's weights have {size}"))
    return [{"value": value, "label": label} for value, label in cards]


def _facts(story: _Story) -> list[dict[str, str]]:
    """Rows of the table of facts, without unknown ones."""
    facts = {**_what(story), **_how(story), **_where(story)}
    return [{"label": label, "value": str(value)} for label, value in facts.items() if value not in (None, "")]


def _what(story: _Story) -> dict[str, Any]:
    inference = read_json(story.checkpoints[-1].path / files.INFERENCE) if story.checkpoints else {}
    unused = _refused(story)
    return {
        "Task": story.recipe.get("task"),
        "Corpus": value_at(story.recipe, ("data", "path")),
        "Listed recordings": _recordings(story.recipe.get("data"), unused),
        "Left out": _left_out(unused) if unused else None,
        **_task_facts(story.info, inference),
        "Model": story.newest and f"size {story.recipe.get('size', 'default')} (class {story.newest.model_name})",
    }


def _task_facts(info: TaskInfo, inference: Mapping[str, Any]) -> dict[str, str]:
    """Facts that the task reports about its model."""
    return dict(referred(info.facts)(inference)) if inference and info.facts is not None else {}


def _refused(story: _Story) -> list[dict[str, str]] | None:
    """Which listed recordings training could not use, and why; None where that is not known any more."""
    from phonate.config.resolve import resolve
    from phonate.data.prepared import refused
    from phonate.data.settings import RecordingData

    path = value_at(story.recipe, ("data", "path"))
    if story.recipe.get("task") not in TASKS.names() or not Path(str(path)).exists():
        return None
    try:
        data = resolve(story.run.recipe).recipe.data
        return refused(data) if isinstance(data, RecordingData) else None
    except InputError as error:  # of another version, say, or without a package of its features
        logger.warning("which recordings were left out is not shown: %s", error)
        return None


def _left_out(refused: Sequence[Mapping[str, str]]) -> str:
    """The first recordings that were left out, with the reasons."""
    told = [f"{one['place']}: {one['detail']}" for one in refused[:_NAMED]]
    told += [f"and {number_of(len(refused) - _NAMED, 'other')}"] * (len(refused) > _NAMED)
    return f"{len(refused):,}: {'; '.join(told)}"


def _recordings(data: Any, refused: Sequence[Mapping[str, str]] | None) -> str | None:
    """Number and total length of the recordings that the corpus lists, or the names of several corpora; None if the
    corpus is not available or contains only texts. `refused`: those that training left out; None: not known."""
    if isinstance(data, Mapping) and data.get("datasets"):
        return ", ".join(str(one["name"]) for one in data["datasets"])
    if not isinstance(data, Mapping) or "audio" not in data or not Path(str(data.get("path"))).exists():
        return None
    from phonate.data.corpora.manifest import list_corpus
    from phonate.data.corpora.rows import Row
    from phonate.data.settings import VoiceData

    chosen = {name: data[name] for name in ("format", "drop", "limit", "cache_dir") if name in data}
    listed, _ = list_corpus(VoiceData(path=str(data["path"]), **chosen))
    paths = [one.path for one in listed if isinstance(one, Row)]
    if len(paths) > _MOST_PROBED:
        return f"{len(paths):,}"
    check = f"; phonate data check {shlex.quote(str(data['path']))} says which can't be used"
    return f"{len(paths):,}, {duration(sum(map(_seconds, paths)))} in all{check if refused is None else ''}"


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
        "Time": told(story.spent) if story.spent else None,
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
        "Command": shlex.join(["phonate", *system["command"][1:]]) if system["command"][1:] else None,
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
    titles = {files.RECIPE: "Recipe", SUMMARY: "Model"}
    return [
        {"title": title, "content": (run.path / name).read_text(encoding="utf-8")}
        for name, title in titles.items()
        if (run.path / name).is_file()
    ]


def _count(count: int) -> str:
    return f"{count / 1e6:.3g} M" if count >= 1e6 else f"{count / 1e3:.3g} k"
