"""Frame labels of conversations, from speech that is detected in clips of single speakers.

It provides the labels of simulated conversations, so silence around a clip and pauses within it are not labelled as
speech. Shapes: N samples, T frames, K segments.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from phonate.audio.decoding import FloatArray

# ---------------------- Frame labels from segments of speech. Shapes: T frames, S speakers, K segments

_ROUNDING = 6  # decimals of a frame: 0.3 s at 100 frames a second is frame 30, whatever the float


def arrival_activity(
    begin_K: NDArray[np.float64], end_K: NDArray[np.float64], speaker_K: NDArray[np.int64], frames: int, centre: float
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The activity (T, S) uint8 of T = `frames` frames, and the speaker of each column (S,).

    A speaker is active in a frame if active at its centre. Columns are in order of arrival, speakers that start in the
    same frame sorted by number; silent speakers have no column.

    Args:
        begin_K, end_K: Times in frames, from the beginning of frame 0; they may lie outside of the T frames.
        speaker_K: Speaker numbers.
        centre: Position of the centre of a frame, in frames.
    """
    first_K = np.clip(np.ceil(np.round(begin_K - centre, _ROUNDING)), 0, frames).astype(np.int64)
    last_K = np.clip(np.ceil(np.round(end_K - centre, _ROUNDING)), 0, frames).astype(np.int64)
    heard = last_K > first_K
    first_K, last_K, speaker_K = first_K[heard], last_K[heard], speaker_K[heard]
    order = np.lexsort((speaker_K, first_K))
    columns = {int(speaker): column for column, speaker in enumerate(dict.fromkeys(speaker_K[order].tolist()))}
    activity_TS = np.zeros((frames, len(columns)), dtype=np.uint8)
    for first, last, speaker in zip(first_K.tolist(), last_K.tolist(), speaker_K.tolist(), strict=True):
        activity_TS[first:last, columns[speaker]] = 1
    return activity_TS, np.fromiter(columns, dtype=np.int64, count=len(columns))


def mixed_activity(
    one_TS: NDArray[np.uint8], one_S: NDArray[np.int64], two_TS: NDArray[np.uint8], two_S: NDArray[np.int64]
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The activity (T, S) and speakers (S,) of two conversations that are heard at once and begin together, as long as
    the first. A speaker of both has one column; negative numbers are always different speakers. Columns are in the
    order of `arrival_activity`."""
    both_TS = np.zeros((len(one_TS), one_TS.shape[1] + two_TS.shape[1]), dtype=np.uint8)
    both_TS[:, : one_TS.shape[1]] = one_TS
    both_TS[: len(two_TS), one_TS.shape[1] :] = two_TS[: len(one_TS)]
    number_S = np.concatenate([one_S, two_S])
    for column in range(one_TS.shape[1], len(number_S)):
        same = np.flatnonzero((number_S[: one_TS.shape[1]] == number_S[column]) & (number_S[column] >= 0))
        both_TS[:, same] |= both_TS[:, [column]]
        both_TS[:, column] *= not len(same)
    heard_S = np.flatnonzero(both_TS.any(axis=0))
    order_S = heard_S[np.lexsort((number_S[heard_S], both_TS[:, heard_S].argmax(axis=0)))]
    return np.ascontiguousarray(both_TS[:, order_S]), number_S[order_S]


# ----------------------------------------------- Energy-based speech detection in single-speaker clips

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
