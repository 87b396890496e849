"""Evaluation of a converter by independent judges, which were not used in its training.

Each clip of the evaluation corpus whose speaker is not the target is converted; the target's own clips are the
reference. The model is compared with the natural clip, its copy by the vocoder, conversion without a model and, as the
upper bound, the target's own recordings copied by the same vocoder.

Neither a low similarity to the source (blurring lowers it) nor a small loss (copying the input gives the smallest)
shows that conversion works: read `closer`, `first`, `pair` and `cer` together.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from phonate.audio.decoding import FloatArray
from phonate.audio.pitch import median_f0
from phonate.audio.processor import normalised_peak
from phonate.config.errors import DataError, InputError
from phonate.data.manifests.dropping import warn_left_out
from phonate.data.progress import track
from phonate.evaluation.held_out import Clip, clips_of, kept_for_validation, trained_on
from phonate.evaluation.speaker_similarity import similarity
from phonate.evaluation.tables import Column, Evaluation
from phonate.evaluation.transcription import (
    character_error_rate,
    plain,
    word_error_rate,
)
from phonate.tasks.conversion.baseline import Baseline
from phonate.tasks.conversion.inference import Converter
from phonate.tasks.conversion.judges import Judges, Source, know_speakers, reference

logger = logging.getLogger("phonate")

MOST_SOURCES = 12
MOST_REFERENCES = 30
SOUNDS = 4
"""Number of sources with sounds of every system in the report."""
_CONVERTED = "converted"
_PEAK = 0.95
_MEDIAN_F0 = Column("median F0", "Hz")
_LEGEND = (
    "pair: mean cosine to single clips of the target; own: to single other clips of the source's speaker; closer: "
    "share nearer to the target's profile than to that of their own speaker; first: share for which the target's "
    "profile ranks first among all speakers, with profiles of equal length; cer, wer: errors of the recogniser; "
    "mos: predicted mean opinion score, 1 to 5; f0 in Hz."
)


def evaluate(
    run: Path, data: str | None = None, *, vocoder: str | None = None, device: str | None = None
) -> Evaluation:
    """Evaluate the converter of `run` on the corpus `data` (None: its validation recordings), with the vocoder run
    `vocoder` (None: the recipe's), on `device` (None: cpu).

    Raises InputError if the corpus has no clip of the target or nothing to convert, and DataError if the judges find no
    speech in a recording.
    """
    converter = Converter.load(run, vocoder, device=device)
    settings, kept = converter.extractor.data, converter.inference_metadata["validation"]
    clips = kept_for_validation(settings, kept) if data is None else clips_of(settings, data)
    target, sources, rest = _divided(converter, clips)
    judges = Judges(converter, target)
    sources, texts, refused = _with_references(judges, sources)
    know_speakers(judges, sources, rest, target)
    baseline = Baseline(converter.extractor.processor, [clip.waveform for clip in target])
    systems: dict[str, Callable[[FloatArray], FloatArray]] = {
        "natural": lambda waveform: waveform,
        f"{converter.render.name} copy": lambda waveform: _copy(converter, waveform),
        "no model": baseline,
        _CONVERTED: converter.convert,
    }
    results: dict[str, dict[str, float]] = {}
    items: dict[str, dict[str, Any]] = {}
    sounds: dict[str, dict[str, FloatArray]] = {source.clip.id: {} for source in sources[:SOUNDS]}
    for name, system in systems.items():
        logger.info("judging: %s", name)
        waveforms = [system(source.clip.waveform) for source in track(f"{name}: making", sources)]
        for own, waveform in zip(sounds.values(), waveforms, strict=False):
            own[name] = waveform
        results[name], said = _judge(judges, waveforms, sources, texts)
        if name == _CONVERTED:
            items = said
    results[f"ceiling: target, {converter.render.name} copy"] = _ceiling(judges, converter, target)
    for own in sounds.values():
        own[f"{converter.target}, saying something else"] = target[0].waveform
    overlap = trained_on(settings, kept, [*target, *(source.clip for source in sources)])
    notes = {
        "target": converter.target,
        "clips": len(sources),
        "speakers": len({source.clip.speaker for source in sources}),
        "target_clips": len(target),
        "ranked_among": 1 + len(judges.profiles),
        "speaker_judge": "resemblyzer",
        "recogniser": f"{judges.recogniser.name}, {judges.recogniser.language}",
        "naturalness": "not judged: distillmos is not installed" if judges.naturalness is None else "distillmos",
        "trained_on": overlap and overlap.recordings,
        "references_refused": refused,
        "references": "texts" if all(s.clip.text for s in sources) else "transcripts of the natural clips",
    }
    return Evaluation(
        "conversion", results, _CONVERTED, _LEGEND, notes, items, sounds, converter.sample_rate, {"f0": _MEDIAN_F0}
    )


def _with_references(judges: Judges, sources: Sequence[Source]) -> tuple[list[Source], list[str], int]:
    """The sources with known words, their words, and the number of others, which are named in a warning.

    Raises DataError if no source is left.
    """
    kept: list[Source] = []
    texts: list[str] = []
    refused: list[str] = []
    for source in sources:
        try:
            texts.append(reference(judges, source.clip))
            kept.append(source)
        except DataError as error:
            refused.append(str(error))
    if not kept:
        raise DataError(f"no clip of the evaluation corpus has words to compare with; the first: {refused[0]}")
    warn_left_out("can't be judged by their words", refused)
    return kept, texts, len(refused)


def _divided(converter: Converter, clips: Iterable[Clip]) -> tuple[list[Clip], list[Source], dict[str, list[Clip]]]:
    """Clips of the target; clips to convert, from as many speakers as possible; and each speaker's other clips."""
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


def _copy(converter: Converter, waveform: FloatArray) -> FloatArray:
    return _PEAK * normalised_peak(converter.render(converter.extractor.processor.mel(waveform)))


def _judge(
    judges: Judges,
    waveforms: Sequence[FloatArray],
    sources: Sequence[Source],
    references: Sequence[str],
) -> tuple[dict[str, float], dict[str, dict[str, Any]]]:
    """Metrics of one system's `waveforms` of all sources, and the values of each."""
    items: dict[str, dict[str, Any]] = {}
    for source, waveform, text in track("judging", list(zip(sources, waveforms, references, strict=True))):
        voice = judges.embed_made(waveform[: int(len(waveform) * source.share)])
        heard = judges.transcribe(waveform)
        to_target = [float(voice @ one) for one in judges.target_profiles]
        to_own = float(voice @ judges.profiles[source.clip.speaker])
        to_others = max(float(voice @ one) for one in judges.profiles.values())
        items[source.clip.id] = {
            "speaker": source.clip.speaker,
            "pair": similarity(voice, judges.target),
            "own": similarity(voice, source.own),
            "closer": float(np.mean([one > to_own for one in to_target])),
            "first": float(np.mean([one > to_others for one in to_target])),
            "cer": character_error_rate([text], [heard]),
            "mos": judges.mos(waveform),
            "f0": _finite(median_f0(waveform, judges.rate)),
            "reference": plain(text),
            "heard": plain(heard),
        }
    texts = [(item["reference"], item["heard"]) for item in items.values()]
    metrics = {
        name: float(np.mean([item[name] for item in items.values()])) for name in ("pair", "own", "closer", "first")
    }
    metrics["cer"] = character_error_rate(*zip(*texts, strict=True))
    metrics["wer"] = word_error_rate(*zip(*texts, strict=True))
    metrics |= _mean_mos([item["mos"] for item in items.values()])
    return {**metrics, **_median_pitch([item["f0"] for item in items.values()])}, items


def _ceiling(judges: Judges, converter: Converter, target: Sequence[Clip]) -> dict[str, float]:
    """The target's own clips, copied by the vocoder, compared with the target's other clips."""
    pairs: list[float] = []
    pitch: list[float | None] = []
    scores: list[float | None] = []
    for number, clip in enumerate(target):
        waveform = _copy(converter, clip.waveform)
        scores.append(judges.mos(waveform))
        rest = judges.target[:number] + judges.target[number + 1 :]
        if rest:
            pairs.append(similarity(judges.embed(waveform, clip.id), rest))
        pitch.append(_finite(median_f0(waveform, judges.rate)))
    return {**({"pair": float(np.mean(pairs))} if pairs else {}), **_mean_mos(scores), **_median_pitch(pitch)}


def _mean_mos(scores: Sequence[float | None]) -> dict[str, float]:
    known = [score for score in scores if score is not None]
    return {"mos": float(np.mean(known))} if known else {}


def _finite(hertz: float) -> float | None:
    """The pitch, or None if nothing was voiced (JSON has no NaN)."""
    return hertz if np.isfinite(hertz) else None


def _median_pitch(hertz: Sequence[float | None]) -> dict[str, float]:
    voiced = [value for value in hertz if value is not None]
    return {"f0": float(np.median(voiced))} if voiced else {}
