"""What a session trains: a recipe of its own, or one that a person wrote, and a few settings of the session."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from phonate.config import mistakes
from phonate.config.documents import Document, read
from phonate.config.errors import InputError, RecipeError
from phonate.config.recipe import Recipe
from phonate.config.resolve import Resolved, resolve_document
from phonate.config.settings import Settings
from phonate.config.tasks import TASKS, task_settings
from phonate.data.voices.validation import VoiceRules
from phonate.workflows.session.notices import NoticeSettings

CONFIG = Path("training/config.yaml")
VOICE_TASKS = ("speech", "conversion", "recognition")
TEXT_TASK = "language"

_SHARED = (
    ("size",),
    ("data", "audio"),
    ("data", "cache_dir"),
    ("training", "max_steps"),
    ("training", "batch_size"),
    ("training", "mixed_precision"),
    ("training", "random_seed"),
    ("training", "performance"),
)
"""What the vocoder that a session trains has of the configuration of the voice."""


class SessionSettings(Settings):
    """The part `session` of a session's configuration."""

    voice: Literal["auto", "speech", "conversion", "recognition"] = "auto"
    """What is made of recordings: speech is a voice that reads out, conversion puts a voice on others' speech,
    recognition writes down what is said. auto: speech where most recordings have texts, else conversion."""
    transcribe: bool = False
    """First cut recordings at pauses and write down what is said, by Whisper (needs phonate[eval])."""
    language: str = "en"
    """What is spoken: en, de, ... Others than English are spoken with espeak's phones (needs phonate[espeak])."""
    whisper_model: str | None = None
    """Whisper model for `transcribe`. Null: tiny.en for English, base for others."""
    vocoder: str | None = "auto"
    """What makes sound of mels: a run, or a recipe to train one by first; auto: the recipe vocoder, where the
    configuration names no task. Null: Griffin-Lim, which needs no training and sounds worse."""
    rules: VoiceRules = VoiceRules()
    """Which recordings are taken."""
    notices: NoticeSettings = NoticeSettings()
    """Who is told when the session has ended."""


class _Part(Settings):
    session: SessionSettings


@dataclass(frozen=True)
class SessionConfig:
    """A session's configuration as it was read."""

    settings: SessionSettings
    document: Document
    """The recipe in it, which may be empty."""
    there: bool = True
    """Whether there was a file."""

    @property
    def task(self) -> str | None:
        """The task that it names, which makes a whole recipe of it. None: it changes the session's own recipes."""
        return self.document.values.get("task")

    def without_recipe(self) -> SessionConfig:
        """The settings of the session alone."""
        return replace(self, document=replace(self.document, values={}))

    def recipe(self, name: str, overrides: dict[str, Any]) -> Resolved:
        """What is trained: the configuration itself where it names a task; else the shipped recipe `name` under it.

        Raises RecipeError for its mistakes.
        """
        if self.task is not None:
            return resolve_document(self.document, overrides)
        return resolve_document(self.document, overrides, base=read(name))

    def of_language(self, task: str) -> dict[str, Any]:
        """Overrides for the language that is spoken, of what the configuration leaves open. Voices in others than
        English are not judged in training: that takes a larger recogniser."""
        if self.task is not None or self.settings.language.split("-")[0] == "en":
            return {}
        wanted: dict[str, Any] = {}
        if task in ("speech", "recognition"):
            wanted["data.language"] = self.settings.language
        if task == "speech":
            wanted |= {"data.phonemes": "espeak", "data.durations": "learnt", "data.judged": 0}
            wanted |= {"training.validation.metric_for_best_model": "val_loss"}
            wanted |= {"training.validation.greater_is_better": False}
        return {path: value for path, value in wanted.items() if self.value(*path.split(".")) is None}

    def vocoder_recipe(self, source: str, overrides: dict[str, Any]) -> Resolved:
        """The recipe `source` with what the configuration of the voice says of both."""
        values: dict[str, Any] = {}
        for path in _SHARED:
            found = self.value(*path) if self.task is None else None
            if found is not None and (path != ("size",) or found in task_settings("vocoder").sizes):
                _put(values, path, found)
        return resolve_document(replace(self.document, values=values), overrides, base=read(source))

    def value(self, *path: str) -> Any:
        """What is written at `path`, None where nothing is."""
        found: Any = self.document.values
        for key in path:
            found = found.get(key) if isinstance(found, dict) else None
        return found


def read_config(path: Path) -> SessionConfig:
    """The configuration at `path`; one that says nothing where there is no file and `path` is the default.

    Raises RecipeError with a line for each mistake, InputError where there is no such file.
    """
    if not path.is_file():
        if path != CONFIG:
            raise InputError(f"{path}: there is no such configuration; give a file by --config, or leave it out")
        return SessionConfig(SessionSettings(), Document(str(path), "", {}, {}), there=False)
    document = read(path, empty=True)
    values = {key: value for key, value in document.values.items() if key != "session"}
    unknown = [key for key in values if key not in Recipe.model_fields]
    config = SessionConfig(_settings(document), replace(document, values=values))
    if unknown or (config.task is not None and config.task not in TASKS.names()):
        config.recipe(TEXT_TASK, {"data.path": "."})  # tells the mistake with its place
    voice = config.settings.voice
    if config.task in VOICE_TASKS and voice not in ("auto", config.task):
        place = document.places["session", "voice"].value
        raise RecipeError(f"{place} session.voice: {voice}, and task: {config.task}; leave one of them out")
    return config


def _settings(document: Document) -> SessionSettings:
    written = document.values.get("session")
    part = {"session": {} if written is None else written}
    try:
        return _Part.model_validate_json(json.dumps(part), strict=True).session
    except ValidationError as error:
        raise RecipeError("\n".join(mistakes.lines(error, _Part, part, document.places, document.name))) from None


def _put(values: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for key in path[:-1]:
        values = values.setdefault(key, {})
    values[path[-1]] = value
