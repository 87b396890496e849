"""How good a converter is, measured by judges that had no part in its training.

Each clip of the evaluation corpus whose speaker is not the target is converted; the target's own clips are the
reference. Beside the model stand the natural clip, its Griffin-Lim copy, the conversion without a model, and,
as the ceiling, the target herself through the same Griffin-Lim.

A falling similarity to the source proves nothing (blur lowers it) and neither does a small loss (a model that
copies its input has the smallest): read `closer`, `first`, `pair` and `cer` together.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from phonate.audio.decoding import FloatArray
from phonate.audio.pitch import median_f0
from phonate.audio.processor import AudioProcessor
from phonate.config.errors import InputError
from phonate.data.manifest import check_corpus
from phonate.data.prepared import prepare
from phonate.evaluation.speaker_similarity import Embedding, SpeakerJudge, similarity
from phonate.evaluation.tables import Evaluation
from phonate.evaluation.transcription import (
    Recogniser,
    character_error_rate,
    plain,
    whisper_model,
    word_error_rate,
)
from phonate.tasks.conversion.baseline import Baseline
from phonate.tasks.conversion.inference import Converter
from phonate.tasks.conversion.settings import ConversionData

logger = logging.getLogger("phonate")

MOST_SOURCES = 12
MOST_REFERENCES = 30
RANKED_SPEAKERS = 50
SOUNDS = 4
"""Sources of which the report plays every system's sound."""
_JUDGES = ("base", "tiny.en")
_CONVERTED = "converted"
_LEGEND = (
    "pair: mean cosine to single clips of the target; own: to other clips of the source's speaker; closer: share "
    "of clips nearer to the target's profile than to their own speaker's; first: share for which the target ranks "
    "first of all speakers; *_single: the same against single clips; cer, wer: errors of the recogniser; f0 in Hz."
)


@dataclass
class Clip:
    """A recording to judge by."""

    id: str
    speaker: str
    waveform: FloatArray
    text: str = ""


@dataclass
class Source:
    """A clip to convert, with other recordings of its speaker."""

    clip: Clip
    own: list[Embedding] = field(default_factory=list)
    share: float = 1.0
    """How much of the converted clip the speaker judge hears, from its beginning."""


class Judges:
    """The judges of one evaluation, and what they know of the target and the other speakers."""

    def __init__(self, converter: Converter, target: Sequence[Clip], others: dict[str, list[Embedding]]) -> None:
        self.rate = converter.sample_rate
        self.speakers = SpeakerJudge()
        data: ConversionData = converter.extractor.data
        heard = data.whisper_model if data.content == "whisper" else ""
        # Whoever lent the content features can't be asked how clear the words are.
        self.recogniser = independent_recogniser(heard)
        self.target = [self.embed(clip.waveform, clip.id) for clip in target]
        self.others = others

    def embed(self, waveform: FloatArray, name: str) -> Embedding:
        """Voice of a recording."""
        return self.speakers.embed(waveform, self.rate, name)

    def transcribe(self, waveform: FloatArray) -> str:
        """Words of a recording."""
        return self.recogniser.transcribe(waveform, self.rate)


def independent_recogniser(encoder: str) -> Recogniser:
    """A recogniser that is not `encoder`, the model whose features were the content; one that is here if possible."""
    candidates = [name for name in _JUDGES if name != encoder]
    here = [name for name in candidates if Path(whisper_model(name)).is_dir()]
    return Recogniser([*here, *candidates][0])


def centre(embeddings: Sequence[Embedding]) -> Embedding:
    """The profile of an enrolled speaker: the mean of the clips' embeddings, at unit length."""
    mean = np.mean(embeddings, axis=0)
    return np.asarray(mean / np.linalg.norm(mean), dtype=np.float32)


