"""Evaluation of a voice: held-out texts are synthesised, judged, and compared with recordings.

The model is compared with the natural recordings and their copies by the vocoder, to show which part limits quality:
the vocoder if the copies are bad, the acoustic model if only the synthesised speech is; and with the voice that
training began from, to show what it gained.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from phonate.audio.decoding import FloatArray, resample
from phonate.audio.processor import PEAK, normalised_peak
from phonate.config.errors import DataError, InputError, optional_package, unreadable
from phonate.config.language_codes import is_english, primary
from phonate.config.words import number_of
from phonate.data.corpora.validation import has_words
from phonate.data.parallel import track
from phonate.evaluation.distances import Distances, distances
from phonate.evaluation.held_out import Clip, Sentence, clips_of, kept_for_validation, trained_on
from phonate.evaluation.tables import RTF, Evaluation, before_training, legend
from phonate.evaluation.words import (
    WordErrors,
    character_error_rate,
    count_word_errors,
    word_edits,
    word_error_rate,
)
from phonate.pretrained import (
    WORD_ERRORS,
    MosPredictor,
    SpeakerEncoder,
    Transcriber,
    judge_notes,
    judge_of,
    require,
    speaker_note,
)
from phonate.tasks.speech.inference import Synthesiser
from phonate.tasks.speech.settings import SpeechRecipe
from phonate.tasks.speech.start import BASE
from phonate.training.checkpoints.files import is_packaged
from phonate.training.checkpoints.loading import describe_trained

if TYPE_CHECKING:
    import torch

logger = logging.getLogger("phonate")

# ------------------- Judges of synthesised speech: a recogniser, a MOS predictor and a speaker encoder

WORD_WEIGHT = 5.0
"""MOS points subtracted in `quality` per unit of WER: 20 % of wrong words cost one point."""


class Judges:
    """The judges, None where they are not installed."""

    def __init__(self, language: str, device: str | torch.device = "cpu") -> None:
        self.english = is_english(language)
        self._device = device
        self.recogniser = judge_of("WER, CER", partial(self._transcriber, language))

    def load(self, recordings: bool) -> None:
        """Load all that are needed with or without `recordings` to compare with, so that what is missing is said before
        there is anything to judge."""
        _ = self.naturalness, recordings and (self.speakers, self.distances)

    def _transcriber(self, language: str) -> Transcriber:
        if not self.english:
            return Transcriber("base", primary(language), device=self._device)
        require("counting word errors", WORD_ERRORS)
        return Transcriber("tiny.en", "en", device=self._device)

    @cached_property
    def naturalness(self) -> MosPredictor | None:
        """Predicts listeners' scores."""
        return judge_of("MOS", lambda: MosPredictor(device=self._device))

    @cached_property
    def speakers(self) -> SpeakerEncoder | None:
        """Compares voices."""
        return judge_of("speaker similarity", lambda: SpeakerEncoder(device=self._device))

    @cached_property
    def distances(self) -> Callable[..., Distances] | None:
        """Compares recordings of one text frame by frame."""
        needed = judge_of(
            "MCD, F0 error, voicing error", lambda: optional_package("librosa", "aligning two recordings")
        )
        return None if needed is None else distances

    def word_edits(self, references: Sequence[str], hypotheses: Sequence[str]) -> tuple[int, int]:
        """Word edits, and words of the texts."""
        if self.english:
            errors = count_word_errors(references, hypotheses)
            return errors.substituted + errors.inserted + errors.deleted, errors.words
        return word_edits(references, hypotheses)

    def word_errors(self, references: Sequence[str], hypotheses: Sequence[str]) -> dict[str, float]:
        """wer and cer; for English also skipped and repeated words."""
        rates = {"wer": word_error_rate(references, hypotheses), "cer": character_error_rate(references, hypotheses)}
        if self.english:
            errors: WordErrors = count_word_errors(references, hypotheses)
            rates |= {"wer": errors.rate, "skipped": float(errors.skipped), "repeated": float(errors.repeated)}
        return rates


def judged(
    judges: Judges, clips: Sequence[Clip], waveforms: Sequence[FloatArray], rate: int
) -> dict[str, tuple[float, float]]:
    """Sum and count of `wer` (word errors, words), `mos` (predicted scores, clips) and `speaker` (similarities, clips
    whose recording has speech) of synthesised texts.

    Args:
        clips: The texts, with their recordings.
        waveforms: One array (samples,) for each of them.
        rate: Samples per second.
    """
    recogniser, naturalness, speakers = judges.recogniser, judges.naturalness, judges.speakers
    assert recogniser is not None, "check_judges"
    assert naturalness is not None, "check_judges"
    assert speakers is not None, "check_judges"
    hypotheses = [recogniser.transcribe(waveform, rate) for waveform in waveforms]
    scores = [
        naturalness.score_synthesised(waveform, rate, clip.id) for clip, waveform in zip(clips, waveforms, strict=True)
    ]
    pairs = zip(clips, waveforms, strict=True)
    alike = [one for pair in pairs if (one := _similarity(speakers, *pair, rate)) is not None]
    return {
        "wer": judges.word_edits([clip.text for clip in clips], hypotheses),
        "mos": (float(np.sum(scores)), len(scores)),
        "speaker": (float(np.sum(alike)), len(alike)),
    }


