"""Contents of a report besides the training files: sounds to compare, images, tables of figures.

They are plain data files in the run folder: `samples/samples.json` (`Listening`), `evaluation.json`
(`Figures`), and `previews/` for other audio and images of the task.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ConfigDict, Field, ValidationError, field_validator

from phonate.config.errors import InputError
from phonate.config.metrics import ARROWS, Metric
from phonate.config.settings import Settings
from phonate.evaluation.tables import described
from phonate.workflows.pages import plots

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
    columns: dict[str, Metric] = Field(default_factory=dict)
    """Metric -> how it is shown. Others are shown by their names."""

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
        raise InputError(f"{path}: not JSON ({error}); delete it or write it again") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: not a JSON object; delete it or write it again")
    return content


def number(value: float | None) -> str:
    """Format a number for a table cell."""
    return "–" if value is None else f"{value:.4g}"


def duration(seconds: float) -> str:
    """Format a duration in seconds, minutes or hours."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h"


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
    headings = [{**one.document(), "arrow": ARROWS[one.better]} for one in shown]
    return [{"title": "Evaluation", "note": figures.legend, "columns": headings, "rows": rows}]


def listening(path: Path, recipe: Mapping[str, Any]) -> dict[str, Any]:
    """The sounds of `samples.json` with their spectrograms; {} if there is no such file."""
    content = read_json(path)
    if not content:
        return {}
    found = _validated(Listening, content, path)
    pictures = _Pictures(recipe)
    examples = [
        {
            "title": example.title,
            "clips": [
                {
                    "label": clip.label,
                    "note": clip.note,
                    "sound": _sound(path.parent / clip.path),
                    "picture": pictures.of(path.parent / clip.path),
                }
                for clip in example.clips
            ],
        }
        for example in found.examples
    ]
    return {"note": found.note, "examples": examples}


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
    """Mel spectrograms with the audio settings of the recipe, as the model sees them."""

    def __init__(self, recipe: Mapping[str, Any]) -> None:
        from phonate.audio.processor import AudioProcessor
        from phonate.audio.settings import AudioConfig

        audio = recipe.get("data", {}).get("audio")
        self.processor = AudioProcessor(AudioConfig(**audio) if isinstance(audio, Mapping) else None)

    def of(self, path: Path) -> str:
        mel = self.processor.mel(self.processor.load(path))
        return plots.data_url(plots.spectrogram_png(mel.T), "image/png")


def previews(folder: Path) -> dict[str, Any]:
    """The files in a run's folder of previews, grouped by name: `voice.png` and `voice.flac` form one clip."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*")) if folder.is_dir() else []:
        kind = "picture" if path.suffix == ".png" else "sound" if path.suffix in _SOUNDS else None
        if kind is not None:
            empty = {"label": path.stem.replace("_", " "), "note": "", "picture": "", "sound": ""}
            url = plots.data_url(path.read_bytes(), "image/png") if kind == "picture" else _sound(path)
            found.setdefault(path.stem, empty)[kind] = url
    if not found:
        return {}
    note = "Audio and images from training."
    return {"note": note, "examples": [{"title": "", "clips": list(found.values())}]}