def evaluate(run: Path, data: str | None = None) -> Evaluation:
    """Judge the converter of `run` on the corpus `data`, or on the recipe's validation recordings.

    Raises InputError when there is no clip of the target, or nothing to convert, in that corpus.
    """
    converter = Converter.load(run)
    settings: ConversionData = converter.extractor.data
    target, sources, rest = _divided(converter, _clips(settings, data))
    judges = Judges(converter, target, {})
    _know_speakers(judges, sources, rest)
    references = [source.clip.text or judges.transcribe(source.clip.waveform) for source in sources]
    baseline = Baseline(converter.extractor.processor, [clip.waveform for clip in target])
    systems: dict[str, Callable[[FloatArray], FloatArray]] = {
        "natural": lambda waveform: waveform,
        "Griffin-Lim copy": lambda waveform: _copy(converter, waveform),
        "no model": baseline,
        _CONVERTED: converter.convert,
    }
    results: dict[str, dict[str, float]] = {}
    items: dict[str, dict[str, Any]] = {}
    sounds: dict[str, dict[str, FloatArray]] = {source.clip.id: {} for source in sources[:SOUNDS]}
    for name, system in systems.items():
        logger.info("judging: %s", name)
        waveforms = [system(source.clip.waveform) for source in sources]
        for own, waveform in zip(sounds.values(), waveforms, strict=False):
            own[name] = waveform
        results[name], said = _judge(judges, waveforms, sources, references)
        if name == _CONVERTED:
            items = said
    results["ceiling: target, Griffin-Lim copy"] = _ceiling(judges, converter, target)
    for own in sounds.values():
        own[f"{converter.target}, saying something else"] = target[0].waveform
    notes = {
        "target": converter.target,
        "clips": len(sources),
        "speakers": len({source.clip.speaker for source in sources}),
        "target_clips": len(target),
        "ranked_among": 1 + len(judges.others),
        "speaker_judge": "resemblyzer",
        "recogniser": judges.recogniser.name,
        "references": "texts" if all(s.clip.text for s in sources) else "transcripts of the natural clips",
    }
    return Evaluation("conversion", results, _CONVERTED, _LEGEND, notes, items, sounds, converter.sample_rate)


def _clips(settings: ConversionData, data: str | None) -> Iterator[Clip]:
    """The recordings of the evaluation corpus, loaded one by one."""
    if data is None:
        prepared = prepare(settings)
        index, speakers = prepared.index, prepared.speakers
        for position in prepared.validation:
            speaker = speakers[int(index.speaker[position])]
            yield Clip(index.id[position], speaker, prepared.cache.waveform(int(position)), index.text[position])
        return
    processor = AudioProcessor(settings.audio)
    checked, _ = check_corpus(settings.model_copy(update={"path": data, "format": "auto"}))
    for one in checked:
        yield Clip(one.row.id, str(one.row.speaker), processor.load(one.row.path), one.row.text or "")


def _divided(converter: Converter, clips: Iterable[Clip]) -> tuple[list[Clip], list[Source], dict[str, list[Clip]]]:
    """Clips of the target; clips to convert, of as many speakers as there are; and each speaker's other clips."""
    by_speaker: dict[str, list[Clip]] = {}
    for clip in clips:
        by_speaker.setdefault(clip.speaker, []).append(clip)
    target = by_speaker.pop(converter.target, [])[:MOST_REFERENCES]
    if not target:
        raise InputError(f"the evaluation corpus holds no clip of the target {converter.target!r} to compare with")
    if not by_speaker:
        raise InputError(f"the evaluation corpus holds only {converter.target!r}: there is nothing to convert")
    sources: list[Source] = []
    turn = 0
    while len(sources) < MOST_SOURCES and any(len(own) > turn for own in by_speaker.values()):
        sources += [Source(own[turn]) for own in by_speaker.values() if len(own) > turn]
        turn += 1
    sources = sources[:MOST_SOURCES]
    chosen = {source.clip.id for source in sources}
    rest = {name: [clip for clip in own if clip.id not in chosen] for name, own in by_speaker.items()}
    return target, sources, rest


