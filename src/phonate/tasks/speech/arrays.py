"""The parallel acoustic model computed with NumPy: what `ParallelModel.speak` gives, without the import of torch.

Shapes: L tokens, T frames, D width, M mel bands.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from phonate.nn.arrays import ConvNeXt, FloatArray, Linear, Weights, part

IntArray = NDArray[np.int64]
Who: TypeAlias = int | FloatArray
"""The number of a voice, or of a blend the share (S,) of each voice."""

NOISE = 16
"""Random numbers that the decoder is given for each frame, for what text does not say."""
MIDDLE_F0 = 200.0
"""Hz, whose logarithm counts as 0."""
CONTOUR_FRAMES = (13.0, 43.0, 130.0)
"""Within which the pitch comes from where a sentence begins and goes to where it ends: 0.15, 0.5 and 1.5 seconds."""
VOICE_SCALE = 8.0
"""Of the vectors of voices, which learn as much faster by it: each is heard in few of the steps."""
_NOISE_FRAMES = 4096


def noise_table() -> FloatArray:
    """The noise (4096, 16) that is spoken with: the same each time, and begun again where it ends."""
    return np.random.default_rng(0).standard_normal((_NOISE_FRAMES, NOISE), dtype=np.float32)


class SpokenSentence(NamedTuple):
    """A sentence as a model speaks it."""

    mel_TM: FloatArray
    """From 0 to 1."""
    f0_T: FloatArray | None
    """Hz, 0 where unvoiced; None for a model that does not predict it."""
    durations_L: IntArray | None
    """Frames of each token; None for a model that does not keep to them."""


class Voice(Protocol):
    """What a synthesiser needs of an acoustic model."""

    keeps_durations: bool
    """Whether it says when each token is heard, and follows changes of speed and pitch within a sentence."""

    def say(
        self,
        tokens: Sequence[IntArray],
        speaker: Who,
        speeds: Sequence[FloatArray],
        semitones: Sequence[FloatArray],
    ) -> list[SpokenSentence]:
        """Synthesise sentences.

        Args:
            tokens: Token numbers (L,) of each sentence.
            speaker: Who speaks them.
            speeds: Of each token (L,); 1.2 is a fifth faster.
            semitones: Added to the pitch at the beginning and the end of each token (L, 2), evenly changing between.

        Raises InputError for what the model can't change.
        """
        ...


class ArrayVoice:
    """`ParallelModel` with the weights of a checkpoint. Raises KeyError where one is missing."""

    keeps_durations = True

    def __init__(self, weights: Weights) -> None:
        self._embedding_VD, self._voices_SD = weights["embedding.weight"], weights["voices.weight"]
        self._encoder, self._predictor = ConvNeXt(part(weights, "encoder")), ConvNeXt(part(weights, "predictor"))
        self._melody, self._decoder = ConvNeXt(part(weights, "melody")), ConvNeXt(part(weights, "decoder"))
        names = ("prosody_head", "energy_embedding", "place_embedding", "pitch_head", "pitch_embedding")
        linear = [Linear(part(weights, name)) for name in (*names, "noise_embedding", "output")]
        self._prosody_head, self._energy, self._place, self._pitch_head, self._pitch, noise, self._output = linear
        self._noise_TD = noise(noise_table())
        self._contour_61 = weights["contour.weight"].T if "contour.weight" in weights else None

    def say(
        self,
        tokens: Sequence[IntArray],
        speaker: Who,
        speeds: Sequence[FloatArray],
        semitones: Sequence[FloatArray],
    ) -> list[SpokenSentence]:
        """See `Voice`; one sentence after the other."""
        return [self._sentence(ids_L, speaker, *how) for ids_L, *how in zip(tokens, speeds, semitones, strict=True)]

    def _sentence(
        self, tokens_L: IntArray, speaker: Who, speed_L: FloatArray, semitones_L2: FloatArray
    ) -> SpokenSentence:
        own_D = self._voices_SD[speaker] if isinstance(speaker, int) else speaker @ self._voices_SD
        voice_D = np.float32(VOICE_SCALE) * own_D
        encoded_LD = self._encoder(self._embedding_VD[tokens_L] + voice_D)
        predicted_L2 = self._prosody_head(self._predictor(encoded_LD))
        frames_L = np.maximum(np.exp(predicted_L2[:, 0]) - np.float32(1.0), np.float32(0.0))
        durations_L = _rounded(np.asarray(frames_L / speed_L, dtype=np.float32))
        frames = max(2, int(durations_L.sum()))
        token_T = np.repeat(np.arange(len(tokens_L)), durations_L)
        token_T = np.pad(token_T, (0, frames - len(token_T)), constant_values=len(tokens_L) - 1)
        length_T = np.maximum(durations_L[token_T], 1).astype(np.float32)
        ends_T, frame_T = np.cumsum(durations_L)[token_T], np.arange(frames)
        since_T = (frame_T - (ends_T - length_T)).astype(np.float32)
        said_LD = encoded_LD + self._energy(predicted_L2[:, 1:])
        regulated_TD = said_LD[token_T] + self._place(_places(since_T, length_T))
        contour_T, voicing_T = self._pitch_head(self._melody(regulated_TD)).T
        if self._contour_61 is not None:
            contour_T = contour_T + (_nearness(frames) @ self._contour_61)[:, 0]
        share_T = np.clip((frame_T - (ends_T - durations_L[token_T]) + np.float32(0.5)) / length_T, 0.0, 1.0)
        first_T, last_T = (semitones_L2 / np.float32(12.0))[token_T].T
        octaves_T = first_T + share_T.astype(np.float32) * (last_T - first_T)
        pitch_T2 = np.stack([contour_T + octaves_T * np.float32(np.log(2.0)), voicing_T > 0], axis=-1)
        hidden_TD = regulated_TD + self._pitch(pitch_T2) + np.resize(self._noise_TD, regulated_TD.shape)
        mel_TM = np.clip(self._output(self._decoder(hidden_TD)), 0.0, 1.0)
        return SpokenSentence(mel_TM, hertz(pitch_T2), durations_L)


def hertz(melody_T2: FloatArray) -> FloatArray:
    """F0 (T,) of a melody, rounded as `phonate.tasks.speech.model.hertz` does."""
    f0_T: FloatArray = np.round(np.float32(8.0 * MIDDLE_F0) * np.exp(melody_T2[:, 0])) / np.float32(8.0)
    f0_T *= melody_T2[:, 1]
    return f0_T


def _rounded(frames_L: FloatArray) -> IntArray:
    """Durations (L,) as integers. Rounding errors carry over to the next token, so the total is kept."""
    ends_L = np.round(np.cumsum(frames_L, dtype=np.float64).astype(np.float32))
    return np.diff(ends_L, prepend=np.float32(0.0)).astype(np.int64)


def _places(since_T: FloatArray, length_T: FloatArray) -> FloatArray:
    """Where a frame lies in its token (T, 6): share passed (and a wave of it), nearness of both ends, length."""
    share_T = np.clip((since_T + np.float32(0.5)) / length_T, 0.0, 1.0)
    return np.stack(
        [
            share_T,
            np.sin(np.float32(np.pi) * share_T),
            np.cos(np.float32(np.pi) * share_T),
            np.exp(-np.clip(since_T, 0.0, 50.0) / np.float32(2.0)),
            np.exp(-np.clip(length_T - np.float32(1.0) - since_T, 0.0, 50.0) / np.float32(2.0)),
            np.log(length_T),
        ],
        axis=-1,
    ).astype(np.float32)


def _nearness(frames: int) -> FloatArray:
    """How near each frame is to the beginning and to the end of a sentence (T, 6)."""
    since_T = np.arange(frames, dtype=np.float32)
    ways = [np.exp(-far_T / np.float32(one)) for far_T in (since_T, since_T[::-1]) for one in CONTOUR_FRAMES]
    return np.stack(ways, axis=-1)
