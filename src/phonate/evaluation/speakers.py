"""Similarity of voices: cosines of speaker embeddings, and what a similarity means.

Embeddings of voices were trained on some languages more than on others, so the cosine that stands for "the same person"
differs from language to language, and with the length and the quality of recordings.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from phonate.config.errors import DataError
from phonate.pretrained import Embedding


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
