"""Models that judge converted speech, and the speakers they compare it with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from phonate.audio.decoding import FloatArray
from phonate.audio.whisper import weights_fingerprint, whisper_model
from phonate.config.errors import DataError
from phonate.evaluation.held_out import Clip
from phonate.evaluation.naturalness import NaturalnessJudge
from phonate.evaluation.packages import judge_of
from phonate.evaluation.speaker_similarity import Embedding, SpeakerJudge, profiles
from phonate.evaluation.transcription import Recogniser, plain
from phonate.tasks.conversion.inference import Converter, Target

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
class Wanted:
    """A voice that is converted to, and other recordings of it to compare with."""

    name: str
    clips: Sequence[Clip]
    """What converted speech is compared with."""
    given: Sequence[Clip]
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
    wanted: Wanted
    id: str


class Judges:
    """The judges of an evaluation, None where they are not installed, with profiles of all speakers."""

    def __init__(self, converter: Converter) -> None:
        self.rate = converter.sample_rate
        self.speakers = judge_of("similarity, closer, first", SpeakerJudge)
        content = converter.inference_metadata["content"] if converter.extractor.data.content == "whisper" else ""
        # Must not be the recogniser whose features are the content.
        self.recogniser = judge_of("wer, cer", lambda: independent_recogniser(content))
        self.naturalness = judge_of("mos", NaturalnessJudge)
        self.profiles: dict[str, Embedding] = {}
        """Profile of every speaker but a single target."""

    def embed(self, waveform: FloatArray, name: str) -> Embedding:
        """Speaker embedding (256,) of a recording (N,)."""
        assert self.speakers is not None
        return self.speakers.embed(waveform, self.rate, name)

    def embed_made(self, waveform: FloatArray) -> Embedding | None:
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
        return self.naturalness.score_made(waveform, self.rate, "the sound")

    def transcribe(self, waveform: FloatArray) -> str | None:
        """Transcript of a waveform (N,)."""
        return None if self.recogniser is None else self.recogniser.transcribe(waveform, self.rate)


def independent_recogniser(encoder: str) -> Recogniser:
    """A recogniser with other weights than `encoder`, which gave the content features; preferably an available one."""
    candidates = [name for name in _CANDIDATES if weights_fingerprint(name) != encoder]
    here = [name for name in candidates if Path(whisper_model(name)).is_dir()]
    return Recogniser([*here, *candidates][0])


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


def know_speakers(
    judges: Judges, sources: Sequence[Source], rest: dict[str, list[Clip]], targets: Sequence[Wanted]
) -> None:
    """Embed the clips of the targets, the other recordings of each source speaker, and the voices among which a target
    is ranked.

    For a speaker with a single clip, the profile is made from its second half, and the converted speech compared by its
    first half, because shared words and breaths would raise the similarity.
    """
    known: dict[str, tuple[list[Embedding], list[float]]] = {}
    for source in sources:
        name, waveform = source.clip.speaker, source.clip.waveform
        clips = rest[name] or [replace(source.clip, waveform=waveform[len(waveform) // 2 :])]
        source.share = 1.0 if rest[name] else 0.5
        if name not in known:
            known[name] = _voices(judges, clips)
        source.own = known[name][0]
    for name, clips in rest.items():
        if name not in known and len(known) < RANKED_SPEAKERS - 1 and clips:
            known[name] = _voices(judges, clips)
    enough = float(np.median([sum(seconds) for _, seconds in known.values()]))
    judges.profiles = {name: profiles(voices, seconds, enough)[0] for name, (voices, seconds) in known.items()}
    for wanted in targets:
        wanted.embeddings = [judges.embed(clip.waveform, clip.id) for clip in wanted.clips]
        lengths = [len(clip.waveform) / judges.rate for clip in wanted.clips]
        wanted.profiles = profiles(wanted.embeddings, lengths, enough)


def _voices(judges: Judges, clips: Sequence[Clip]) -> tuple[list[Embedding], list[float]]:
    """Embeddings and lengths in seconds of a speaker's first clips."""
    clips = clips[:MOST_OF_A_SPEAKER]
    return [judges.embed(clip.waveform, clip.id) for clip in clips], [len(c.waveform) / judges.rate for c in clips]
