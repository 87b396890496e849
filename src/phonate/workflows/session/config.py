"""A session's configuration: a recipe, or options that override the session's own recipes."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError, create_model, field_validator

from phonate.config.documents import Document, read, value_at
from phonate.config.errors import InputError, RecipeError
from phonate.config.registry import nearest
from phonate.config.resolve import Recipe, recipe_class
from phonate.config.settings import Settings, instead, mistake_lines
from phonate.config.tasks import TASKS, SessionInfo, referred, task_info, task_settings
from phonate.data.settings import VoiceRules
from phonate.training.plan import Plan, plan
from phonate.workflows.session.notices import NoticeSettings

# -------------------------------------- The tasks that a session trains, as they declare it themselves


def tasks_for(data: Literal["recordings", "texts"]) -> list[str]:
    """Names of the tasks that sessions train on this kind of data."""
    return [name for name, info in _all().items() if info.data == data]


def default_task(data: Literal["transcribed recordings", "recordings", "texts"]) -> str:
    """The task that a session chooses for this kind of data."""
    return next(name for name, info in _all().items() if info.default_for == data)


def default_recipe(data: Literal["transcribed recordings", "recordings", "texts"], pretrained: bool = False) -> str:
    """The shipped recipe for it; `pretrained`: for a configuration that names a pretrained model."""
    task = default_task(data)
    return (_all()[task].pretrained_recipe if pretrained else None) or task


def needs_text(task: str) -> bool:
    """Whether recordings without a text are of no use to a task."""
    info = task_info(task).session
    return info is not None and info.needs_text


def defaults(task: str, language: str) -> dict[str, Any]:
    """A task's overrides for recordings in a language."""
    info = task_info(task).session
    if info is None or info.defaults is None:
        return {}
    overrides: dict[str, Any] = referred(info.defaults)(language)
    return overrides


def _all() -> dict[str, SessionInfo]:
    return {name: info for name in TASKS.names() if (info := task_info(name).session) is not None}


# --------------------------------------------------------------------------- A session's configuration

CONFIG: Path = Path("training/config.yaml")

_SHARED = tuple(
    tuple(path.split("."))
    for path in (
        "size",
        "data.audio",
        "data.cache_dir",
        "training.max_steps",
        "training.epochs",
        "training.batch_size",
        "training.mixed_precision",
        "training.random_seed",
        "training.performance",
        "training.validation.interval",
        "training.validation.batch_size",
        "training.validation.previews",
        "training.checkpoint.interval",
        "training.checkpoint.save_total_limit",
        "training.checkpoint.compress",
        "training.checkpoint.verify_integrity",
        "training.logging.interval",
        "training.logging.tensorboard",
        "training.logging.system",
        "training.logging.verbosity",
        "training.logging.wandb",
        "training.logging.wandb_interval",
        "training.logging.wandb_project",
        "training.logging.wandb_entity",
        "training.logging.wandb_tags",
    )
)
"""Options of the voice's configuration that also apply to the vocoder trained for it."""
_ANYWHERE = "."
"""Stands for the corpus while a configuration is checked before the corpus is known."""


class SessionSettings(Settings):
    """The section `session` of a session's configuration."""

    voice: str = "auto"
    """What to train on recordings: speech (text-to-speech), conversion (voice conversion), recognition (speech to
    text), or another task that trains on recordings. auto: speech where most recordings have texts, else conversion."""
    transcribe: bool = False
    """Cut recordings at pauses and transcribe them with Whisper first (needs phonate[eval])."""
    language: str = "en"
    """Spoken language: en, de, ... Languages other than English use espeak's phonemes (needs phonate[espeak])."""
    whisper_model: str | None = None
    """Whisper model for `transcribe`. Null: tiny.en for English, base for others."""
    vocoder: str | None = "auto"
    """Vocoder of the voice: a run, or a recipe to train one first. auto: the one that comes with phonate, or if that
    does not fit `data.audio`, one trained by the recipe vocoder. Null: Griffin-Lim, which sounds worse. A
    `data.vocoder` in the configuration takes precedence."""
    rules: VoiceRules = VoiceRules()
    """Which recordings are used."""
    notices: NoticeSettings = NoticeSettings()
    """Who is notified when the session has ended."""

    @field_validator("voice")
    @classmethod
    def _known(cls, voice: str) -> str:
        known = ["auto", *tasks_for("recordings")]
        if voice not in known:
            raise ValueError(f"no task that sessions train on recordings; {nearest(voice, known)}")
        return voice


class _Section(Settings):
    session: SessionSettings


