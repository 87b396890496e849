"""Check, prepare and describe a corpus."""

from __future__ import annotations

import difflib
import logging
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from phonate.audio.decoding import is_recording
from phonate.config.documents import Key, shipped
from phonate.config.errors import InputError, PhonateError, option
from phonate.config.resolve import Recipe, parse_overrides
from phonate.config.settings import Settings, names_at, takes_text
from phonate.config.tasks import TASKS, task_info, task_settings
from phonate.data.corpora.manifest import check_corpus, list_corpus
from phonate.data.corpora.rows import Row, official_split
from phonate.data.corpora.validation import CheckedRow, has_empty_text, of_trained_speakers, text_beside, validate
from phonate.data.parallel import Progress
from phonate.data.settings import ConversationData, LanguageCode, RecordingData, SpokenData, VoiceData, cache_root
from phonate.tasks.cloning.settings import CloningData
from phonate.training.plan import plan
from phonate.workflows.datasets.transcripts import transcribe

logger = logging.getLogger("phonate")

FURTHER = "further"
_START = 1 << 16
_MESSAGES = re.compile(r'\s*[\[{].*"messages"\s*:', re.DOTALL)


class CorpusData(VoiceData):
    """A corpus without a recipe."""

    language: LanguageCode = SpokenData.model_fields["language"].default
    """The language of the texts, such as de."""


def corpus_settings(source: str, cache_dir: str | None = None, overrides: Sequence[str] = ()) -> RecordingData:
    """The settings of a corpus: of a recipe (`*.yaml`, or the name of one that is shipped), or of a folder or metadata
    file with defaults, and with `overrides` such as data.speaker=anna."""
    data: RecordingData
    if _is_recipe(source):
        read = _checked(source, overrides).data
        if not isinstance(read, RecordingData):
            raise InputError(f"{source}: its task reads no corpus of recordings; give the path of one")
        data = read
    else:
        data = _suited(CorpusData(**_data_options(overrides, source) | {"path": source}))
    return data if cache_dir is None else data.model_copy(update={"cache_dir": cache_dir})


def _is_recipe(source: str) -> bool:
    path = Path(source)
    return path.suffix.lower() in {".yaml", ".yml"} or (source in shipped() and not path.exists())


def _checked(source: str, overrides: Sequence[str]) -> Recipe[Any, Any, Any]:
    """A recipe as training uses it. Refuses what training refuses before it reads the corpus."""
    planned = plan(source, overrides)
    planned.check()
    planned.require_files()
    return planned.recipe


def _suited(data: CorpusData) -> RecordingData:
    """The settings for a corpus without a recipe: conversations where a recording has several speakers."""
    rows = [row for row in list_corpus(data)[0] if isinstance(row, Row)]
    if not any(len(row.speakers) > 1 for row in rows):
        return data
    options = {name: getattr(data, name) for name in data.model_fields_set - {"language"}}
    return ConversationData(**options)


_OF_LISTING = ("format", "unit", "speaker", "speaker_folder", "speaker_in_name", "drop", "limit")


def settings_to_cut(source: str, overrides: Sequence[str]) -> VoiceData:
    """The settings of a recording, a folder or a metadata file of which a data set is made; overrides that would have
    no effect there are refused."""
    if _is_recipe(source):
        raise InputError(f"{source}: {option('output')} takes no recipe; give the path of a corpus or a recording")
    options = _data_options(overrides, "FOLDER")
    usual = ("speaker",) if is_recording(Path(source)) else _OF_LISTING
    useless = next((name for name in options if name not in usual), None)
    if useless is not None:
        raise InputError(f"data.{useless}: has no effect with {option('output')}; leave it out")
    return CorpusData(**options | {"path": source})


