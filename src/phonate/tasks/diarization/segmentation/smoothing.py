"""Smoothing of class probabilities with a hidden Markov model (Rabiner 1989, "A tutorial on hidden Markov models").

It adds to the network's judgement of each frame how long conversations stay as they are. Its states are the sets of
simultaneous speakers; between two frames at most one speaker starts or stops.

Shapes: U output frames, P classes (sets of speakers), K speakers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from phonate.audio.decoding import FloatArray
from phonate.tasks.diarization.decoding_settings import SmoothingSettings

_LEAST = 1e-5
"""Probabilities below this count as this, so that a single frame can't rule out a class."""


def smoothed(
    probabilities_UP: FloatArray, members_PK: FloatArray, frames_per_second: float, settings: SmoothingSettings
) -> FloatArray:
    """(U, P): the probability of each class in each frame given all frames (forward-backward algorithm).

    Args:
        probabilities_UP: Probability of each class given its frame.
        members_PK: 1 where a speaker is in the set of a class.
    """
    change_PP = transitions(members_PK, 1.0 / (frames_per_second * settings.change_seconds))
    evidence_UP = np.maximum(probabilities_UP.astype(np.float64), _LEAST) ** settings.weight
    before_UP, after_UP = np.empty_like(evidence_UP), np.ones_like(evidence_UP)
    before_UP[0] = evidence_UP[0] / evidence_UP[0].sum()
    for frame in range(1, len(evidence_UP)):
        joint_P = (before_UP[frame - 1] @ change_PP) * evidence_UP[frame]
        before_UP[frame] = joint_P / joint_P.sum()
    for frame in range(len(evidence_UP) - 2, -1, -1):
        later_P = change_PP @ (evidence_UP[frame + 1] * after_UP[frame + 1])
        after_UP[frame] = later_P / later_P.sum()
    found_UP = before_UP * after_UP
    return np.asarray(found_UP / found_UP.sum(axis=1, keepdims=True), dtype=np.float32)


def transitions(members_PK: FloatArray, change: float) -> NDArray[np.float64]:
    """(P, P): the probability of each class after each class. `change`: that of any change between two frames, which is
    the same for each speaker who may start or stop."""
    differing_PP = np.abs(members_PK[:, None, :] - members_PK[None, :, :]).sum(axis=2)
    next_PP = (differing_PP == 1).astype(np.float64)
    change_PP: NDArray[np.float64] = min(change, 0.5) * next_PP / next_PP.sum(axis=1, keepdims=True)
    np.fill_diagonal(change_PP, 1.0 - min(change, 0.5))
    return change_PP