def _similarity(speakers: SpeakerEncoder, clip: Clip, waveform: FloatArray, rate: int) -> float | None:
    """Cosine of the voices of a waveform (N,) and the recording of its text. 0 where the waveform has no speech, as
    before a model has learnt any; None where the recording has none."""
    try:
        natural = speakers.embed(clip.waveform, rate, clip.id)
    except DataError:
        return None
    try:
        return float(speakers.embed(waveform, rate, clip.id) @ natural)
    except DataError:
        return 0.0


def quality(mos: float, wer: float) -> float:
    """Predicted score minus 5 times the word error rate."""
    return mos - WORD_WEIGHT * wer


# ------------------------------------------------------------------------------- Evaluation of a voice

MOST = 200
"""Number of texts synthesised at most."""
SOUNDS = 6
"""Number of texts with sounds of every system in the report."""
_SPOKEN = "this voice"
_MEANINGS = {
    "wer": "word errors of the recogniser",
    "cer": "its character errors",
    "skipped, repeated": "words omitted or said again",
    "mos": "predicted mean opinion score, 1 to 5",
    "speaker": "cosine of voices with the natural recording",
    "mcd": "mel cepstral distortion in dB",
    "f0": "difference of pitch in cents",
    "voicing": "share of frames voiced in only one",
    "seconds": "length relative to the natural one",
    "rtf": RTF,
}
_ENGLISH = {
    "cer": 'its character errors; "140" for "one hundred and forty" counts in CER alone, "3.45" for "3:45" in WER alone'
}


def evaluate(
    run: Path, data: str | None = None, *, vocoder: str | None = None, device: str | None = None
) -> Evaluation:
    """Evaluate the voice of `run` on the texts of the corpus `data` (None: its validation recordings).

    Uses the vocoder run `vocoder` (None: the recipe's) and computes on `device` (None: cpu). `data` may also be a .txt
    file with one sentence per line; without recordings, only the model is judged.

    Raises InputError if there is no text, or if the run does not know the speaker.
    """
    synthesiser = Synthesiser.load(run, vocoder, device=device)
    texts = list(_clips(synthesiser, data))
    if not texts:
        raise InputError(f"{data or run}: no recordings with texts to evaluate on")
    clips = texts[:: math.ceil(len(texts) / MOST)]
    if len(clips) < len(texts):
        logger.info("of %d texts, %d are synthesised, spread over all of them", len(texts), len(clips))
    overlap = {} if data is None else _overlap(synthesiser, run, clips)
    judges = Judges(synthesiser.data.language, synthesiser.device)
    recordings = isinstance(clips[0], Clip)
    judges.load(recordings)
    systems: dict[str, Callable[[Any], FloatArray]] = {}
    if recordings:
        systems["natural"] = lambda clip: clip.waveform
        systems[f"{synthesiser.render.name} copy"] = lambda clip: _copy(synthesiser, clip.waveform)
    systems |= _before(synthesiser, run, vocoder)
    systems[_SPOKEN] = lambda clip: synthesiser.speak(clip.text, clip.speaker)
    results: dict[str, dict[str, float]] = {}
    items: dict[str, dict[str, Any]] = {}
    sounds: dict[str, dict[str, FloatArray]] = {f"{clip.id}: {clip.text}": {} for clip in clips[:SOUNDS]}
    for name, system in systems.items():
        logger.info("judging: %s (%s)", name, number_of(len(clips), "text"))
        started = time.perf_counter()
        waveforms = [system(clip) for clip in track(f"{name}: making", clips)]
        spent = time.perf_counter() - started
        for own, waveform in zip(sounds.values(), waveforms, strict=False):
            own[name] = waveform
        samples = sum(map(len, waveforms))
        results[name], judged_items = _judge(judges, clips, waveforms, synthesiser.sample_rate)
        if name == _SPOKEN:
            items = judged_items
        if name != "natural":
            results[name]["rtf"] = spent * synthesiser.sample_rate / samples
    notes = {
        "texts": len(clips),
        "words": sum(len(clip.text.split()) for clip in clips),
        "seconds": round(samples / synthesiser.sample_rate, 1),
        **judge_notes(judges.recogniser, judges.naturalness),
        **(speaker_note(judges.speakers) if recordings else {}),
        **overlap,
    }
    meaning = legend(_MEANINGS | (_ENGLISH if judges.english else {}), results)
    return Evaluation("speech", results, _SPOKEN, meaning, notes, items, sounds, synthesiser.sample_rate)


def _overlap(synthesiser: Synthesiser, run: Path, clips: Sequence[Sentence]) -> dict[str, int | None]:
    """How many of the recordings a run of one's own was trained on."""
    recordings = [clip for clip in clips if isinstance(clip, Clip)]
    if not recordings or is_packaged(run):
        return {}
    overlap = trained_on(synthesiser.data, synthesiser.inference_metadata["validation"], recordings)
    return {"recordings_trained_on": None if overlap is None else overlap.recordings}