def _know_speakers(judges: Judges, sources: Sequence[Source], rest: dict[str, list[Clip]]) -> None:
    """Embed each source speaker's other recordings, and the voices among which the target must come first.

    A speaker of a single clip is known by its second half, and converted speech is then compared by its first:
    the same words in the same breath would count as a likeness of voices.
    """
    for source in sources:
        others = rest[source.clip.speaker]
        if others:
            source.own = [judges.embed(clip.waveform, clip.id) for clip in others]
        else:
            source.share = 0.5
            source.own = [judges.embed(source.clip.waveform[len(source.clip.waveform) // 2 :], source.clip.id)]
        judges.others[source.clip.speaker] = source.own
    for name, clips in rest.items():
        if name not in judges.others and len(judges.others) < RANKED_SPEAKERS - 1 and clips:
            judges.others[name] = [judges.embed(clip.waveform, clip.id) for clip in clips]


def _copy(converter: Converter, waveform: FloatArray) -> FloatArray:
    processor = converter.extractor.processor
    return processor.waveform(processor.mel(waveform))


def _judge(
    judges: Judges,
    waveforms: Sequence[FloatArray],
    sources: Sequence[Source],
    references: Sequence[str],
) -> tuple[dict[str, float], dict[str, dict[str, Any]]]:
    """Metrics of one system's `waveforms` of all sources, and what was measured on each."""
    items: dict[str, dict[str, Any]] = {}
    profile = centre(judges.target)
    for source, waveform, reference in zip(sources, waveforms, references, strict=True):
        voice = judges.embed(waveform[: int(len(waveform) * source.share)], source.clip.id)
        heard = judges.transcribe(waveform)
        to_target = similarity(voice, judges.target)
        enrolled = float(voice @ profile)
        items[source.clip.id] = {
            "speaker": source.clip.speaker,
            "pair": to_target,
            "own": similarity(voice, source.own),
            "closer": enrolled > float(voice @ centre(source.own)),
            "closer_single": to_target > similarity(voice, source.own),
            "first": all(enrolled > float(voice @ centre(other)) for other in judges.others.values()),
            "first_single": all(to_target > similarity(voice, other) for other in judges.others.values()),
            "cer": character_error_rate([reference], [heard]),
            "f0": _finite(median_f0(waveform, judges.rate)),
            "reference": plain(reference),
            "heard": plain(heard),
        }
    texts = [(item["reference"], item["heard"]) for item in items.values()]
    metrics = {
        name: float(np.mean([item[name] for item in items.values()]))
        for name in ("pair", "own", "closer", "closer_single", "first", "first_single")
    }
    metrics["cer"] = character_error_rate(*zip(*texts, strict=True))
    metrics["wer"] = word_error_rate(*zip(*texts, strict=True))
    return {**metrics, **_median_pitch([item["f0"] for item in items.values()])}, items


def _ceiling(judges: Judges, converter: Converter, target: Sequence[Clip]) -> dict[str, float]:
    """The target's own clips, through Griffin-Lim, against her other clips."""
    pairs: list[float] = []
    pitch: list[float | None] = []
    for number, clip in enumerate(target):
        waveform = _copy(converter, clip.waveform)
        rest = judges.target[:number] + judges.target[number + 1 :]
        if rest:
            pairs.append(similarity(judges.embed(waveform, clip.id), rest))
        pitch.append(_finite(median_f0(waveform, judges.rate)))
    return {**({"pair": float(np.mean(pairs))} if pairs else {}), **_median_pitch(pitch)}


def _finite(hertz: float) -> float | None:
    """A pitch, or None where nothing was voiced (JSON has no NaN)."""
    return hertz if np.isfinite(hertz) else None


def _median_pitch(hertz: Sequence[float | None]) -> dict[str, float]:
    voiced = [value for value in hertz if value is not None]
    return {"f0": float(np.median(voiced))} if voiced else {}
