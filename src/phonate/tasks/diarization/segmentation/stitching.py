"""Merges the speaker activity of overlapping windows into that of the recording.

Shapes: W windows, U output frames (of a window or of the recording), K speakers of the model, G of the recording.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from phonate.audio.decoding import FloatArray

SILENT = -1
"""Index of a speaker of a window who is silent."""
_SAME_SHARE = 0.5
Assignment = NDArray[np.int64]
"""(W, K): the speaker of the recording for each speaker of a window, or SILENT."""


@dataclass(frozen=True)
class Exchange:
    """Frames `start` to `end` of a window in which two speakers of the recording are exchanged."""

    window: int
    start: int
    end: int
    speaker: int
    other: int


@dataclass(frozen=True)
class Segmentation:
    """The speaker activity of each window."""

    starts: list[int]
    """First output frame of each window."""
    probabilities: list[FloatArray]
    """Activity probabilities (U, K) of each window."""

    @property
    def frames(self) -> int:
        """Output frames of the recording."""
        return max(start + len(one) for start, one in zip(self.starts, self.probabilities, strict=True))

    def __iter__(self) -> Iterator[tuple[int, FloatArray]]:
        return zip(self.starts, self.probabilities, strict=True)


def same_columns(windows: Segmentation) -> Assignment:
    """The assignment for models whose columns have the same meaning in all windows."""
    return np.tile(np.arange(windows.probabilities[0].shape[1]), (len(windows.starts), 1))


def by_overlap(windows: Segmentation) -> Assignment:
    """Matches the speakers of each window to those of the previous one, by their activity in the shared frames.

    A speaker that is silent in the shared frames may be confused with another one, and there are never more speakers
    than the model has.
    """
    speakers = windows.probabilities[0].shape[1]
    assignment_WK = np.tile(np.arange(speakers), (len(windows.starts), 1))
    before_UK = np.zeros((0, speakers), dtype=np.float32)  # the previous window, in the recording's speaker order
    begin = 0
    for number, (start, own_UK) in enumerate(windows):
        shared_UK = before_UK[start - begin :]
        shared = min(len(shared_UK), len(own_UK))
        if shared:
            apart_KK = np.abs(own_UK[:shared, :, None] - shared_UK[:shared, None, :]).sum(axis=0)
            assignment_WK[number] = linear_sum_assignment(apart_KK)[1]
        begin, before_UK = start, np.empty_like(own_UK)
        before_UK[:, assignment_WK[number]] = own_UK
    return assignment_WK


def tracks(windows: Segmentation, active: Sequence[NDArray[np.uint8]], frames: int) -> Assignment:
    """(W, K): the track of each speaker of a window. Speakers of neighbouring windows that are active at the same time
    are in one track.

    Args:
        active: Activity (U, K) of each window.
        frames: Minimum number of shared frames in which both must be active; it must also be at least half of those in
            which either is.
    """
    count = windows.probabilities[0].shape[1]
    tracks_WK = np.arange(len(active) * count).reshape(len(active), count)
    for number in range(1, len(active)):
        before_UK = active[number - 1][windows.starts[number] - windows.starts[number - 1] :].astype(np.int64)
        own_UK = active[number][: len(before_UK)].astype(np.int64)
        before_UK = before_UK[: len(own_UK)]
        both_KK = before_UK.T @ own_UK
        either_KK = before_UK.sum(0)[:, None] + own_UK.sum(0) - both_KK
        share_KK = both_KK / np.maximum(either_KK, 1)
        for one, other in zip(*linear_sum_assignment(share_KK, maximize=True), strict=True):
            if share_KK[one, other] >= _SAME_SHARE and both_KK[one, other] >= frames:
                tracks_WK[number, other] = tracks_WK[number - 1, one]
    return tracks_WK


def joined(windows: Segmentation, assignment_WK: Assignment, exchanges: Sequence[Exchange] = ()) -> FloatArray:
    """(U, G): activity probabilities of the recording's speakers, exchanged where `exchanges` say so.

    Each frame is the mean over the windows that contain it, weighted by its distance to the nearer end of the window.
    If several speakers of a window are the same speaker of the recording, the highest probability counts.
    """
    count = int(assignment_WK.max(initial=SILENT)) + 1
    of_window: dict[int, list[Exchange]] = {}
    for exchange in exchanges:
        of_window.setdefault(exchange.window, []).append(exchange)
    sum_UG = np.zeros((windows.frames, count), dtype=np.float32)
    weight_U1 = np.zeros((windows.frames, 1), dtype=np.float32)
    for number, ((start, own_UK), persons_K) in enumerate(zip(windows, assignment_WK, strict=True)):
        frame_U = np.arange(1, len(own_UK) + 1)
        fade_U1 = np.minimum(frame_U, frame_U[::-1]).astype(np.float32)[:, None]
        there = slice(start, start + len(own_UK))
        own_UG = np.zeros((len(own_UK), count), dtype=np.float32)
        for column, person in enumerate(persons_K.tolist()):
            if person != SILENT:
                own_UG[:, person] = np.maximum(own_UG[:, person], own_UK[:, column])
        for one in of_window.get(number, ()):
            frames_UG = own_UG[one.start : one.end]
            frames_UG[:, [one.speaker, one.other]] = frames_UG[:, [one.other, one.speaker]]
        sum_UG[there] += fade_U1 * own_UG
        weight_U1[there] += fade_U1
    return np.asarray(sum_UG / np.maximum(weight_U1, 1.0), dtype=np.float32)
