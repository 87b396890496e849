"""How well a recogniser hears: errors on recordings with texts, beside what knows nothing of sound.

Beside the model stand the same network untrained, and an answer that never listens: the word that the training texts
have most often, as many times as words are said in so many seconds there.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from phonate.audio.decoding import FloatArray
from phonate.config.errors import InputError, PhonateError
from phonate.data.manifests.manifest import check_corpus, list_corpus
from phonate.data.manifests.recording import load_row
from phonate.data.manifests.rows import Row
from phonate.data.progress import track
from phonate.data.store.prepared import prepare
from phonate.evaluation.tables import Evaluation
from phonate.evaluation.transcription import character_error_rate, word_error_rate
from phonate.tasks.recognition.inference import Transcriber
from phonate.tasks.recognition.model import build_model
from phonate.tasks.recognition.symbols import Wording

logger = logging.getLogger("phonate")

SOUNDS = 6
"""Recordings that the report plays."""
_LEGEND = (
    "wer, cer: words and letters substituted, left out and put in, over those that were said; rtf: seconds of work for "
    "a second of sound."
)


@dataclass(frozen=True)
class Clip:
    """A recording with what is said in it."""

    id: str
    speaker: str
    said: str
    waveform: FloatArray
    path: Path | None = None
    """Where it is from; None for one that training kept out."""


def evaluate(run: Path, data: str | None = None, *, device: str | None = None) -> Evaluation:
    """Evaluate the recogniser of `run` on the recordings with texts of the corpus `data`, or on what its training kept
    for validation, computing on `device` (None: cpu).

    Raises InputError when there is no such recording.
    """
    transcriber = Transcriber.load(run, device=device)
    clips = list(_kept_for_validation(transcriber) if data is None else _clips_of(transcriber, data))
    if not clips:
        kept = f"{run}: its training kept no recording to judge by (data.validation); give some by --data"
        raise InputError(kept if data is None else f"{data}: there is no recording with a text to judge by")
    systems, focus = _systems(transcriber)
    results: dict[str, dict[str, float]] = {}
    answers: dict[str, list[str]] = {}
    seconds = sum(len(clip.waveform) for clip in clips) / transcriber.sample_rate
    for name, system in systems.items():
        logger.info("judging: %s (%d recordings)", name, len(clips))
        started = time.perf_counter()
        answers[name] = [system(clip.waveform) for clip in track(f"{name}: listening", clips)]
        results[name] = {**_rates(clips, answers[name]), "rtf": (time.perf_counter() - started) / seconds}
    items = {
        clip.id: {"speaker": clip.speaker, "text": clip.said, "heard": heard, **_rates([clip], [heard])}
        for clip, heard in zip(clips, answers[focus], strict=True)
    }
    notes = {
        "recordings": len(clips),
        "speakers": len({clip.speaker for clip in clips}),
        "words": sum(len(clip.said.split()) for clip in clips),
        "seconds": round(seconds, 1),
        **_overlap(transcriber, clips),
    }
    sounds = {
        f"{clip.id}: {clip.said} (heard: {items[clip.id]['heard']})": {"recorded": clip.waveform}
        for clip in clips[:SOUNDS]
    }
    return Evaluation("recognition", results, focus, _LEGEND, notes, items, sounds, transcriber.sample_rate)


def _systems(transcriber: Transcriber) -> tuple[dict[str, Callable[[FloatArray], str]], str]:
    """What is judged, by name, and the name of what the recipe does."""
    beam = transcriber.recipe.model.beam
    untrained = _untrained(transcriber)
    systems: dict[str, Callable[[FloatArray], str]] = {
        "untrained": lambda waveform: untrained.transcribe(waveform, 1),
        "most frequent word": lambda waveform: _never_listening(transcriber, waveform),
        "greedy": lambda waveform: transcriber.transcribe(waveform, 1),
    }
    if beam == 1:
        return systems, "greedy"
    focus = f"beam {beam}" + (" and language model" if transcriber.fusion.model else "")
    systems[focus] = transcriber.transcribe
    return systems, focus


def _untrained(transcriber: Transcriber) -> Transcriber:
    recipe, symbols = transcriber.recipe, transcriber.symbols
    with torch.random.fork_rng():
        torch.manual_seed(recipe.training.random_seed)
        model = build_model(recipe.model, recipe.data.audio.n_mels, len(symbols))
    return Transcriber(model, recipe, symbols, None, transcriber.inference_metadata).to(transcriber.device)


def _never_listening(transcriber: Transcriber, waveform: FloatArray) -> str:
    """The most frequent word, once for each that the training texts lead to expect in so many seconds."""
    expected = transcriber.inference_metadata["words_per_second"] * len(waveform) / transcriber.sample_rate
    return " ".join([transcriber.inference_metadata["most_frequent_word"]] * max(1, round(expected)))


def _rates(clips: Sequence[Clip], heard: Sequence[str]) -> dict[str, float]:
    said = [clip.said for clip in clips]
    return {"wer": word_error_rate(said, heard), "cer": character_error_rate(said, heard)}


def _kept_for_validation(transcriber: Transcriber) -> Iterator[Clip]:
    """The recordings that the run's training kept out."""
    data = transcriber.recipe.data
    prepared, wording = prepare(data), Wording(data.language)
    index, kept = prepared.index, set(transcriber.inference_metadata["validation"])
    for position in range(len(index)):
        if index.id[position] in kept:
            speaker = prepared.speakers[int(index.speaker[position])]
            said = wording(index.text[position])
            yield Clip(index.id[position], speaker, said, prepared.cache.waveform(position))


def _clips_of(transcriber: Transcriber, data: str) -> Iterator[Clip]:
    """The recordings of the corpus `data` that have a text which can be said."""
    settings = transcriber.recipe.data
    wording = Wording(settings.language)
    checked, report = check_corpus(
        settings.model_copy(update={"path": data, "format": "auto", "drop": None, "limit": None})
    )
    if report.refused:
        logger.warning("%s: %d rows can't be used; phonate data check says why", data, len(report.refused))
    for one in checked:
        row = one.row
        if not row.text:
            continue
        try:
            said = wording(row.text)
        except InputError as error:
            logger.warning("%s: left out: %s", row.id, error)
            continue
        yield Clip(row.id, str(row.speaker), said, load_row(row, transcriber.processor.config.sample_rate), row.path)


def _overlap(transcriber: Transcriber, clips: Sequence[Clip]) -> dict[str, int | None]:
    """How many of `clips`, and of their speakers, the model was trained on; None where its corpus is not here any
    more."""
    settings = transcriber.recipe.data
    try:
        listed = [row for row in list_corpus(settings)[0] if isinstance(row, Row)]
    except PhonateError as error:
        logger.warning("can't tell whether these recordings were trained on: %s", error)
        return {"trained_on": None, "speakers_trained_on": None}
    kept = set(transcriber.inference_metadata["validation"])
    trained = [row for row in listed if row.id not in kept]
    paths = {row.path.resolve() for row in trained}
    known = sum(clip.path is not None and clip.path.resolve() in paths for clip in clips)
    if known:
        logger.warning("%d of %d recordings to judge by were trained on: the figures flatter it", known, len(clips))
    speakers = {clip.speaker for clip in clips} & {str(row.speaker) for row in trained}
    return {"trained_on": known, "speakers_trained_on": len(speakers)}