def _data_options(overrides: Sequence[str], source: str, known: type[Settings] = CorpusData) -> dict[str, Any]:
    """The options of `source`, which is no recipe, by name. Raises InputError for others than it has."""
    options = {}
    for change in parse_overrides(overrides):
        section, *names = change.path
        usual = [name for name in known.model_fields if name != "path"]
        if section != "data" or len(names) != 1 or names[0] not in usual:
            near = difflib.get_close_matches(".".join(names), usual, n=1)
            recipe = _recipe_with(change.path)
            first = f"give a recipe first: {recipe or 'speech'} {shlex.join([f'data.path={source}', *overrides])}"
            mend = f"did you mean data.{near[0]}?" if near and recipe is None else first
            raise InputError(f"{change.source} {'.'.join(change.path)}: no option of a corpus without a recipe; {mend}")
        options[names[0]] = (change.for_text() if takes_text(known, change.path[1:]) else change).value
    return options


def _recipe_with(path: Key) -> str | None:
    """A shipped recipe that has an option of its corpus at this path: that for speech where it has it."""
    section, *above, name = path
    tasks = sorted(TASKS.names(), key=lambda task: task != "speech") if section == "data" else []
    having = (task for task in tasks if name in names_at(task_settings(task).data, tuple(above)))
    recipes = (task_info(task).recipe or task for task in having)
    return next((recipe for recipe in recipes if recipe in shipped()), None)


def check(settings: RecordingData, progress: Progress | None = None) -> dict[str, Any]:
    """Look at every recording; returns the report, which may be one of refusals alone. As in all three, `further` are
    the outcomes of the other corpora that the settings name (of clips or noise, for simulations)."""
    return _each(_check, settings, progress)


def chatml_settings(source: str, overrides: Sequence[str] = ()) -> tuple[CloningData, str | None] | None:
    """The settings of pairs for voice cloning, and the model: of a recipe of that task, or of a file of conversations
    with defaults and no model. None: `source` is another corpus."""
    suffix = Path(source).suffix.lower()
    if _is_recipe(source):
        recipe = _checked(source, overrides)
        return (recipe.data, recipe.model.name) if isinstance(recipe.data, CloningData) else None
    if suffix not in {".json", ".jsonl"} or not is_chatml(source):
        return None
    return CloningData(**_data_options(overrides, source, CloningData) | {"path": source}), None


def is_chatml(path: str) -> bool:
    """Whether a JSON file holds conversations, as its first row says."""
    try:
        with open(path, encoding="utf-8-sig", errors="replace") as file:
            return _MESSAGES.match(file.read(_START)) is not None
    except (OSError, ValueError):
        return False


def check_chatml(settings: CloningData, model: str | None) -> dict[str, Any]:
    """Look at every pair and recording, and at their texts as a model's tokenizer writes them; returns the report,
    which may be one of refusals alone."""
    from phonate.tasks.cloning.data import check_pairs

    checked = check_pairs(settings)
    if model is not None:
        from phonate.tasks.cloning.data import check_scripts
        from phonate.tasks.cloning.sequences import CloningTokenizer

        try:
            tokenizer = CloningTokenizer.load(model)
        except PhonateError as error:
            logger.warning("texts are not compared with the model's limits: %s", error)
        else:
            check_scripts(checked, tokenizer, settings)
    return checked.report.to_json()


def _each(
    action: Callable[[RecordingData, Progress | None], dict[str, Any]],
    settings: RecordingData,
    progress: Progress | None,
) -> dict[str, Any]:
    texts = transcribe(settings)
    first, *others = [action(one, progress) for one in settings.to_prepare]
    if texts:
        first = {**first, "transcripts": texts}
    return {**first, FURTHER: others} if others else first


