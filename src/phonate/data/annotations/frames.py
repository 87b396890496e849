"""Conversion between speaker turns and arrays of frames. Shapes: T frames, S speakers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from phonate.data.annotations.rttm import SpeakerTurn


def turns_from_activity(
    activity_TS: NDArray[np.generic], frames_per_second: float, speakers: Sequence[str], start: float = 0.0
) -> list[SpeakerTurn]:
    """The turns, sorted by start, of an array (T, S) that is nonzero where a speaker is active.

    Args:
        activity_TS: Frame t spans the time from t / frames_per_second to (t + 1) / frames_per_second.
        speakers: The name of each column.
        start: Start of frame 0 in the recording, in seconds.

    Raises ValueError for an array of another shape.
    """
    if activity_TS.ndim != 2 or activity_TS.shape[1] != len(speakers):
        raise ValueError(f"expected an array (frames, {len(speakers)} speakers), got shape {activity_TS.shape}")
    turns = []
    silent_S = np.zeros((1, len(speakers)), dtype=np.int8)
    edges_TS = np.diff(np.concatenate([silent_S, (activity_TS != 0).astype(np.int8), silent_S]), axis=0)
    for column, speaker in enumerate(speakers):
        begins, ends = np.flatnonzero(edges_TS[:, column] > 0), np.flatnonzero(edges_TS[:, column] < 0)
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            turns.append(SpeakerTurn(start + begin / frames_per_second, start + end / frames_per_second, speaker))
    return sorted(turns)


def activity_from_turns(
    turns: Iterable[SpeakerTurn], frames: int, frames_per_second: float, speakers: Sequence[str], start: float = 0.0
) -> NDArray[np.uint8]:
    """(T, S) uint8: 1 where the centre of a frame lies in a turn of the speaker. The inverse of `turns_from_activity`.

    Args:
        frames: T.
        speakers: The speaker of each column; turns of other speakers are ignored.
        start: Start of frame 0 in the recording, in seconds.
    """
    activity_TS = np.zeros((frames, len(speakers)), dtype=np.uint8)
    columns = {speaker: column for column, speaker in enumerate(speakers)}
    for turn in turns:
        if turn.speaker in columns:
            first, last = ((time - start) * frames_per_second for time in (turn.start, turn.end))
            begin, end = (max(0, int(np.ceil(round(one - 0.5, 6)))) for one in (first, last))
            activity_TS[begin:end, columns[turn.speaker]] = 1
    return activity_TS
