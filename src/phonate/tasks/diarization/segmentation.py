"""From overlapping windows of a long recording to the speaker turns of the whole.

Shapes: T feature frames, F features, N samples.

It adds to the network's judgement of each frame how long conversations stay as they are. Its states are the sets of
simultaneous speakers; between two frames at most one speaker starts or stops.

Shapes: U output frames, P classes (sets of speakers), K speakers.

Shapes: W windows, U output frames (of a window or of the recording), K speakers of the model, G of the recording.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import median_filter
from scipy.optimize import linear_sum_assignment

from phonate.audio.decoding import FloatArray
from phonate.data.annotations import SpeakerTurn, turns_from_activity
from phonate.data.features import Features
from phonate.tasks.diarization.settings import DecodingSettings, SmoothingSettings

# ------------------------------------ Overlapping windows of long recordings, which are read in blocks

Read = Callable[[], Iterable[FloatArray]]
"""Each call iterates over a recording from the start, in blocks (N,)."""


@dataclass(frozen=True)
class Window:
    """A part of a recording."""

    start: int
    """Its first feature frame."""
    features_TF: FloatArray
    waveform_N: FloatArray
    """The corresponding samples."""


def read_windows(read: Read, features: Features, length: int, step: int, stride: int) -> Iterator[Window]:
    """Windows of `length` feature frames every `step` frames; the last one ends with the recording.

    All start at multiples of `stride`, which divides `length` and `step`. A shorter recording is one window, or none if
    it is shorter than a frame.
    """
    assert length % stride == 0
    assert step % stride == 0
    hop = features.audio.hop_length
    samples = _Samples(read())
    for start, features_TF in _sliding(features.compute_blocks(read), length, step, stride):
        waveform_N = samples.cut(start * hop, (start + len(features_TF)) * hop)
        yield Window(start, features_TF, waveform_N)


def _sliding(blocks: Iterable[FloatArray], length: int, step: int, stride: int) -> Iterator[tuple[int, FloatArray]]:
    """First frame and frames of each window."""
    held: FloatArray | None = None
    first, start = 0, 0  # of what is held, and of the next window
    for block in blocks:
        held = block if held is None else np.concatenate([held, block])
        while first + len(held) >= start + length:
            yield start, held[start - first : start - first + length]
            start += step
        # the last window may begin anywhere after the start of the previous one
        keep = max(0, start - step - first)
        held, first = held[keep:], first + keep
    if held is None:
        return
    total = first + len(held)
    if start == 0:
        yield 0, held
    elif start - step + length < total:
        begin = -(-(total - length) // stride) * stride
        yield begin, held[begin - first :]


class _Samples:
    """Cuts samples out of blocks, from left to right."""

    def __init__(self, blocks: Iterable[FloatArray]) -> None:
        self._blocks = iter(blocks)
        self._held = np.zeros(0, dtype=np.float32)
        self._first = 0

    def cut(self, start: int, end: int) -> FloatArray:
        """Samples `start` to `end` (exclusive), fewer at the end of the recording. `start` must not decrease."""
        parts = [self._held]
        held = self._first + len(self._held)
        while held < end and (block := next(self._blocks, None)) is not None:
            parts.append(block)
            held += len(block)
        joined = np.concatenate(parts)
        self._held, self._first = joined[start - self._first :], start
        return self._held[: end - start]


# ----------------------------------------- Smoothing of class probabilities with a hidden Markov model

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


# ----------------------- Merges the speaker activity of overlapping windows into that of the recording

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


# ------------------- From activity probabilities to speaker turns. Shapes: U output frames, G speakers

_ROUNDING = 1e-6


def active(probabilities_UG: FloatArray, threshold: float, median: int) -> NDArray[np.uint8]:
    """(U, G): 1 where the probability is above `threshold`, smoothed by a median filter of `median` frames (odd)."""
    active_UG = (probabilities_UG > threshold).astype(np.uint8)
    if median == 1 or not active_UG.size:
        return active_UG
    return np.asarray(median_filter(active_UG, size=(median, 1), mode="constant"))


def speaker_turns(
    probabilities_UG: FloatArray, frames_per_second: float, settings: DecodingSettings
) -> list[list[SpeakerTurn]]:
    """The turns of each of the G speakers, named by index; times in seconds from the start of frame 0."""
    active_UG = active(probabilities_UG, settings.threshold, settings.median)
    found = []
    for column in range(active_UG.shape[1]):
        turns = turns_from_activity(active_UG[:, column : column + 1], frames_per_second, [str(column)])
        turns = _without_gaps(turns, settings.min_silence - _ROUNDING)
        found.append([turn for turn in turns if turn.duration >= settings.min_speech - _ROUNDING])
    return found


def _without_gaps(turns: list[SpeakerTurn], least: float) -> list[SpeakerTurn]:
    """Merges successive turns of one speaker with gaps shorter than `least` seconds."""
    found: list[SpeakerTurn] = []
    for turn in turns:
        if found and turn.start - found[-1].end < least:
            turn = SpeakerTurn(found.pop().start, turn.end, turn.speaker)
        found.append(turn)
    return found


class TurnStream:
    """`speaker_turns` for probabilities that arrive in blocks: the same turns, each as soon as its end is known."""

    def __init__(self, frames_per_second: float, settings: DecodingSettings) -> None:
        self._rate, self._settings = frames_per_second, settings
        self._half = settings.median // 2
        self._wait = max(settings.min_silence, 1.0 / frames_per_second) + self._half / frames_per_second
        """Seconds of silence after which the end of a turn is known."""
        self._kept_UG: FloatArray | None = None
        self._first = 0
        """First frame of `_kept_UG`."""
        self._done: list[float] = []
        """End of the last returned turn of each speaker, in seconds."""

    def push(self, probabilities_UG: FloatArray) -> list[tuple[int, SpeakerTurn]]:
        """Add frames (U, G). Returns the turns whose end is now known, with their speakers."""
        if self._kept_UG is None:
            self._kept_UG, self._done = probabilities_UG[:0], [-1.0] * probabilities_UG.shape[1]
        self._kept_UG = np.concatenate([self._kept_UG, probabilities_UG])
        return self._ended(self._wait)

    def end(self) -> list[tuple[int, SpeakerTurn]]:
        """The remaining turns."""
        return [] if self._kept_UG is None else self._ended(0.0)

    def _ended(self, wait: float) -> list[tuple[int, SpeakerTurn]]:
        assert self._kept_UG is not None
        offset, now = self._first / self._rate, (self._first + len(self._kept_UG)) / self._rate
        settled = now - self._wait
        found = []
        growing = self._settings.model_copy(update={"min_speech": 0.0})
        for speaker, turns in enumerate(speaker_turns(self._kept_UG, self._rate, growing)):
            for turn in turns:
                turn = SpeakerTurn(offset + turn.start, offset + turn.end, turn.speaker)
                if turn.end <= self._done[speaker] + _ROUNDING:
                    continue
                if turn.end > now - wait + _ROUNDING:
                    settled = min(settled, turn.start)
                    continue
                self._done[speaker] = turn.end
                if turn.duration >= self._settings.min_speech - _ROUNDING:
                    found.append((speaker, turn))
        # the median filter looks at frames before those that are decided
        first = max(self._first, round(settled * self._rate) - self._half)
        self._kept_UG = self._kept_UG[first - self._first :]
        self._first = first
        return sorted(found, key=lambda one: one[1])
