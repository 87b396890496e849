"""How alike two voices are: cosine of d-vectors (Wan et al. 2018, "Generalized end-to-end loss")."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from phonate.audio.decoding import FloatArray
from phonate.config.errors import DataError
from phonate.evaluation.packages import judge_package, old_pkg_resources

Embedding = npt.NDArray[np.float32]


class SpeakerJudge:
    """Embeds voices with resemblyzer's pretrained encoder (Apache 2.0, in its wheel)."""

    def __init__(self) -> None:
        with old_pkg_resources():
            self._package = judge_package("resemblyzer", "speaker similarity")
        self._encoder = self._package.VoiceEncoder("cpu", verbose=False)

    def embed(self, waveform: FloatArray, sample_rate: int, name: str = "a recording") -> Embedding:
        """(256,) unit-length embedding of a recording; silence is cut out first.

        Raises DataError, with the recording's `name`, when nothing but silence is left.
        """
        speech = self._package.preprocess_wav(np.asarray(waveform, dtype=np.float32), source_sr=sample_rate)
        if len(speech) == 0:
            raise DataError(f"{name}: the speaker judge finds no speech in it, so there is no voice to compare")
        return np.asarray(self._encoder.embed_utterance(speech), dtype=np.float32)


def similarity(embedding: Embedding, clips: Sequence[Embedding]) -> float:
    """Mean cosine of `embedding` to single clips of a speaker.

    To single clips, not to their mean: a mean is near to everybody (two different women reach 0.75 against
    one), so its cosines can't be compared with those of clips.
    """
    return float(np.mean(np.stack(clips) @ embedding))


def profile(embeddings: Sequence[Embedding], seconds: Sequence[float]) -> Embedding:
    """An enrolled speaker: the mean of clips' embeddings, weighted by their lengths, at unit length."""
    mean = np.average(np.stack(embeddings), axis=0, weights=seconds)
    return np.asarray(mean / np.linalg.norm(mean), dtype=np.float32)


def profiles(embeddings: Sequence[Embedding], seconds: Sequence[float], enough: float) -> list[Embedding]:
    """Profiles of one speaker from groups of successive clips, each of `enough` seconds of speech or more.

    A profile of much speech lies nearer to everybody than one of little: compare only profiles of the same length.
    There is at least one; clips at the end that make no group of their own join the last.
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
