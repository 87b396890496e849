"""Energy-based speech detection in single-speaker clips.

It provides the labels of simulated conversations, so silence around a clip and pauses within it are not labelled as
speech. Shapes: N samples, T frames, K segments.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from phonate.audio.decoding import FloatArray

Segments = NDArray[np.int64]
"""(K, 2) first and end samples of segments of speech, in order."""

_FRAME_SECONDS = 0.01
_SILENCE_DB = -90.0
_RANGE_DB = 35.0
"""Frames further than this below the loud level (95th percentile) are silence."""
_OVER_FLOOR_DB = 6.0
"""Frames less than this above the quiet level (5th percentile) are silence, ..."""
_SURE_DB = 12.0
"""... unless they are less than this below the loud level."""
SHORTEST_PAUSE = 0.2
"""Seconds; shorter quiet parts, such as the closure of a plosive, count as speech."""
_LEAST_RANGE_DB = 10.0
"""Minimum difference between the loud and the quiet level; if it is smaller, noise masks the speech."""
_SHORTEST_SPEECH = 0.06
"""Seconds; shorter bursts are clicks."""
_MARGIN = 0.02
"""Seconds added on both sides for weak onsets and endings."""


def speech_segments(waveform_N: FloatArray, sample_rate: int) -> Segments:
    """The segments of speech in a clip (N,) at `sample_rate` Hz; none if it is silent or has a constant level."""
    frame = round(_FRAME_SECONDS * sample_rate)
    count = len(waveform_N) // frame
    if count == 0:
        return np.zeros((0, 2), dtype=np.int64)
    framed = waveform_N[: count * frame].reshape(count, frame)
    power_T = np.einsum("tn,tn->t", framed, framed) / frame
    # over three frames, as a pitch period of a low voice is about as long as one frame
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
    """(K, 2) first and end indices of the runs of True."""
    changes = np.flatnonzero(np.diff(mask_T, prepend=False, append=False))
    return changes.reshape(-1, 2).astype(np.int64)


def joined(runs: NDArray[np.int64], gap: int) -> NDArray[np.int64]:
    """(K, 2): sorted runs, merged if they are less than `gap` (frames or samples) apart."""
    if not len(runs):
        return runs
    apart = np.flatnonzero(runs[1:, 0] - runs[:-1, 1] >= gap)
    return np.stack([runs[np.concatenate([[0], apart + 1]), 0], runs[np.concatenate([apart, [-1]]), 1]], axis=1)
