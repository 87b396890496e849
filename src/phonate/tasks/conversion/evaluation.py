"""Evaluation of a converter by independent judges, beside a baseline and the ceiling.

Each clip of the evaluation corpus whose speaker is not the target is converted; the target's own clips are the
reference. A model that is given voices by recordings has several targets in the corpus, each given by some of its clips
and compared with others. The baselines are the natural clip, its copy by the vocoder and conversion without a model;
the upper bound is the target's own recordings, copied by the same vocoder.

Conversion without a model shifts the pitch by the ratio of the two speakers' medians, and equalises the mean spectrum
of the source to the target's. Words remain clear; formants, breathiness and style remain those of the source.

Neither a low similarity to the source (blurring lowers it) nor a small loss (copying the input gives the smallest)
shows that conversion works: read `closer`, `first`, `pair` and `cer` together.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from phonate.audio.decoding import FloatArray
from phonate.audio.pitch import median_f0, voice_f0
from phonate.audio.processor import PEAK, AudioProcessor, normalised_peak
from phonate.audio.whisper import best_included, weights_fingerprint
from phonate.config.errors import DataError, InputError, option, optional_package
from phonate.config.metrics import Metric, by_name
from phonate.data.corpora.validation import warn_left_out
from phonate.data.parallel import track
from phonate.data.prepared import PreparedCorpus, prepare
from phonate.evaluation.held_out import Clip, clips_of, kept_for_validation, trained_on
from phonate.evaluation.speakers import profiles, similarity
from phonate.evaluation.tables import Evaluation, legend
from phonate.evaluation.words import character_error_rate, plain, word_error_rate
from phonate.pretrained import Embedding, MosPredictor, SpeakerEncoder, Transcriber, judge_notes, judge_of, speaker_note
from phonate.tasks.conversion.inference import Converter, Target, long_term

if TYPE_CHECKING:
    import torch

logger = logging.getLogger("phonate")

# --------------------------- Models that judge converted speech, and the speakers they compare it with

RANKED_SPEAKERS = 50
MOST_OF_A_SPEAKER = 8
"""Clips for the profile of each other speaker."""
LEAST_CHARACTERS = 4.0
"""Minimum letters and spaces per second of speech in a usable transcript; people speak 10 to 20."""
_FRAME_SECONDS = 0.1
_QUIET = 10.0**-3.5
"""Threshold of quiet frames, relative to the power of the loud ones."""
_CANDIDATES = ("base", "tiny.en")


@dataclass
class Source:
    """A clip to convert, with other recordings of its speaker."""

    clip: Clip
    own: list[Embedding] = field(default_factory=list)
    share: float = 1.0
    """Part of the converted clip that the speaker judge hears, from its beginning."""


@dataclass
class TargetVoice:
    """A voice that is converted to, and other recordings of it to compare with."""

    name: str
    clips: Sequence[Clip]
    """What converted speech is compared with."""
    reference_clips: Sequence[Clip]
    """What is known of the voice in conversion; for a voice that the model learnt, `clips`."""
    voice: Target
    """As the converter takes it."""
    embeddings: list[Embedding] = field(default_factory=list)
    """Of `clips`."""
    profiles: list[Embedding] = field(default_factory=list)
    """Several, each from as much speech as the other speakers' profiles."""


@dataclass(frozen=True)
class Pair:
    """A clip to convert, its words, and the voice to convert it to."""

    source: Source
    text: str
    target: TargetVoice
    id: str


class Judges:
    """The judges of an evaluation, None where they are not installed, with profiles of all speakers."""

    def __init__(self, converter: Converter) -> None:
        self.rate = converter.sample_rate
        self.speakers = judge_of(
            "similarity, closer to target, target ranks first", lambda: SpeakerEncoder(device=converter.device)
        )
        content = converter.inference_metadata["content"] if converter.extractor.data.content == "whisper" else ""
        # Must not be the recogniser whose features are the content.
        self.recogniser = judge_of("WER, CER", lambda: independent_recogniser(content, converter.device))
        self.naturalness = judge_of("MOS", lambda: MosPredictor(device=converter.device))
        self.profiles: dict[str, Embedding] = {}
        """Profile of every speaker but a single target."""

    def embed(self, waveform: FloatArray, name: str) -> Embedding:
        """Speaker embedding (256,) of a recording (N,)."""
        assert self.speakers is not None
        return self.speakers.embed(waveform, self.rate, name)

    def embed_converted(self, waveform: FloatArray) -> Embedding | None:
        """Speaker embedding (256,) of a converted waveform (N,); zeros if there is no speech in it, None without
        profiles to compare it with."""
        if not self.profiles:
            return None
        try:
            return self.embed(waveform, "")
        except DataError:
            return np.zeros_like(next(iter(self.profiles.values())))

    def mos(self, waveform: FloatArray) -> float | None:
        """Predicted mean opinion score (1 to 5) of a converted waveform (N,); the lowest if it is silent."""
        if self.naturalness is None:
            return None
        return self.naturalness.score_synthesised(waveform, self.rate, "the sound")

    def transcribe(self, waveform: FloatArray) -> str | None:
        """Transcript of a waveform (N,)."""
        return None if self.recogniser is None else self.recogniser.transcribe(waveform, self.rate)


