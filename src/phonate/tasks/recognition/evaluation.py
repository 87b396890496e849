"""Evaluation of a recogniser: error rates on recordings with texts, compared with two baselines.

The baselines are the same network without training, or the Whisper that fine-tuning started from; and the most frequent
word of the training texts, repeated at their average speaking rate, regardless of the audio.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from phonate.audio.decoding import FloatArray
from phonate.audio.settings import AudioConfig
from phonate.audio.whisper import SAMPLE_RATE
from phonate.config.errors import InputError, option
from phonate.config.words import number_of
from phonate.data.corpora.lists import other_language
from phonate.data.corpora.rows import Segment
from phonate.data.labels import Texts
from phonate.data.parallel import track
from phonate.data.settings import VoiceData
from phonate.evaluation.held_out import Clip, clips_of, kept_for_validation, trained_on
from phonate.evaluation.tables import RTF, Evaluation, legend
from phonate.evaluation.words import character_error_rate, score_transcripts, word_error_rate
from phonate.tasks.recognition.data import Wording, as_spoken
from phonate.tasks.recognition.inference import Recogniser, Transcriber
from phonate.tasks.recognition.model import build_model
from phonate.tasks.recognition.whisper import FineTunedWhisper

logger = logging.getLogger("phonate")

ENGLISH = "en-us"
SOUNDS = 6
"""Number of recordings in the report."""
_MEANINGS = {
    "wer, cer": "words and letters substituted, deleted and inserted, relative to the reference",
    "cpwer, tcpwer": "the same of words where several people talk in a recording, of each of them in one piece, and of "
    "words that are said at the same time; segments and speakers are those of the corpus",
    "rtf": RTF,
}


class _Texts(VoiceData):
    """Recordings with texts in whatever language, by anybody, and of up to an hour."""

    audio: AudioConfig = AudioConfig(sample_rate=SAMPLE_RATE, max_seconds=3600.0)

    @property
    def tells_speakers_apart(self) -> bool:
        return False


def evaluate(
    run: Path, data: str | None = None, *, device: str | None = None, base: str | Path | None = None
) -> Evaluation:
    """Evaluate the recogniser of `run` on the recordings with texts of the corpus `data` (None: its validation
    recordings), on `device` (None: cpu). `base`: as for `Recogniser.load`.

    `run` may be a Whisper that was not trained here, too, which needs `data`. Raises InputError if there are none.
    """
    transcriber = Recogniser.load(run, device=device, base=base)
    trained = transcriber if isinstance(transcriber, Transcriber | FineTunedWhisper) else None
    clips, language = _clips(transcriber, run, data)
    if not clips:
        none = f"{run}: no validation recordings (data.validation); give recordings with {option('data')}"
        raise InputError(none if data is None else f"{data}: no recordings with texts to evaluate on")
    overlap = {} if trained is None else _overlap(trained, clips)
    name = f"Whisper {getattr(transcriber, 'name', run)}"
    systems, focus = ({name: transcriber.transcribe}, name) if trained is None else _systems(trained)
    spoken = str if isinstance(transcriber, Transcriber) else as_spoken(language)
    results: dict[str, dict[str, float]] = {}
    hypotheses: dict[str, list[str]] = {}
    rate = transcriber.sample_rate
    assert rate is not None
    seconds = sum(len(clip.waveform) for clip in clips) / rate
    for name, system in systems.items():
        logger.info("judging: %s (%s)", name, number_of(len(clips), "recording"))
        started = time.perf_counter()
        hypotheses[name] = [spoken(system(clip.waveform)) for clip in track(f"{name}: transcribing", clips)]
        rtf = (time.perf_counter() - started) / seconds
        rates = {**_rates(clips, hypotheses[name]), **_speaker_rates(clips, hypotheses[name], rate)}
        results[name] = {**rates, "rtf": rtf}
    items = {
        clip.id: {"speaker": clip.speaker, "text": clip.text, "heard": hypothesis, **_rates([clip], [hypothesis])}
        for clip, hypothesis in zip(clips, hypotheses[focus], strict=True)
    }
    notes = {
        "recordings": len(clips),
        "speakers": len({clip.speaker for clip in clips}),
        "words": sum(len(clip.text.split()) for clip in clips),
        "seconds": round(seconds, 1),
        **overlap,
    }
    sounds = {
        f"{clip.id}: {clip.text} (heard: {items[clip.id]['heard']})": {"recorded": clip.waveform}
        for clip in clips[:SOUNDS]
    }
    meaning = legend(_MEANINGS, results)
    start = trained.recipe.model.name if isinstance(trained, FineTunedWhisper) else ""
    start = start if start in systems else ""
    return Evaluation("recognition", results, focus, meaning, notes, items, sounds, rate, start=start)


def _clips(transcriber: Recogniser, run: Path, data: str | None) -> tuple[list[Clip], str]:
    """The recordings to evaluate on, with their texts as words, and the language of these."""
    if isinstance(transcriber, Transcriber | FineTunedWhisper):
        settings, held_out = transcriber.recipe.data, transcriber.inference_metadata["validation"]
        candidates = kept_for_validation(settings, held_out) if data is None else clips_of(settings, data)
        return list(_clips_with_words(candidates, settings.language)), settings.language
    if data is None:
        raise InputError(f"{run}: was not trained here; give recordings with texts with {option('data')}")
    clips = list(clips_of(_Texts(path=data), data))
    other = None if list(transcriber.languages) == ["en"] else other_language([clip.text for clip in clips], ENGLISH)
    language = (other and other.code) or ENGLISH
    return list(_clips_with_words(clips, language)), language


def _overlap(trained: Transcriber | FineTunedWhisper, clips: Sequence[Clip]) -> dict[str, int | None]:
    """How many of the recordings and speakers a run was trained on."""
    overlap = trained_on(trained.recipe.data, trained.inference_metadata["validation"], clips)
    return {
        "recordings_trained_on": None if overlap is None else overlap.recordings,
        "speakers_trained_on": None if overlap is None else overlap.speakers,
    }


def _systems(transcriber: Transcriber | FineTunedWhisper) -> tuple[dict[str, Callable[[FloatArray], str]], str]:
    """The evaluated systems by name, and the name of the one that the recipe configures."""
    beam = transcriber.recipe.model.beam
    systems: dict[str, Callable[[FloatArray], str]] = {
        "most frequent word": lambda waveform: _never_listening(transcriber, waveform),
        "greedy": lambda waveform: transcriber.transcribe(waveform, 1),
    }
    focus = f"beam {beam}"
    if isinstance(transcriber, Transcriber):
        untrained = _untrained(transcriber)
        systems = {"untrained": lambda waveform: untrained.transcribe(waveform, 1), **systems}
        focus += " and language model" if transcriber.fusion.model else ""
    elif (started_from := transcriber.started_from()) is not None:
        systems = {started_from.name: started_from.transcribe, **systems}
    if beam == 1:
        return systems, "greedy"
    systems[focus] = transcriber.transcribe
    return systems, focus


def _untrained(transcriber: Transcriber) -> Transcriber:
    recipe, symbols = transcriber.recipe, transcriber.symbols
    with torch.random.fork_rng():
        torch.manual_seed(recipe.training.random_seed)
        model = build_model(recipe.model, recipe.data.audio.n_mels, len(symbols))
    return Transcriber(model, recipe, symbols, None, transcriber.inference_metadata).to(transcriber.device)


def _never_listening(transcriber: Transcriber | FineTunedWhisper, waveform: FloatArray) -> str:
    """The most frequent word, repeated according to the duration and the speaking rate of the training texts."""
    expected = transcriber.inference_metadata["words_per_second"] * len(waveform) / transcriber.sample_rate
    return " ".join([transcriber.inference_metadata["most_frequent_word"]] * max(1, round(expected)))


def _rates(clips: Sequence[Clip], hypotheses: Sequence[str]) -> dict[str, float]:
    references = [clip.text for clip in clips]
    return {"wer": word_error_rate(references, hypotheses), "cer": character_error_rate(references, hypotheses)}


def _speaker_rates(clips: Sequence[Clip], hypotheses: Sequence[str], rate: int) -> dict[str, float]:
    """cpWER and tcpWER of the recordings, at `rate` Hz, in which several people talk; nothing where there are none."""
    reference: dict[str, list[Segment]] = {}
    hypothesis: dict[str, list[Segment]] = {}
    for clip, text in sorted(zip(clips, hypotheses, strict=True), key=lambda pair: pair[0].start):
        if clip.path is not None:
            end = clip.start + len(clip.waveform) / rate
            for texts, said in ((reference, clip.text), (hypothesis, text)):
                texts.setdefault(str(clip.path), []).append(Segment(clip.start, end, clip.speaker, said))
    several = [name for name, segments in reference.items() if len({one.speaker for one in segments}) > 1]
    if not several:
        return {}
    ref, hyp = ({name: Texts(texts[name], texts[name]) for name in several} for texts in (reference, hypothesis))
    document = score_transcripts(ref, hyp)["total"].document()
    return {name: float(document[name] or 0.0) for name in ("cpwer", "tcpwer")}


def _clips_with_words(clips: Iterable[Clip], language: str) -> Iterator[Clip]:
    """The clips with a text that can be spoken, with the text replaced by its words."""
    wording = Wording(language)
    for clip in clips:
        if not clip.text:
            continue
        try:
            yield replace(clip, text=wording(clip.text))
        except InputError as error:
            logger.warning("%s: skipped: %s", clip.id, error)