def _check(settings: RecordingData, progress: Progress | None) -> dict[str, Any]:
    rows, report = list_corpus(settings)
    needs, notes = settings.requirements, cache_root(settings)
    usable = validate(rows, needs, report, progress, settings.threads, settings.executor, notes)
    if usable and settings.requirements.trained_speaker:
        usable = of_trained_speakers(usable, report, settings.held_out_splits)
    refused = settings.refusals([one for one in usable if official_split(one.row.split) != "test"])
    if refused:
        names = {problem.id for problem in refused}
        report.refused += refused
        usable = [one for one in usable if one.row.id not in names]
        report.recount(usable)
    if report.usable:
        settings.require_speakers(report.speakers)
    outcome = report.to_json()
    outcome["whole_recordings"] = _whole(usable)
    outcome["minutes_by_speaker"] = _minutes_by_speaker(settings, usable)
    if settings.strangers == "recording":
        outcome["speakers"] = dict.fromkeys(outcome["minutes_by_speaker"], 1)
    if (
        type(settings) in (VoiceData, CorpusData) and report.segments == report.usable
    ):  # clips, for no task, which would refuse them
        without = [one.row for one in usable if not one.row.text]
        outcome["without_text"] = len(without)
        if without:
            outcome["text_missing"] = text_beside(next(filter(has_empty_text, without), without[0]))
    return outcome


def _minutes_by_speaker(settings: RecordingData, usable: Sequence[CheckedRow]) -> dict[str, float]:
    """How long each speaker speaks; where a name is somebody else in each recording, with the recording's id."""
    minutes: dict[str, float] = {}
    for one in usable:
        for segment in one.segments:
            name, end = str(segment.speaker), segment.end if segment.end is not None else one.seconds
            name = f"{one.row.id}/{name}" if settings.strangers == "recording" else name
            minutes[name] = minutes.get(name, 0.0) + (end - segment.start) / 60
    return {name: round(value, 2) for name, value in sorted(minutes.items())}


def _whole(usable: Sequence[CheckedRow]) -> int:
    """How many recordings some rows, of which each may be a part, are of."""
    return len({(one.row.source, one.row.channel) for one in usable})


def prepare(settings: RecordingData, progress: Progress | None = None) -> dict[str, Any]:
    """Build index and cache, and say where they are and how large."""
    return _each(_prepare, settings, progress)


def _prepare(settings: RecordingData, progress: Progress | None) -> dict[str, Any]:
    from phonate.data.prepared import prepare as prepare_corpus  # imports torch, which the others do without

    prepared = prepare_corpus(settings, progress)
    size = sum(file.stat().st_size for file in prepared.folder.iterdir())
    return {
        "folder": str(prepared.folder),
        "fingerprint": prepared.fingerprint,
        "recordings": len(prepared.index),
        "train": len(prepared.train),
        "validation": len(prepared.validation),
        "megabytes": round(size / 1e6, 1),
        "refused": prepared.report["reasons"],
    }


def describe(settings: RecordingData, progress: Progress | None = None) -> dict[str, Any]:
    """Speakers, hours and lengths of a corpus."""
    return _each(_describe, settings, progress)


def _describe(settings: RecordingData, progress: Progress | None) -> dict[str, Any]:
    checked, report = check_corpus(settings, progress)
    seconds = np.array([one.seconds for one in checked])
    minutes = _minutes_by_speaker(settings, checked)
    rates: dict[str, int] = {}
    for one in checked:
        rates[str(one.sample_rate)] = rates.get(str(one.sample_rate), 0) + 1
    return {
        "path": report.path,
        "format": report.format,
        "recordings": (whole := _whole(checked)),
        **({"parts": report.usable} if whole != report.usable else {}),
        "refused": report.reasons(),
        "speakers": len(minutes),
        "minutes": round(report.seconds / 60, 2),
        "segments": report.segments,
        "speech_minutes": round(report.speech_seconds / 60, 2),
        "overlap_minutes": round(report.overlap_seconds / 60, 2),
        "minutes_by_speaker": minutes,
        "sample_rates": rates,
        "seconds": {
            "shortest": round(float(seconds.min()), 2),
            "median": round(float(np.median(seconds)), 2),
            "longest": round(float(seconds.max()), 2),
        },
        "with_text": sum(one.row.text is not None for one in checked),
    }
