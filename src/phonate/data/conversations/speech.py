"""Where there is speech in a clip of one speaker, by its energy.

Labels of simulated conversations are made of this, so that neither the silence around a clip nor the pauses in it count
as speech.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from phonate.audio.decoding import FloatArray

Stretches = NDArray[np.int64]
"""(K, 2) first and end samples of K stretches of speech, in order."""

_FRAME_SECONDS = 0.01
_SILENCE_DB = -90.0
_RANGE_DB = 35.0
"""Speech is no quieter than this below the clip's loud frames (their 95th percentile) ..."""
_OVER_FLOOR_DB = 6.0
"""... and this much louder than its quiet frames (5th percentile), ..."""
_SURE_DB = 12.0
"""... but frames that are only this much below the loud ones are always speech."""
SHORTEST_PAUSE = 0.2
"""Seconds; quieter parts that are shorter, such as the closure of a plosive, belong to the speech around them."""
_LEAST_RANGE_DB = 10.0
"""Between quiet and loud frames of speech, even without a pause; where there is less, noise hides the speech."""
_SHORTEST_SPEECH = 0.06
"""Seconds; shorter bursts are clicks."""
_MARGIN = 0.02
"""Seconds added on both sides for weak beginnings and ends."""


def speech_stretches(waveform_N: FloatArray, sample_rate: int) -> Stretches:
    """The stretches of speech in a clip; none for one that is silent, or as loud throughout as noise is."""
    frame = round(_FRAME_SECONDS * sample_rate)
    count = len(waveform_N) // frame
    if count == 0:
        return np.zeros((0, 2), dtype=np.int64)
    framed = waveform_N[: count * frame].reshape(count, frame)
    power_T = np.einsum("tn,tn->t", framed, framed) / frame
    # over three frames, as a pitch period of a low voice is about as long as one
    smooth_T = np.convolve(power_T, np.full(3, 1.0 / 3.0), mode="same")
    level_T = 10.0 * np.log10(np.maximum(smooth_T, 1e-10))
    quiet, loud = np.percentile(level_T, (5.0, 95.0))
    if loud <= _SILENCE_DB or loud - quiet < _LEAST_RANGE_DB:
        return np.zeros((0, 2), dtype=np.int64)
    threshold = max(loud - _RANGE_DB, min(quiet + _OVER_FLOOR_DB, loud - _SURE_DB))
    runs = _runs(level_T > threshold)
    runs = joined(runs, round(SHORTEST_PAUSE / _FRAME_SECONDS))
    runs = runs[runs[:, 1] - runs[:, 0] >= round(_SHORTEST_SPEECH / _FRAME_SECONDS)]
    margin = round(_MARGIN / _FRAME_SECONDS)
    return np.asarray(np.clip(runs + np.array([-margin, margin]), 0, count) * frame, dtype=np.int64)


def _runs(mask_T: NDArray[np.bool_]) -> NDArray[np.int64]:
    """(K, 2) first and end of the runs of True."""
    changes = np.flatnonzero(np.diff(mask_T, prepend=False, append=False))
    return changes.reshape(-1, 2).astype(np.int64)


def joined(runs: NDArray[np.int64], gap: int) -> NDArray[np.int64]:
    """(K, 2) runs, in order, with those joined between which there are fewer than `gap` frames or samples."""
    if not len(runs):
        return runs
    apart = np.flatnonzero(runs[1:, 0] - runs[:-1, 1] >= gap)
    return np.stack([runs[np.concatenate([[0], apart + 1]), 0], runs[np.concatenate([apart, [-1]]), 1]], axis=1)
