"""The recordings that a model is trained on, with what is derived of each, and voices given by recordings.

Shapes: T frames, M mel bands.

Shapes: T mel frames, M mel bands.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from phonate.audio.decoding import FloatArray
from phonate.audio.readers import USUAL_SUFFIXES
from phonate.audio.whisper import FEATURES_PER_SECOND
from phonate.config.errors import DataError, InputError
from phonate.config.registry import nearest
from phonate.data.manifests.rows import audio_files
from phonate.data.manifests.validation import warn_left_out
from phonate.data.store.derived import DerivedFeatures, open_derived, open_pitch
from phonate.data.store.prepared import Prepared, prepare_to_train
from phonate.tasks.conversion.features import FeatureExtractor, Recording, Register, SpeechFrames, speech_frames, timbre
from phonate.tasks.conversion.running import Expected, RunningStatistics
from phonate.tasks.conversion.settings import ConversionData

# ------------- Speaker properties stored in addition to the embedding: register and long-term spectrum

_MOST_CLIPS = 100
_STRETCH = (0.8, 1.6)


@dataclass(frozen=True)
class Voice:
    """A speaker's register, and the mean and deviation (M,) of the mel over the speech of an utterance."""

    register: Register | None
    mean_M: FloatArray
    deviation_M: FloatArray

    @classmethod
    def of(cls, recordings: Iterable[Recording]) -> Voice:
        """The voice of a speaker, averaged over utterances (at most 100 of them)."""
        registers, spectra = [], []
        for _, recording in zip(range(_MOST_CLIPS), recordings, strict=False):
            registers.append(Register.of(recording.f0_T))
            spectra.append(long_term(recording.mel_TM))
        found = [register for register in registers if register is not None]
        register = None
        if found:
            register = Register(
                float(np.median([r.median for r in found])), float(np.mean([r.deviation for r in found]))
            )
        mean_M, deviation_M = (np.mean(part, axis=0) for part in zip(*spectra, strict=True))
        return cls(register, mean_M, deviation_M)

    def equalised(self, mel_TM: FloatArray, share: float) -> FloatArray:
        """Bring the mean and deviation of each band of a converted mel (T, M) a share of the way to this voice's."""
        return self.equalised_by(mel_TM, *long_term(mel_TM), share)

    def equalised_by(self, mel_TM: FloatArray, mean: FloatArray, deviation: FloatArray, share: float) -> FloatArray:
        """As `equalised`, for a mel whose mean and deviation are these, (M,) or (T, M)."""
        stretch = 1.0 + share * (np.clip(self.deviation_M / np.maximum(deviation, 1e-4), *_STRETCH) - 1.0)
        return np.asarray((mel_TM - mean) * stretch + mean + share * (self.mean_M - mean), dtype=np.float32)

    def running(self) -> RunningStatistics:
        """Mean and deviation of converted speech so far, for `equalised_by`; they start from this voice's own."""
        return RunningStatistics(self.mean_M, self.deviation_M, 60.0, 120.0)

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "register": None if self.register is None else [self.register.median, self.register.deviation],
            "mean": [round(float(value), 4) for value in self.mean_M],
            "deviation": [round(float(value), 4) for value in self.deviation_M],
        }

    @classmethod
    def read(cls, document: dict[str, Any]) -> Voice:
        """From JSON."""
        register = document["register"]
        return cls(
            None if register is None else Register(*register),
            np.array(document["mean"], dtype=np.float32),
            np.array(document["deviation"], dtype=np.float32),
        )