def independent_recogniser(encoder: str, device: str | torch.device = "cpu") -> Transcriber:
    """A recogniser with other weights than `encoder`, which gave the content features; preferably an available one."""
    candidates = [name for name in _CANDIDATES if weights_fingerprint(name) != encoder]
    return Transcriber(best_included(candidates), device=device)


def reference(judges: Judges, clip: Clip) -> str:
    """The words of a clip: its text, or else its transcript by the recogniser; "" without either.

    Raises DataError if there are no words, or if the transcript is too short for the speech in the clip (recognisers
    sometimes stop after the first words).
    """
    if plain(clip.text):
        return clip.text
    text = judges.transcribe(clip.waveform)
    if text is None:
        return ""
    if not plain(text):
        raise DataError(f"{clip.id}: no words were recognised")
    seconds = speech_seconds(clip.waveform, judges.rate)
    if len(plain(text)) < LEAST_CHARACTERS * seconds:
        raise DataError(f"{clip.id}: its transcript {plain(text)!r} is too short for {seconds:.1f} s of speech")
    return text


def speech_seconds(waveform: FloatArray, rate: int) -> float:
    """Seconds of a waveform (N,) less than 35 dB below its loudest 0.1 s windows."""
    size = max(1, int(_FRAME_SECONDS * rate))
    frames = waveform[: len(waveform) // size * size].reshape(-1, size)
    if not len(frames):
        return 0.0
    power = np.square(frames, dtype=np.float64).mean(axis=1)
    return float((power > np.percentile(power, 95) * _QUIET).sum() * _FRAME_SECONDS)


def embed_speakers(
    judges: Judges, sources: Sequence[Source], rest: dict[str, list[Clip]], targets: Sequence[TargetVoice]
) -> None:
    """Embed the clips of the targets, the other recordings of each source speaker, and the voices among which a target
    is ranked.

    For a speaker with a single clip, the profile is made from its second half, and the converted speech compared by its
    first half, because shared words and breaths would raise the similarity.
    """
    speakers: dict[str, tuple[list[Embedding], list[float]]] = {}
    for source in sources:
        name, waveform = source.clip.speaker, source.clip.waveform
        clips = rest[name] or [replace(source.clip, waveform=waveform[len(waveform) // 2 :])]
        source.share = 1.0 if rest[name] else 0.5
        if name not in speakers:
            speakers[name] = _voices(judges, clips)
        source.own = speakers[name][0]
    for name, clips in rest.items():
        if name not in speakers and len(speakers) < RANKED_SPEAKERS - 1 and clips:
            speakers[name] = _voices(judges, clips)
    enough = float(np.median([sum(seconds) for _, seconds in speakers.values()]))
    judges.profiles = {name: profiles(voices, seconds, enough)[0] for name, (voices, seconds) in speakers.items()}
    for target in targets:
        target.embeddings = [judges.embed(clip.waveform, clip.id) for clip in target.clips]
        lengths = [len(clip.waveform) / judges.rate for clip in target.clips]
        target.profiles = profiles(target.embeddings, lengths, enough)


def _voices(judges: Judges, clips: Sequence[Clip]) -> tuple[list[Embedding], list[float]]:
    """Embeddings and lengths in seconds of a speaker's first clips."""
    clips = clips[:MOST_OF_A_SPEAKER]
    return [judges.embed(clip.waveform, clip.id) for clip in clips], [len(c.waveform) / judges.rate for c in clips]


# ----------------------------------------------------------- Conversion without a model, as a baseline


class Baseline:
    """Converts any voice towards that of the `target` recordings."""

    def __init__(self, processor: AudioProcessor, target: Sequence[FloatArray]) -> None:
        self._processor = processor
        self._rate = processor.config.sample_rate
        self._pitch = voice_f0(target, self._rate)
        self._spectrum_M = np.mean([long_term(processor.mel(waveform))[0] for waveform in target], axis=0)

    def __call__(self, waveform: FloatArray) -> FloatArray:
        """Convert samples (N,) at the processor's rate; returns about N samples."""
        own = median_f0(waveform, self._rate)
        if np.isfinite(own) and np.isfinite(self._pitch):
            semitones = 12.0 * float(np.log2(self._pitch / own))
            shift = optional_package("librosa", "the pitch-shift baseline").effects.pitch_shift
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # librosa 1.0 warns of its own use of its arguments
                # it lets NumPy convert memory that is not filled yet, whose bits may be no numbers
                warnings.filterwarnings("ignore", "invalid value encountered in cast", RuntimeWarning)
                waveform = shift(waveform, sr=self._rate, n_steps=semitones)
        mel_TM = self._processor.mel(waveform)
        equalised_TM = mel_TM + (self._spectrum_M - long_term(mel_TM)[0])
        # Keep silence silent.
        equalised_TM = np.where(mel_TM > 0.0, equalised_TM, 0.0)
        return self._processor.waveform(np.clip(equalised_TM, 0.0, 1.0))


# ---------------- Evaluation of a converter by independent judges, which were not used in its training

MOST_SOURCES = 12
MOST_REFERENCES = 30
MOST_TARGETS = 6
"""Voices that clips of the evaluation corpus give."""
_NAMED = 5
"""Speakers that an error names at most."""
LEAST_CLIPS = 4
"""Of a speaker whose voice they give."""
MOST_COMPARED = 10
"""Clips that speech converted to a given voice is compared with."""
GIVEN_SECONDS = 60.0
"""Of clips that give a voice."""
SOUNDS = 4
"""Number of sources with sounds of every system in the report."""
_CONVERTED = "converted"
_COLUMNS = by_name(Metric("f0", "", "Hz", "median F0"))
_MEANINGS = {
    "pair": "mean cosine to single clips of the target",
    "own": "to single other clips of the source's speaker, or to the rest of the only one",
    "closer": "how often a profile of the target is nearer than one of their own speaker, over all such pairs",
    "first": "share for which the target's profile ranks first among all speakers, with profiles of equal length",
    "wer, cer": "errors of the recogniser",
    "mos": "predicted mean opinion score, 1 to 5",
    "f0": "of the voice",
}


def evaluate(
    run: Path, data: str | None = None, *, vocoder: str | None = None, device: str | None = None
) -> Evaluation:
    """Evaluate the converter of `run` on the corpus `data` (None: its validation recordings), with the vocoder run
    `vocoder` (None: the recipe's), on `device` (None: cpu).

    Where voices are given by recordings, they are those of the first speakers of the corpus with enough clips: some
    give the voice, and what is converted to it is compared with the others.

    Raises InputError if the corpus has no clip of the target or nothing to convert, and DataError if the judges find no
    speech in a recording.
    """
    converter = Converter.load(run, vocoder, device=device)
    settings, validation_ids = converter.extractor.data, converter.inference_metadata["validation"]
    borrowed: list[str] = []
    if data is None:
        borrowed = _lacking(converter, prepare(settings), validation_ids)
        clips = kept_for_validation(settings, {*validation_ids, *borrowed})
    else:
        clips = clips_of(settings, data)
    targets, sources, rest = _divided(converter, clips)
    judges = Judges(converter)
    sources, texts, refused = _with_references(judges, sources)
    if judges.speakers is not None:
        embed_speakers(judges, sources, rest, targets)
    pairs = _pairs(sources, texts, targets)
    used = [clip for target in targets for clip in (*target.reference_clips, *target.clips)] + [
        one.clip for one in sources
    ]
    overlap = trained_on(settings, validation_ids, list({clip.id: clip for clip in used}.values()))
    systems, results = _Systems(converter, targets), dict[str, dict[str, float]]()
    items: dict[str, dict[str, Any]] = {}
    sounds: dict[str, dict[str, FloatArray]] = {pair.id: {} for pair in pairs[:SOUNDS]}
    for name, system, shared in systems.all:
        logger.info("judging: %s", name)
        judgements = dict[str, Judgement]()
        for pair in track(name, pairs):
            key = pair.source.clip.id if shared else pair.id
            if key not in judgements:
                waveform = system(pair)
                judgements[key] = judge(judges, waveform, pair.source.share)
                if pair.id in sounds:
                    sounds[pair.id][name] = waveform
        items = {
            pair.id: compared(judges, pair, judgements[pair.source.clip.id if shared else pair.id]) for pair in pairs
        }
        results[name] = summary(list(items.values()))
    results[f"target's own recordings, {converter.render.name} copy"] = _ceiling(judges, converter, targets)
    for pair in pairs[:SOUNDS]:
        sounds[pair.id][f"{pair.target.name}, saying something else"] = pair.target.clips[0].waveform
    notes = {
        "target": ", ".join(target.name for target in targets),
        **_by_target(items.values(), targets, judges.rate),
        "clips": len(sources),
        "speakers": len({source.clip.speaker for source in sources}),
        "target_clips": sum(len(target.clips) for target in targets),
        "speakers_ranked_among": len({*judges.profiles, *(target.name for target in targets)}),
        **judge_notes(judges.recogniser, judges.naturalness),
        **speaker_note(judges.speakers),
        "recordings_trained_on": overlap and overlap.recordings + len(borrowed),
        "references_refused": refused,
        "references": references_of(judges, sources),
    }
    meaning = legend(_MEANINGS, results, _COLUMNS)
    return Evaluation(
        "conversion",
        results,
        _CONVERTED,
        meaning,
        notes,
        items,
        sounds,
        converter.sample_rate,
        _COLUMNS,
    )


class _Systems:
    """What makes the waveforms that are judged: the converter and what it is compared with."""

    def __init__(self, converter: Converter, targets: Sequence[TargetVoice]) -> None:
        self._converter = converter
        self._baselines = {
            target.name: Baseline(converter.extractor.processor, [clip.waveform for clip in target.reference_clips])
            for target in targets
        }

    @property
    def all(self) -> list[tuple[str, Callable[[Pair], FloatArray], bool]]:
        """Their names, and whether what they make is the same for all targets. The converter is the last."""
        converter = self._converter
        return [
            ("natural", lambda pair: pair.source.clip.waveform, True),
            (f"{converter.render.name} copy", lambda pair: _copy(converter, pair.source.clip.waveform), True),
            ("pitch shift, no model", lambda pair: self._baselines[pair.target.name](pair.source.clip.waveform), False),
            (_CONVERTED, lambda pair: converter.convert(pair.source.clip.waveform, pair.target.voice), False),
        ]


def references_of(judges: Judges, sources: Sequence[Source]) -> str | None:
    """What words are compared with; None where nobody judges them."""
    if judges.recogniser is None:
        return None
    return "texts" if all(one.clip.text for one in sources) else "transcripts of the natural clips"


def _pairs(sources: Sequence[Source], texts: Sequence[str], targets: Sequence[TargetVoice]) -> list[Pair]:
    """Each source with the target, or with two of several in turn, but for its own speaker."""
    if len(targets) == 1:
        return [Pair(source, text, targets[0], source.clip.id) for source, text in zip(sources, texts, strict=True)]
    pairs: list[Pair] = []
    for number, (source, text) in enumerate(zip(sources, texts, strict=True)):
        turns = [targets[(number + step) % len(targets)] for step in range(len(targets))]
        others = [target for target in turns if target.name != source.clip.speaker]
        chosen = {target.name: target for target in (others[0], others[len(others) // 2])}
        pairs += [Pair(source, text, one, f"{source.clip.id} as {one.name}") for one in chosen.values()]
    return pairs


def _by_target(
    items: Iterable[Mapping[str, Any]], targets: Sequence[TargetVoice], rate: int
) -> dict[str, dict[str, float]]:
    """Where there are several targets: the mean similarity to each, and the seconds that were given of it."""
    if len(targets) == 1:
        return {}
    scores: dict[str, list[float]] = {}
    for item in items:
        if "pair" in item:
            scores.setdefault(item["target"], []).append(item["pair"])
    return {
        "similarity_by_target": {name: round(float(np.mean(of_one)), 3) for name, of_one in sorted(scores.items())},
        "seconds_given": {
            target.name: round(sum(len(clip.waveform) for clip in target.reference_clips) / rate, 1)
            for target in targets
        },
    }


def _with_references(judges: Judges, sources: Sequence[Source]) -> tuple[list[Source], list[str], int]:
    """The sources with known words, their words, and the number of others, which are named in a warning.

    Raises DataError if no source is left.
    """
    usable: list[Source] = []
    texts: list[str] = []
    refused: list[str] = []
    for source in sources:
        try:
            texts.append(reference(judges, source.clip))
            usable.append(source)
        except DataError as error:
            refused.append(str(error))
    if not usable:
        raise DataError(f"no clip of the evaluation corpus has words to compare with; the first: {refused[0]}")
    warn_left_out("can't be judged by their words", refused)
    return usable, texts, len(refused)


def _divided(
    converter: Converter, clips: Iterable[Clip]
) -> tuple[list[TargetVoice], list[Source], dict[str, list[Clip]]]:
    """The voices to convert to; clips to convert, from as many speakers as possible; and each speaker's other clips."""
    by_speaker: dict[str, list[Clip]] = {}
    for clip in clips:
        by_speaker.setdefault(clip.speaker, []).append(clip)
    if converter.target is None:
        targets = _reference_targets(converter, by_speaker)
    else:
        target = by_speaker.pop(converter.target, [])[:MOST_REFERENCES]
        if not target:
            others = ", ".join([*map(repr, list(by_speaker)[:_NAMED]), *(["..."] if len(by_speaker) > _NAMED else [])])
            raise InputError(
                f"the evaluation corpus holds no clip of the target {converter.target!r} to compare with (it has: "
                f"{others or 'none'}); give one that does with {option('data')}, in a sub-folder of that name"
            )
        targets = [TargetVoice(converter.target, target, target, converter.target)]
    if not by_speaker:
        raise InputError(
            f"the evaluation corpus holds only {targets[0].name!r}: there is nothing to convert; give one with "
            f"other speakers, too, with {option('data')}"
        )
    sources: list[Source] = []
    turn = 0
    while len(sources) < MOST_SOURCES and any(len(own) > turn for own in by_speaker.values()):
        sources += [Source(own[turn]) for own in by_speaker.values() if len(own) > turn]
        turn += 1
    sources = sources[:MOST_SOURCES]
    chosen = {source.clip.id for source in sources}
    rest = {name: [clip for clip in own if clip.id not in chosen] for name, own in by_speaker.items()}
    return targets, sources, rest


def _reference_targets(converter: Converter, by_speaker: Mapping[str, list[Clip]]) -> list[TargetVoice]:
    """Voices that their first clips give, a minute or two thirds of them; the next ones are compared with."""
    targets: list[TargetVoice] = []
    for name, clips in by_speaker.items():
        if len(targets) == MOST_TARGETS or len(clips) < LEAST_CLIPS:
            continue
        reference_clips, seconds = list[Clip](), 0.0
        while seconds < GIVEN_SECONDS and len(reference_clips) < len(clips) * 2 // 3:
            seconds += len(clips[len(reference_clips)].waveform) / converter.sample_rate
            reference_clips.append(clips[len(reference_clips)])
        voice = converter.reference([clip.waveform for clip in reference_clips])
        targets.append(
            TargetVoice(name, clips[-min(MOST_COMPARED, len(clips) - len(reference_clips)) :], reference_clips, voice)
        )
    if len(targets) < 2:
        raise InputError(
            f"evaluation needs two speakers with {LEAST_CLIPS} clips or more, and the corpus has {len(targets)}; name "
            f"another with {option('data')}"
        )
    return targets


def _lacking(converter: Converter, prepared: PreparedCorpus, validation_ids: Collection[str]) -> list[str]:
    """Ids of recordings that were trained on, to stand in for the target's or for those to convert where validation has
    none; a warning says so."""
    if converter.target is None:
        return []
    index = prepared.index
    speakers = {index.id[at]: prepared.speakers[int(index.speaker[at])] for at in range(len(index))}
    held_out = {speakers[one] for one in validation_ids if one in speakers}
    trained = {one: name for one, name in speakers.items() if one not in set(validation_ids)}
    borrowed: list[str] = []
    if converter.target not in held_out:
        borrowed = [one for one, name in trained.items() if name == converter.target][:MOST_REFERENCES]
        logger.warning(
            "no recording of %s was kept for validation: the voice is compared with %d that were trained on",
            converter.target,
            len(borrowed),
        )
    if not held_out - {converter.target}:
        others = [one for one, name in trained.items() if name != converter.target]
        chosen = others[:: max(1, len(others) // MOST_SOURCES)][:MOST_SOURCES]
        borrowed += chosen
        logger.warning(
            "all recordings kept for validation are of %s: %d that were trained on are converted, so the figures are "
            "too good; raise data.validation, or give others with %s",
            converter.target,
            len(chosen),
            option("data"),
        )
    return borrowed


def _copy(converter: Converter, waveform: FloatArray) -> FloatArray:
    return PEAK * normalised_peak(converter.render(converter.extractor.processor.mel(waveform)))


@dataclass(frozen=True)
class Judgement:
    """What the judges hear in a waveform, whoever it is to sound like."""

    voice: Embedding | None
    words: str | None
    mos: float | None
    f0: float | None


def judge(judges: Judges, waveform: FloatArray, share: float) -> Judgement:
    """Listen to a waveform (N,), and to the voice in this share of it."""
    return Judgement(
        judges.embed_converted(waveform[: int(len(waveform) * share)]),
        judges.transcribe(waveform),
        judges.mos(waveform),
        _finite(median_f0(waveform, judges.rate)),
    )


def compared(judges: Judges, pair: Pair, judgement: Judgement) -> dict[str, Any]:
    """The metrics of one system for one pair."""
    target, source = pair.target, pair.source
    item: dict[str, Any] = {
        "speaker": source.clip.speaker,
        "target": target.name,
        "mos": judgement.mos,
        "f0": judgement.f0,
    }
    if judgement.voice is not None:
        to_target = [float(judgement.voice @ one) for one in target.profiles]
        others = {name: float(judgement.voice @ one) for name, one in judges.profiles.items() if name != target.name}
        to_own, to_others = others[source.clip.speaker], max(others.values())
        item |= {
            "pair": similarity(judgement.voice, target.embeddings),
            "own": similarity(judgement.voice, source.own),
            "closer": float(np.mean([one > to_own for one in to_target])),
            "first": float(np.mean([one > to_others for one in to_target])),
        }
    if judgement.words is not None:
        item["cer"] = character_error_rate([pair.text], [judgement.words])
        item |= {"reference": plain(pair.text), "heard": plain(judgement.words)}
    return item


def summary(items: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The metrics of a system over all pairs."""
    names = [name for name in ("pair", "own", "closer", "first") if name in items[0]]
    metrics = {name: float(np.mean([item[name] for item in items])) for name in names}
    if "heard" in items[0]:
        texts = [(item["reference"], item["heard"]) for item in items]
        metrics["cer"] = character_error_rate(*zip(*texts, strict=True))
        metrics["wer"] = word_error_rate(*zip(*texts, strict=True))
    metrics |= _mean_mos([item["mos"] for item in items])
    return {**metrics, **_median_pitch([item["f0"] for item in items])}


def _ceiling(judges: Judges, converter: Converter, targets: Sequence[TargetVoice]) -> dict[str, float]:
    """The targets' own clips, copied by the vocoder, compared with the same target's other clips."""
    pairs: list[float] = []
    pitch: list[float | None] = []
    scores: list[float | None] = []
    for target in targets:
        for number, clip in enumerate(target.clips):
            waveform = _copy(converter, clip.waveform)
            scores.append(judges.mos(waveform))
            rest = target.embeddings[:number] + target.embeddings[number + 1 :]
            if rest:
                pairs.append(similarity(judges.embed(waveform, clip.id), rest))
            pitch.append(_finite(median_f0(waveform, judges.rate)))
    return {**({"pair": float(np.mean(pairs))} if pairs else {}), **_mean_mos(scores), **_median_pitch(pitch)}


def _mean_mos(scores: Iterable[float | None]) -> dict[str, float]:
    values = [score for score in scores if score is not None]
    return {"mos": float(np.mean(values))} if values else {}


def _finite(hertz: float) -> float | None:
    """The pitch, or None if nothing was voiced (JSON has no NaN)."""
    return hertz if np.isfinite(hertz) else None


def _median_pitch(hertz: Sequence[float | None]) -> dict[str, float]:
    voiced = [value for value in hertz if value is not None]
    return {"f0": float(np.median(voiced))} if voiced else {}
