"""Frame labels from segments of speech. Shapes: T frames, S speakers, K segments."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

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