def _before(synthesiser: Synthesiser, run: Path, vocoder: str | None) -> dict[str, Callable[[Sentence], FloatArray]]:
    """The voice that training began from, where it speaks the same language."""
    source = describe_trained(run, "speech", SpeechRecipe).recipe.training.init_from
    load = partial(Synthesiser.load, vocoder=vocoder, device=str(synthesiser.device))
    return {
        name: partial(_spoken_by, voice, synthesiser.sample_rate)
        for name, voice in before_training(None if source == BASE else source, load).items()
        if primary(voice.inventory.language) == primary(synthesiser.data.language)
    }


def _spoken_by(voice: Synthesiser, rate: int, clip: Sentence) -> FloatArray:
    """The text in the clip's voice, or else in the first one, at `rate` Hz."""
    waveform = voice.speak(clip.text, clip.speaker if clip.speaker in voice.speakers else None)
    return waveform if voice.sample_rate == rate else resample(waveform, voice.sample_rate, rate)


def _copy(synthesiser: Synthesiser, waveform: FloatArray) -> FloatArray:
    return PEAK * normalised_peak(synthesiser.render(synthesiser.processor.mel(waveform)))


def _clips(synthesiser: Synthesiser, data: str | None) -> Iterator[Sentence]:
    if data is None:
        validation_ids = synthesiser.inference_metadata["validation"]
        return _clips_with_texts(synthesiser, kept_for_validation(synthesiser.data, validation_ids))
    lines = _lines(Path(data))
    if not lines or any("|" in line for line in lines):  # such as wav|text
        return _clips_with_texts(synthesiser, clips_of(synthesiser.data, data))
    first = synthesiser.speakers[0]
    for number, line in enumerate(lines, start=1):
        if not has_words(line):
            raise DataError(f"{data}: sentence {number}, {line!r}, has no words; leave it out")
    return (Sentence(f"{Path(data).stem}:{number}", first, line) for number, line in enumerate(lines, start=1))


def _lines(path: Path) -> list[str]:
    """The contents of a text file; empty if `path` is not one."""
    if path.suffix != ".txt" or not path.is_file():
        return []
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is not UTF-8 ({unreadable(error)}); convert it") from error
    return [line.strip() for line in text.splitlines() if line.strip()]


def _clips_with_texts(synthesiser: Synthesiser, clips: Iterable[Clip]) -> Iterator[Clip]:
    """The clips with texts. A single-speaker voice speaks all of them."""
    for clip in clips:
        if clip.text:
            one = synthesiser.speakers[0] if len(synthesiser.speakers) == 1 else clip.speaker
            synthesiser.speaker(one)  # fail early
            yield replace(clip, speaker=one)


def _judge(
    judges: Judges, clips: Sequence[Sentence], waveforms: Sequence[FloatArray], rate: int
) -> tuple[dict[str, float], dict[str, dict[str, Any]]]:
    """Metrics of one system's `waveforms`, and the values of each."""
    items: dict[str, dict[str, Any]] = {}
    for clip, waveform in track("judging", list(zip(clips, waveforms, strict=True))):
        natural = isinstance(clip, Clip) and waveform is clip.waveform
        items[clip.id] = {"text": clip.text}
        if judges.recogniser is not None:
            hypothesis = judges.recogniser.transcribe(waveform, rate)
            items[clip.id] |= {"heard": hypothesis, **judges.word_errors([clip.text], [hypothesis])}
        if judges.naturalness is not None:
            score = judges.naturalness.score if natural else judges.naturalness.score_synthesised
            items[clip.id]["mos"] = score(waveform, rate, clip.id)
        if isinstance(clip, Clip):
            items[clip.id]["seconds"] = len(waveform) / len(clip.waveform)
            if not natural:
                items[clip.id] |= _against(judges, clip, waveform, rate)
    metrics: dict[str, float] = {}
    if judges.recogniser is not None:
        metrics = judges.word_errors([clip.text for clip in clips], [item["heard"] for item in items.values()])
    for name in ("mos", "speaker", "mcd", "f0", "voicing", "seconds"):
        values = [item[name] for item in items.values() if item.get(name) is not None]
        if values:
            metrics[name] = float(np.mean(values))
    return metrics, items


def _against(judges: Judges, clip: Clip, waveform: FloatArray, rate: int) -> dict[str, float | None]:
    """Distances from the natural recording; None if one can't be measured."""
    measured: dict[str, float | None] = {}
    try:
        if judges.speakers is not None:
            embedding, natural = (judges.speakers.embed(sound, rate, clip.id) for sound in (waveform, clip.waveform))
            measured["speaker"] = float(embedding @ natural)
        if judges.distances is not None:
            measures = judges.distances(waveform, clip.waveform, rate, clip.id)
            measured |= {
                "mcd": measures.mel_cepstral_distortion,
                "f0": None if math.isnan(measures.f0_rmse) else measures.f0_rmse,
                "voicing": measures.voicing_error,
            }
    except DataError as error:
        logger.warning("%s", error)
        return {}
    return measured