@dataclass(frozen=True)
class SessionConfig:
    """A session's configuration as it was read."""

    settings: SessionSettings
    document: Document
    """The recipe in it, which may be empty."""
    exists: bool = True
    """Whether there was a file."""

    @property
    def task(self) -> str | None:
        """The task that makes it a whole recipe. None: its options override those of the session's own recipes."""
        return self.document.values.get("task")

    def without_recipe(self) -> SessionConfig:
        """The section `session` alone."""
        return replace(self, document=replace(self.document, values={}))

    def plan(self, name: str, overrides: dict[str, Any], corpus: bool = True) -> Plan:
        """The plan of the recipe to train: the configuration itself if it names a task, else the shipped recipe `name`
        under it. `corpus`: whether the corpus is there already.

        Raises RecipeError for mistakes.
        """
        return plan(self.document, overrides, base=name if self.task is None else None, corpus=corpus)

    def check_recipes(self, names: Sequence[str]) -> None:
        """Raise RecipeError for mistakes that no recipe of `names`, the ones that may be trained, would accept."""
        errors = []
        for name in names if self.task is None else names[:1]:
            try:
                self.plan(name, {"data.path": _ANYWHERE}, corpus=False)
            except RecipeError as error:
                errors.append(error)
            else:
                return
        raise errors[0]

    def check_vocoder(self) -> None:
        """Raise RecipeError unless `session.vocoder` is a folder, or a recipe that trains a vocoder."""
        source = self.settings.vocoder
        if source is None or (source == "auto" and self.task) or Path(source).is_dir():
            return
        place = self.document.places.get(("session", "vocoder"))
        named = f"{place.value} session.vocoder: " if place else ""
        try:
            task = self.vocoder_plan(source, {"data.path": _ANYWHERE}, corpus=False).written.recipe.task
        except RecipeError as error:
            raise RecipeError(f"{named if source != 'auto' else ''}{error}") from None
        if task != "vocoder":
            raise RecipeError(f"{named}{source} is a recipe of the task {task}; name one of the task vocoder, or a run")

    def language_overrides(self, task: str) -> dict[str, Any]:
        """The task's overrides for the spoken language, where the configuration sets nothing else."""
        if self.task is not None:
            return {}
        overrides = defaults(task, self.settings.language)
        return {path: value for path, value in overrides.items() if self.value(*path.split(".")) is None}

    def vocoder_plan(self, source: str, overrides: dict[str, Any], corpus: bool = True) -> Plan:
        """The plan of the recipe `source` with the shared options of the voice's configuration."""
        values: dict[str, Any] = {}
        for path in _SHARED:
            value = self.value(*path) if self.task is None else None
            if value is not None and (path != ("size",) or value in task_settings("vocoder").sizes):
                _put(values, path, value)
        document = replace(self.document, values=values)
        return plan(document, overrides, base="vocoder" if source == "auto" else source, corpus=corpus)

    def value(self, *path: str) -> Any:
        """The value written at `path`; None if there is none."""
        return value_at(self.document.values, path)


def read_config(path: Path) -> SessionConfig:
    """The configuration at `path`; an empty one where `path` is the default and there is no such file.

    Raises RecipeError with a line for each mistake, InputError where there is no such file.
    """
    if not path.is_file():
        if path != CONFIG:
            raise InputError(f"{path}: no such configuration; name an existing file, or leave it out")
        return SessionConfig(SessionSettings(), Document(str(path), "", {}, {}), exists=False)
    document = read(path, empty=True)
    values = {key: value for key, value in document.values.items() if key != "session"}
    _refuse_unknown_keys(document, [key for key in values if key not in Recipe.model_fields])
    config = SessionConfig(_settings(document), replace(document, values=values))
    if config.task is None:
        return config
    if config.task not in TASKS.names():
        config.plan(default_task("texts"), {"data.path": _ANYWHERE}, corpus=False)  # raises, with the place
    trained = [*tasks_for("recordings"), *tasks_for("texts")]
    if config.task not in trained:
        raise RecipeError(
            f"{document.places['task',].value} task: a session trains {', '.join(trained)}; for {config.task} use "
            f"phonate train {shlex.quote(str(path))}"
        )
    voice = config.settings.voice
    if config.task in tasks_for("recordings") and voice not in ("auto", config.task):
        place = document.places["session", "voice"].value
        raise RecipeError(f"{place} session.voice: {voice} contradicts task: {config.task}; leave one of them out")
    return config


def _refuse_unknown_keys(document: Document, unknown: list[str]) -> None:
    if not unknown:
        return
    whole = create_model("SessionRecipe", __base__=recipe_class(default_task("texts")), session=(SessionSettings, ...))
    place = document.places
    raise RecipeError(
        "\n".join(f"{place[key,].key} {key}: no such option; {instead((key,), whole)}" for key in unknown)
    )


def _settings(document: Document) -> SessionSettings:
    written = document.values.get("session")
    part = {"session": {} if written is None else written}
    try:
        return _Section.model_validate_json(json.dumps(part), strict=True).session
    except ValidationError as error:
        raise RecipeError("\n".join(mistake_lines(error, _Section, part, document.places, document.name))) from None


def _put(values: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for key in path[:-1]:
        values = values.setdefault(key, {})
    values[path[-1]] = value