def long_term(mel_TM: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Mean and deviation (M,) of a mel over its speech frames."""
    speech_TM = mel_TM[speech_frames(mel_TM)]
    return speech_TM.mean(axis=0), speech_TM.std(axis=0)


# ----------------------------- The recordings that a model is trained on, with what is derived of each

_EXPECTED_OVER = 300
_VERSION = 1  # raise it when Whisper features are computed otherwise


class Corpus:
    """The prepared corpus at `data.path`, with F0 and Whisper features beside its cached waveforms and mels."""

    def __init__(self, data: ConversionData, extractor: FeatureExtractor) -> None:
        self.data = data
        self.extractor = extractor
        self.prepared: Prepared = prepare_to_train(data)
        if extractor.causal:
            extractor.envelope.expected = self.expected
        self.speakers = self.prepared.speakers
        """Names in the order of the embedding."""
        if data.target is not None and data.target not in self.speakers:
            raise InputError(f"data.target: the corpus has no {data.target!r}; {nearest(data.target, self.speakers)}")

    def positions(self, split: str) -> list[int]:
        """Positions of a split's recordings in the index."""
        found = self.prepared.train if split == "train" else self.prepared.validation
        return [int(position) for position in found]

    def recording(self, position: int) -> Recording:
        """The clean features of a recording."""
        whisper_SW = self._whisper[position] if self.data.content == "whisper" else None
        mel_TM = self.prepared.cache.features(position)
        f0_T = self._f0[position][:, 0] if self.data.prosody else np.zeros(len(mel_TM), dtype=np.float32)
        return Recording(mel_TM, f0_T, whisper_SW)

    def waveform(self, position: int) -> FloatArray:
        """The clean waveform (N,) of a recording."""
        return self.prepared.cache.waveform(position)

    @cached_property
    def target(self) -> int:
        """Number of the speaker to convert to: the recipe's, or the one with the most speech."""
        if self.data.target is not None:
            return self.speakers.index(self.data.target)
        index = self.prepared.index
        frames = np.bincount(index.speaker, weights=index.frames, minlength=len(self.speakers))
        return int(frames.argmax())

    @cached_property
    def voices(self) -> dict[str, Voice]:
        """Register and long-term spectrum of each speaker that is learnt, from training recordings."""
        if self.extractor.reference_dim:
            return {}
        numbers = self.prepared.index.speaker
        train = self.positions("train")

        def recordings(speaker: int) -> Iterator[Recording]:
            return (self.recording(position) for position in train if numbers[position] == speaker)

        return {name: Voice.of(recordings(number)) for number, name in enumerate(self.speakers)}

    @cached_property
    def expected(self) -> Expected:
        """What training recordings are like before normalisation, over at most 300 of them."""
        train = self.positions("train")
        chosen = train[:: max(1, len(train) // _EXPECTED_OVER)]
        mels = (self.prepared.cache.features(position) for position in chosen)
        return Expected.of((mel_TM, self.extractor.envelope.smoothed(mel_TM)) for mel_TM in mels)

    @property
    def content_dim(self) -> int:
        """Content features of a frame."""
        reads_whisper = self.data.content == "whisper" and not self.extractor.teacher
        return self._whisper.width if reads_whisper else self.data.audio.n_mels

    @property
    def teacher_dim(self) -> int | None:
        """Whisper features that a causal model is taught to predict for a frame; None: none."""
        return self._whisper.width if self.extractor.teacher else None

    @property
    def content_fingerprint(self) -> str:
        """What the content features depend on beside the audio settings."""
        return self.extractor.whisper.fingerprint if self.data.content == "whisper" else "mel"

    @cached_property
    def _f0(self) -> DerivedFeatures:
        return open_pitch(self.prepared, self.data.audio)

    @cached_property
    def _whisper(self) -> DerivedFeatures:
        """The features of a Whisper encoder, kept beside the prepared corpus."""
        encoder, rate = self.extractor.whisper, self.data.audio.sample_rate
        name = re.sub(r"[^\w.-]", "_", f"whisper-{encoder.fingerprint}-v{_VERSION}")
        return open_derived(
            self.prepared.folder / name,
            len(self.prepared.index),
            lambda position: encoder(self.waveform(position), rate),
            np.float16,
            what="computing Whisper features",
        )


# ----------------------------------------------------------------- A voice that is given by recordings

_TRAINING_SECONDS = 30.0
"""At most so much of a speaker's other speech is the reference of a training sample."""
_LEAST_TRAINING_SECONDS = 2.0
_APART_SECONDS = 0.2
"""Between a crop and what is looked up of the same recording: Whisper's features spread over some frames."""


@dataclass(frozen=True)
class Reference:
    """A voice to convert to: its register and long-term spectrum, and the frames of its recordings."""

    voice: Voice
    frames: SpeechFrames

    @classmethod
    def of(cls, recordings: Sequence[Recording], frames_per_second: float) -> Reference:
        """The voice of `recordings`; `frames_per_second`: of their mels."""
        frames = [SpeechFrames.of(recording, frames_per_second) for recording in recordings]
        return cls(Voice.of(recordings), SpeechFrames.joined(frames))


def reference_files(path: str | Path) -> list[Path]:
    """The recording at `path`, or those in the folder there and below. Raises InputError for a folder without any."""
    if not Path(path).is_dir():
        return [Path(path)]
    if not (found := list(audio_files(Path(path)))):
        raise InputError(f"{path}: holds no recordings ({', '.join(USUAL_SUFFIXES)}, ...)")
    return found


class OtherSpeech:
    """What other speech of the same speaker sounds like, for training samples of `corpus`."""

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus
        self._index = corpus.prepared.index
        self._rate = corpus.data.audio.frames_per_second

    def usable(self, positions: Sequence[int]) -> list[int]:
        """Those of the recordings `positions` whose speaker has other speech; a warning names the others.

        Raises DataError where none remains.
        """
        usable = [position for position in positions if self._other_seconds(position) >= _LEAST_TRAINING_SECONDS]
        least = f"{_LEAST_TRAINING_SECONDS:.0f} s of other speech of the same speaker"
        left_out = sorted({*positions} - {*usable})
        warn_left_out(f"come without {least} as a reference", [self._index.id[position] for position in left_out])
        if positions and not usable:
            raise DataError(
                f"{self._corpus.data.label}: no recording comes with {least}, which voices: reference learns from; "
                "give several recordings of each speaker, or longer ones"
            )
        return usable

    def timbre(self, position: int, cut: slice, rng: np.random.Generator) -> FloatArray:
        """Spectra (T, M) for the frames `cut` of a recording, from at most half a minute of the speaker's other
        recordings, and where these are shorter, also from the rest of this one."""
        found = self._frames(self._others(position, rng))
        if sum(map(len, found)) < _TRAINING_SECONDS * FEATURES_PER_SECOND:
            (own,) = self._frames([position])
            before, after = cut.start / self._rate - _APART_SECONDS, cut.stop / self._rate + _APART_SECONDS
            found += [own[: max(0, int(before * FEATURES_PER_SECOND))], own[int(after * FEATURES_PER_SECOND) :]]
        return self._timbre(position, cut, found)

    def timbre_of_another(self, position: int, cut: slice) -> FloatArray:
        """The same from a recording of the next speaker of the split, in the order of the corpus."""
        prepared, speakers = self._corpus.prepared, self._index.speaker
        split = prepared.validation if position in prepared.validation else prepared.train
        following = np.roll(split, -int(np.searchsorted(split, position)))
        other = next((int(one) for one in following if speakers[one] != speakers[position]), position)
        return self._timbre(position, cut, self._frames([other]))

    def _timbre(self, position: int, cut: slice, reference: Sequence[SpeechFrames]) -> FloatArray:
        return timbre(self._corpus.recording(position), SpeechFrames.joined(reference), cut, self._rate)

    def _frames(self, positions: Iterable[int]) -> list[SpeechFrames]:
        return [SpeechFrames.of(self._corpus.recording(position), self._rate) for position in positions]

    def _others(self, position: int, rng: np.random.Generator) -> list[int]:
        """Other recordings of the speaker, drawn until they last long enough."""
        chosen, left = list[int](), _TRAINING_SECONDS * self._rate
        for other in rng.permutation(self._of_speaker[int(self._index.speaker[position])]):
            if other != position and left > 0:
                chosen.append(int(other))
                left -= float(self._index.frames[other])
        return chosen

    def _other_seconds(self, position: int) -> float:
        """Seconds of the speaker's speech outside of a crop of this recording."""
        frames = self._index.frames
        everything = int(frames[self._of_speaker[int(self._index.speaker[position])]].sum())
        own = min(int(frames[position]), self._corpus.data.crop_frames)
        return (everything - own) / self._rate - 2 * _APART_SECONDS

    @cached_property
    def _of_speaker(self) -> dict[int, list[int]]:
        """Positions of each speaker's recordings in training and validation."""
        found: dict[int, list[int]] = {}
        for position in sorted([*self._corpus.prepared.train, *self._corpus.prepared.validation]):
            found.setdefault(int(self._index.speaker[position]), []).append(int(position))
        return found
