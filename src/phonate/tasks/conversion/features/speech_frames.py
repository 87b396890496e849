"""Frames of recordings of a voice, looked up by what is said in them.

For each frame of the speech to convert, the frames of the recordings that are nearest in content are found. The mean of
their spectra tells the model how the wanted voice sounds there (after Baas et al. 2023, "Voice conversion with just
nearest neighbors", section 3, where the mean of the features is the converted speech itself).

Shapes: S and R content features (50 per second) of the speech and of the recordings, W width of a content feature,
M mel bands, T mel frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from phonate.audio.decoding import FloatArray
from phonate.audio.whisper import FEATURES_PER_SECOND
from phonate.tasks.conversion.features.extractor import Recording
from phonate.tasks.conversion.features.whisper import at_frames, normalised

_NEIGHBOURS = 4
_AT_ONCE = 256  # frames that are looked up together, to bound the memory


@dataclass(frozen=True)
class SpeechFrames:
    """Frames of recordings to look up: their content, of length 1 (R, W), and their mel spectra (R, M)."""

    content_RW: FloatArray
    mel_RM: FloatArray

    @classmethod
    def of(cls, recording: Recording, frames_per_second: float) -> SpeechFrames:
        """The frames of a recording with Whisper features, at their rate; `frames_per_second`: of its mel."""
        if recording.whisper_SW is None:
            raise ValueError("the recording has no Whisper features")
        times_S = np.arange(len(recording.whisper_SW)) * (frames_per_second / FEATURES_PER_SECOND)
        nearest_S = np.minimum(np.round(times_S).astype(int), len(recording.mel_TM) - 1)
        return cls(_of_length_1(normalised(recording.whisper_SW)), recording.mel_TM[nearest_S])

    @classmethod
    def joined(cls, parts: Sequence[SpeechFrames]) -> SpeechFrames:
        """Those of several recordings."""
        return cls(np.concatenate([part.content_RW for part in parts]), np.concatenate([part.mel_RM for part in parts]))

    def __len__(self) -> int:
        return len(self.content_RW)

    def __getitem__(self, chosen: slice) -> SpeechFrames:
        return SpeechFrames(self.content_RW[chosen], self.mel_RM[chosen])

    def nearest(self, content_SW: FloatArray) -> FloatArray:
        """Mean spectrum (S, M) of the frames whose content is most similar (by cosine) to each of `content_SW`, whose
        rows have the length 1."""
        count = min(_NEIGHBOURS, len(self))
        found = []
        for start in range(0, len(content_SW), _AT_ONCE):
            distance_SR = -(content_SW[start : start + _AT_ONCE] @ self.content_RW.T)
            nearest_SK = np.argpartition(distance_SR, count - 1, axis=1)[:, :count]
            found.append(self.mel_RM[nearest_SK].mean(axis=1))
        return np.concatenate(found)


def timbre(recording: Recording, reference: SpeechFrames, cut: slice, frames_per_second: float) -> FloatArray:
    """What the reference sounds like when it says what is said in the frames `cut` of a recording: (T, M)."""
    content_SW = SpeechFrames.of(recording, frames_per_second).content_RW
    frames_T = np.arange(len(recording.mel_TM))[cut]
    first, last = (int(frame * FEATURES_PER_SECOND / frames_per_second) for frame in (frames_T[0], frames_T[-1]))
    said = slice(min(first, len(content_SW) - 1), last + 2)  # at_frames interpolates between two
    found_SM = np.zeros((len(content_SW), reference.mel_RM.shape[1]), dtype=np.float32)
    found_SM[said] = reference.nearest(content_SW[said])
    return at_frames(found_SM, frames_T, frames_per_second)


def _of_length_1(values_SW: FloatArray) -> FloatArray:
    length_S1 = np.linalg.norm(values_SW, axis=1, keepdims=True)
    return np.asarray(values_SW / np.maximum(length_S1, 1e-6), dtype=np.float32)
