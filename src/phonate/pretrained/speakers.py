"""Similarity of voices: cosine of d-vectors, and what a similarity means.

Embeddings of voices were trained on some languages more than on others, so the cosine that stands for "the same person"
differs from language to language, and with the length and the quality of recordings.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from phonate.audio.decoding import FloatArray
from phonate.config.errors import DataError, optional_package
from phonate.pretrained.naturalness import old_pkg_resources

# ---------- Similarity of voices: cosine of d-vectors (Wan et al. 2018, "Generalized end-to-end loss")

Embedding = npt.NDArray[np.float32]
EMBEDDING_WIDTH = 256
JUDGE_RATE = 16000
"""Hz."""


class SpeakerJudge:
    """Embeds voices with resemblyzer's pretrained encoder (Apache 2.0, in its wheel)."""

    def __init__(self) -> None:
        with old_pkg_resources():
            self._package = optional_package("resemblyzer", "speaker similarity")
        # not an attribute of the package if an import of it has failed before in this process
        self._hearing = importlib.import_module("resemblyzer.hparams")
        self._encoder = self._package.VoiceEncoder("cpu", verbose=False)

    def embed(self, waveform: FloatArray, sample_rate: int, name: str = "a recording") -> Embedding:
        """(256,) unit-length embedding of a recording, after removing silence.

        Raises DataError with the recording's `name` if it has no speech.
        """
        speech = self._package.preprocess_wav(np.asarray(waveform, dtype=np.float32), source_sr=sample_rate)
        if len(speech) == 0:
            raise DataError(f"{name}: the speaker judge finds no speech in it")
        return np.asarray(self._encoder.embed_utterance(speech), dtype=np.float32)

    def embed_pieces(self, speech: FloatArray) -> Embedding:
        """(P, 256) unit-length embeddings of pieces of 1.6 s, one each 0.77 s, of speech (N,) at 16 kHz; none (P = 0)
        where all samples are zero.

        The mean of their cosines to the pieces of other speech does not depend on how long the two are, which cosines
        of whole recordings do. Speech that is shorter than a piece is repeated: of 0.8 s of speakers of LibriSpeech
        98 % are told apart then, 92 % where it is filled up with silence.
        """
        if not np.any(speech):
            return np.zeros((0, EMBEDDING_WIDTH), dtype=np.float32)
        hearing = self._hearing
        piece = hearing.sampling_rate * hearing.partials_n_frames * hearing.mel_window_step // 1000
        if len(speech) < piece:
            speech = np.tile(speech, -(-piece // len(speech)))[:piece]
        return self._pieces(speech, 1.3)[0]

    def embed_continuously(self, waveform: FloatArray, per_second: float) -> tuple[Embedding, FloatArray]:
        """(P, 256) unit-length embeddings of pieces of 1.6 s of a recording (N,) at 16 kHz, so many in a second, and
        (P,) the seconds of their middles; none where all samples are zero."""
        if not np.any(waveform):
            return np.zeros((0, EMBEDDING_WIDTH), dtype=np.float32), np.zeros(0, dtype=np.float32)
        return self._pieces(waveform, per_second)

    def _pieces(self, waveform: FloatArray, per_second: float) -> tuple[Embedding, FloatArray]:
        level = self._hearing.audio_norm_target_dBFS
        louder = self._package.audio.normalize_volume(waveform, level, increase_only=True)
        _, pieces_PD, places = self._encoder.embed_utterance(louder, return_partials=True, rate=per_second)
        middles = [(place.start + place.stop) / 2 / JUDGE_RATE for place in places]
        return np.asarray(pieces_PD, dtype=np.float32), np.asarray(middles, dtype=np.float32)


def similarity(embedding: Embedding, clips: Sequence[Embedding]) -> float:
    """Mean cosine of `embedding` to single clips of a speaker.

    Single clips are used instead of their mean, because a mean is close to every voice (two different women reach 0.75
    against one), so its cosines are not comparable with those of clips.
    """
    return float(np.mean(np.stack(clips) @ embedding))


def profile(embeddings: Sequence[Embedding], seconds: Sequence[float]) -> Embedding:
    """Speaker profile: the mean of the clips' embeddings, weighted by clip length and normalised."""
    mean = np.average(np.stack(embeddings), axis=0, weights=seconds)
    return np.asarray(mean / np.linalg.norm(mean), dtype=np.float32)


def profiles(embeddings: Sequence[Embedding], seconds: Sequence[float], enough: float) -> list[Embedding]:
    """Profiles of one speaker from groups of successive clips, each of `enough` seconds of speech or more.

    Profiles from more speech are closer to every voice, so only compare profiles of the same length. There is at least
    one profile; left-over clips at the end join the last group.
    """
    groups: list[list[int]] = [[]]
    for number in range(len(embeddings)):
        if sum(seconds[i] for i in groups[-1]) >= enough:
            groups.append([])
        groups[-1].append(number)
    if len(groups) > 1 and sum(seconds[i] for i in groups[-1]) < enough:
        last = groups.pop()
        groups[-1] += last
    return [profile([embeddings[i] for i in group], [seconds[i] for i in group]) for group in groups]


# --------------------------------------------------------------------- What a speaker similarity means


@dataclass(frozen=True)
class Calibration:
    """Cosines of natural recordings."""

    same: float
    """Mean of two recordings of one speaker."""
    other: float
    """Mean of recordings of two speakers."""
    threshold: float
    """Cosine above which two recordings are taken for one speaker's: as many pairs of one speaker are below it as
    pairs of two speakers above, as shares."""
    error: float
    """That share, the equal error rate, from 0 to 1."""
    pairs: tuple[int, int]
    """Pairs of one speaker, and of two."""

    def scaled(self, cosine: float) -> float:
        """0 for as alike as two speakers are on average, 1 for as alike as two recordings of one speaker."""
        return (cosine - self.other) / (self.same - self.other)


def calibrate(voices: Mapping[str, Sequence[Embedding]]) -> Calibration:
    """The calibration by natural recordings, (256,) embeddings by speaker.

    Raises DataError unless there are two speakers, one of them with two recordings, whose voices can be told apart.
    """
    same = [float(a @ b) for own in voices.values() for a, b in itertools.combinations(own, 2)]
    other = [
        float(a @ b) for one, two in itertools.combinations(voices.values(), 2) for a, b in itertools.product(one, two)
    ]
    if not same or not other:
        raise DataError("calibrating speaker similarity takes two speakers, one of them with two recordings")
    if np.mean(same) <= np.mean(other):
        raise DataError("recordings of one speaker are no more alike than those of two; check the speakers' names")
    threshold, error = _equal_error(np.array(same), np.array(other))
    return Calibration(float(np.mean(same)), float(np.mean(other)), threshold, error, (len(same), len(other)))


def _equal_error(same: np.ndarray, other: np.ndarray) -> tuple[float, float]:
    """The threshold at which missed and false acceptances are equally frequent, and how frequent they are."""
    candidates = np.unique(np.concatenate([same, other]))
    missed = np.searchsorted(np.sort(same), candidates, side="left") / len(same)
    false = 1.0 - np.searchsorted(np.sort(other), candidates, side="left") / len(other)
    best = int(np.argmin(np.abs(missed - false)))
    return float(candidates[best]), float((missed[best] + false[best]) / 2)
