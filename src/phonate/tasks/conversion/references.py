"""A voice that is given by recordings: in conversion those of the wanted voice, in training other speech of the same
speaker.

Shapes: T mel frames, M mel bands.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from phonate.audio.decoding import USUAL_SUFFIXES, FloatArray
from phonate.audio.whisper import FEATURES_PER_SECOND
from phonate.config.errors import DataError, InputError
from phonate.data.manifests.dropping import warn_left_out
from phonate.data.manifests.rows import audio_files
from phonate.tasks.conversion.corpus import Corpus
from phonate.tasks.conversion.features.extractor import Recording
from phonate.tasks.conversion.features.speech_frames import SpeechFrames, timbre
from phonate.tasks.conversion.voices import Voice

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
