"""From overlapping windows of a long recording to the speaker turns of the whole.

The model's speaker order is arbitrary in each window. Speakers are matched across windows by their activity where
windows overlap, or by their voices: those of overlapping windows are linked into tracks by their activity, and tracks
are clustered hierarchically by their voice embeddings, under the constraint that two speakers of one window are never
merged.

Shapes: T feature frames, F features, N samples of a waveform; W windows, U output frames (of a window or of the
recording), P classes (sets of speakers), K speakers of the model, G of the recording, D embedding. Clustering: N local
speakers (of single windows), M tracks, S segments.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.cluster.hierarchy import cut_tree, fcluster, linkage
from scipy.ndimage import median_filter
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_array
from scipy.spatial.distance import squareform

from phonate.audio.decoding import FloatArray, resample
from phonate.config.errors import InputError
from phonate.data.annotations import SpeakerTurn, turns_from_activity
from phonate.data.features import Features
from phonate.pretrained import EMBEDDING_WIDTH, SPEAKER_RATE, SpeakerEncoder
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
    if features.normalises_level:  # they read the whole recording before their first frame, to learn its level
        samples, feature_blocks = _Samples(read()), features.compute_blocks(read)
    else:
        blocks, again = itertools.tee(read())  # decoded once for the features and the samples
        first = iter([again])
        samples, feature_blocks = _Samples(blocks), features.compute_blocks(lambda: next(first, None) or read())
    for start, features_TF in _sliding(feature_blocks, length, step, stride):
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

    It adds to the network's judgement of each frame how long conversations stay as they are. Its states are the sets of
    simultaneous speakers; between two frames at most one speaker starts or stops.

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
    posterior_UP = before_UP * after_UP
    return np.asarray(posterior_UP / posterior_UP.sum(axis=1, keepdims=True), dtype=np.float32)


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


def tracks(starts: Sequence[int], active: Sequence[NDArray[np.uint8]], frames: int) -> Assignment:
    """(W, K): the track of each speaker of a window. Speakers of neighbouring windows that are active at the same time
    are in one track.

    Args:
        starts: First frame of each window.
        active: Activity (U, K) of each window.
        frames: Minimum number of shared frames in which both must be active; it must also be at least half of those in
            which either is.
    """
    count = active[0].shape[1]
    tracks_WK = np.arange(len(active) * count).reshape(len(active), count)
    for number in range(1, len(active)):
        before_UK = active[number - 1][starts[number] - starts[number - 1] :].astype(np.int64)
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
    count = 1 + max(int(assignment_WK.max(initial=SILENT)), *(one.other for one in exchanges), SILENT)
    by_window: dict[int, list[Exchange]] = {}
    for exchange in exchanges:
        by_window.setdefault(exchange.window, []).append(exchange)
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
        for one in by_window.get(number, ()):
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
    turns_of_speakers = []
    for column in range(active_UG.shape[1]):
        turns = turns_from_activity(active_UG[:, column : column + 1], frames_per_second, [str(column)])
        turns = _without_gaps(turns, settings.min_silence - _ROUNDING)
        turns_of_speakers.append([turn for turn in turns if turn.duration >= settings.min_speech - _ROUNDING])
    return turns_of_speakers


def _without_gaps(turns: list[SpeakerTurn], least: float) -> list[SpeakerTurn]:
    """Merges successive turns of one speaker with gaps shorter than `least` seconds."""
    result: list[SpeakerTurn] = []
    for turn in turns:
        if result and turn.start - result[-1].end < least:
            turn = SpeakerTurn(result.pop().start, turn.end, turn.speaker)
        result.append(turn)
    return result


class TurnStream:
    """`speaker_turns` for probabilities that arrive in blocks: the same turns, each as soon as its end is known."""

    def __init__(self, frames_per_second: float, settings: DecodingSettings) -> None:
        self._rate, self._settings = frames_per_second, settings
        self._half = settings.median // 2
        self._wait = max(settings.min_silence, 1.0 / frames_per_second) + self._half / frames_per_second
        """Seconds of silence after which the end of a turn is known."""
        self._held_UG: FloatArray | None = None
        self._first = 0
        """First frame of `_kept_UG`."""
        self._done: list[float] = []
        """End of the last returned turn of each speaker, in seconds."""

    def push(self, probabilities_UG: FloatArray) -> list[tuple[int, SpeakerTurn]]:
        """Add frames (U, G). Returns the turns whose end is now known, with their speakers."""
        if self._held_UG is None:
            self._held_UG, self._done = probabilities_UG[:0], [-1.0] * probabilities_UG.shape[1]
        self._held_UG = np.concatenate([self._held_UG, probabilities_UG])
        return self._ended(self._wait)

    def end(self) -> list[tuple[int, SpeakerTurn]]:
        """The remaining turns."""
        return [] if self._held_UG is None else self._ended(0.0)

    def _ended(self, wait: float) -> list[tuple[int, SpeakerTurn]]:
        assert self._held_UG is not None
        offset, now = self._first / self._rate, (self._first + len(self._held_UG)) / self._rate
        settled = now - self._wait
        ended = []
        growing = self._settings.model_copy(update={"min_speech": 0.0})
        for speaker, turns in enumerate(speaker_turns(self._held_UG, self._rate, growing)):
            for turn in turns:
                turn = SpeakerTurn(offset + turn.start, offset + turn.end, turn.speaker)
                if turn.end <= self._done[speaker] + _ROUNDING:
                    continue
                if turn.end > now - wait + _ROUNDING:
                    settled = min(settled, turn.start)
                    continue
                self._done[speaker] = turn.end
                if turn.duration >= self._settings.min_speech - _ROUNDING:
                    ended.append((speaker, turn))
        # the median filter looks at frames before those that are decided
        first = max(self._first, round(settled * self._rate) - self._half)
        self._held_UG = self._held_UG[first - self._first :]
        self._first = first
        return sorted(ended, key=lambda one: one[1])


# ------------------------------------------ Matches speakers across windows by clustering their voices

_APART = 1e9
"""Distance between two speakers of one window. The average distance of clusters of n and m tracks with one such pair is
above 1e9 / nm, so they are merged after all others."""
_FARTHEST = 3.0
"""Upper bound of all other distances: 1 - cosine is at most 2."""
_ENOUGH_SECONDS = 1.0
"""Tracks with less non-overlapped speech are not clustered, but assigned to clusters afterwards."""
_ONE_VOICE = 0.3
"""Voices that are nearer than this are one speaker, however many are asked for. Segments of one speaker have a mean
distance of 0.3, read close to the microphone as well as in meetings; those of two, 0.4 and more."""
_LEAST_WEIGHT = 1e-3
"""Weight in means, in seconds, of speakers without non-overlapped speech."""

Labels = NDArray[np.int64]


@dataclass(frozen=True)
class SpeakerLimits:
    """Bounds on the number of speakers of a recording."""

    least: int = 1
    most: int | None = None
    """None: no limit."""


def speaker_limits(
    speakers: int | None = None, min_speakers: int | None = None, max_speakers: int | None = None
) -> SpeakerLimits | None:
    """The limits on the number of speakers; None if none are given.

    Raises InputError for numbers below 1, or contradictory ones.
    """
    numbers = {"speakers": speakers, "min_speakers": min_speakers, "max_speakers": max_speakers}
    for name, value in numbers.items():
        if value is not None and value < 1:
            raise InputError(f"{name} {value}: must be 1 or more")
    if speakers is not None:
        if min_speakers is not None or max_speakers is not None:
            raise InputError("give either speakers, or min_speakers and max_speakers, not both")
        return SpeakerLimits(speakers, speakers)
    if min_speakers is None and max_speakers is None:
        return None
    if max_speakers is not None and (min_speakers or 1) > max_speakers:
        raise InputError(f"min_speakers {min_speakers} must not exceed max_speakers {max_speakers}")
    return SpeakerLimits(min_speakers or 1, max_speakers)


@dataclass(frozen=True)
class LocalSpeakers:
    """The speakers of all windows."""

    windows_N: Labels
    """The window of each."""
    embeddings_ND: FloatArray
    """Means of unit-length embeddings of segments; the dot product of two is the mean cosine similarity of their
    segments."""
    seconds_N: FloatArray
    """Duration of non-overlapped speech."""
    tracks_N: Labels
    """The track of each."""
    columns_N: Labels | None = None
    """What the model takes for one speaker. Tracks with the same may be one speaker though they share a window. None:
    each track has its own."""


def cluster(
    speakers: LocalSpeakers, distance: float, limits: SpeakerLimits = SpeakerLimits(), apart: float = _APART
) -> Labels:
    """(N,) the cluster of each local speaker, numbered from 0.

    Tracks with at least one second of speech are clustered by average linkage up to `distance` (1 - cosine similarity),
    or until the limits are met; speakers of one window are farther apart by `apart`, by default so that they are never
    merged. The others, longest first, are then assigned to the nearest cluster that does not occur in their windows. If
    there is none, they become a new cluster, or, if `limits` do not allow that, join the nearest. Where tracks are too
    few for the limits, the others are clustered too, but are never merged with a speaker of their windows, over whom
    they talk.
    """
    if not len(speakers.windows_N):
        return np.zeros(0, dtype=np.int64)
    tracks = _Tracks.of(speakers)
    chosen = np.flatnonzero(tracks.seconds_M >= _ENOUGH_SECONDS)
    if len(chosen) < limits.least:
        chosen = np.arange(len(tracks.seconds_M))
    labels_M = np.full(len(tracks.seconds_M), -1)
    if len(chosen):
        labels_M[chosen] = _largest(
            _linked(tracks, chosen, distance, limits, apart), tracks.seconds_M[chosen], limits.most
        )
    return _completed(tracks, labels_M, limits.most)[tracks.track_N]


@dataclass(frozen=True)
class _Tracks:
    track_N: Labels
    """The track of each local speaker."""
    embeddings_MD: FloatArray
    """Means over local speakers, weighted by their duration."""
    seconds_M: FloatArray
    there_MW: Any
    """Sparse: 1 if the track occurs in the window."""
    column_M: Labels

    @classmethod
    def of(cls, speakers: LocalSpeakers) -> _Tracks:
        _, first_M, track_N = np.unique(speakers.tracks_N, return_index=True, return_inverse=True)
        weights_N = np.maximum(speakers.seconds_N, _LEAST_WEIGHT)
        where = (track_N, np.arange(len(track_N)))
        sums_MN = csr_array((weights_N, where))
        embeddings_MD = (sums_MN @ speakers.embeddings_ND) / np.bincount(track_N, weights_N)[:, None]
        there_MW = csr_array((np.ones(len(track_N), dtype=np.int32), (track_N, speakers.windows_N)))
        seconds_M = np.bincount(track_N, speakers.seconds_N).astype(np.float32)
        column_M = (speakers.tracks_N if speakers.columns_N is None else speakers.columns_N)[first_M]
        return cls(track_N, embeddings_MD.astype(np.float32), seconds_M, there_MW, column_M)


def _linked(tracks: _Tracks, chosen: Labels, distance: float, limits: SpeakerLimits, apart: float) -> Labels:
    """Cluster labels of the `chosen` tracks. There may be more clusters than `limits.most` where speakers of one window
    are not merged."""
    count = len(chosen)
    if count == 1:
        return np.zeros(1, dtype=np.int64)
    there, column = tracks.there_MW[chosen], tracks.column_M[chosen]
    one, other = (there @ there.T).nonzero()
    others = column[one] != column[other]
    extra = np.zeros((count, count))
    clear = tracks.seconds_M[chosen] >= _ENOUGH_SECONDS
    extra[one[others], other[others]] = np.where(clear[one[others]] & clear[other[others]], apart, _APART)
    tree = linkage(_distances(tracks.embeddings_MD[chosen], extra), method="average")
    merges = int(np.searchsorted(tree[:, 2], distance, side="right"))
    merges = min(merges, count - min(limits.least, count))
    merges = max(merges, int(np.searchsorted(tree[:, 2], min(distance, _ONE_VOICE), side="right")))
    if limits.most is not None:
        merges = max(merges, count - limits.most)
    merges = min(merges, int(np.searchsorted(tree[:, 2], _FARTHEST)))
    return np.asarray(cut_tree(tree, n_clusters=count - merges)[:, 0], dtype=np.int64)


def _distances(embeddings_ND: FloatArray, extra_NN: NDArray[np.float64] | float = 0.0) -> NDArray[np.float64]:
    """1 - cosine similarity of each pair, and `extra_NN`, as scipy's condensed matrix."""
    embeddings = embeddings_ND.astype(np.float64)
    apart_NN = np.maximum(0.0, 1.0 - embeddings @ embeddings.T) + extra_NN
    np.fill_diagonal(apart_NN, 0.0)
    condensed: NDArray[np.float64] = squareform(apart_NN, checks=False)
    return condensed


def _largest(labels: Labels, seconds: FloatArray, most: int | None) -> Labels:
    """Renumbers the `most` clusters with the most speech from 0; members of the others get -1."""
    speech_G = np.bincount(labels, weights=seconds)
    order_G = np.argsort(-speech_G, kind="stable")[:most]
    number_G = np.full(len(speech_G), -1)
    number_G[order_G] = np.arange(len(order_G))
    return number_G[labels]


def _completed(tracks: _Tracks, labels_M: Labels, most: int | None) -> Labels:
    """Assigns the tracks that have no cluster (-1)."""
    weights_M = np.maximum(tracks.seconds_M, _LEAST_WEIGHT)
    centres = [
        np.average(tracks.embeddings_MD[labels_M == person], axis=0, weights=weights_M[labels_M == person])
        for person in range(labels_M.max(initial=-1) + 1)
    ]
    windows = [tracks.there_MW[[track]].indices.tolist() for track in range(len(labels_M))]
    persons_by_window: dict[int, set[int]] = {}
    for track in np.flatnonzero(labels_M >= 0):
        for window in windows[track]:
            persons_by_window.setdefault(window, set()).add(int(labels_M[track]))
    open_M = np.flatnonzero(labels_M < 0)
    for track in open_M[np.argsort(-tracks.seconds_M[open_M], kind="stable")]:
        used = set().union(*(persons_by_window.get(window, ()) for window in windows[track]))
        if len(used) == len(centres) and (most is None or len(centres) < most):
            centres.append(tracks.embeddings_MD[track])
        free = [person for person in range(len(centres)) if person not in used] or list(range(len(centres)))
        similarity = np.stack([centres[person] for person in free]) @ tracks.embeddings_MD[track]
        labels_M[track] = person = free[int(similarity.argmax())]
        for window in windows[track]:
            persons_by_window.setdefault(window, set()).add(person)
    return labels_M


# -------------------- Compares each segment of a single speaker with the voices of the whole recording

_SMALL = 1e-9


@dataclass(frozen=True)
class Segments:
    """Segments of single speakers, sorted by window."""

    windows_S: NDArray[np.int64]
    """The window of each."""
    columns_S: NDArray[np.int64]
    """The speaker of the model."""
    frames_S2: NDArray[np.int64]
    """First and end frame in the window."""
    starts_S: NDArray[np.int64]
    """First frame in the recording."""
    embeddings_SD: FloatArray


_MOST_COMPARED = 1000
"""Segments of a track that are compared with each other at a time, which bounds memory in monologues of hours."""


def voices_of_tracks(segments: Segments, tracks_S: Labels, seconds_S: FloatArray, distance: float) -> Labels:
    """(S,) the voice of each segment, numbered from 0, of which a track may have several.

    A model that takes two people for one in a window gives them one track, whose mean voice is that of neither. So the
    segments of each track, at least a second long, are clustered by average linkage up to `distance`; shorter ones go
    to the nearest of these voices.
    """
    voices_S = np.zeros(len(tracks_S), dtype=np.int64)
    count = 0
    for track in np.unique(tracks_S).tolist():
        own = np.flatnonzero(tracks_S == track)
        for part in np.array_split(own, -(-len(own) // _MOST_COMPARED)):
            voices_S[part] = count + _voices(segments.embeddings_SD[part], seconds_S[part], distance)
            count = int(voices_S[part].max()) + 1
    return voices_S


def _voices(embeddings_SD: FloatArray, seconds_S: FloatArray, distance: float) -> Labels:
    """(S,) the voice of each segment of a track, numbered from 0."""
    long = np.flatnonzero(seconds_S >= _ENOUGH_SECONDS)
    if len(long) < 2:
        return np.zeros(len(seconds_S), dtype=np.int64)
    tree = linkage(_distances(embeddings_SD[long]), method="average")
    own = fcluster(tree, distance, "distance").astype(np.int64) - 1
    centres = np.stack(
        [
            np.average(embeddings_SD[long][own == one], axis=0, weights=seconds_S[long][own == one])
            for one in range(own.max() + 1)
        ]
    )
    voices = (embeddings_SD @ centres.T).argmax(axis=1)
    voices[long] = own
    return np.asarray(voices, dtype=np.int64)


def exchanges(
    segments: Segments, assignment_WK: Assignment, margin: float, speakers_S: Labels | None = None
) -> list[Exchange]:
    """The segments that are given to another speaker than `assignment_WK` says.

    Within a window, a model may give a segment to the wrong one of two speakers, above all where they speak in turn for
    a short time. So each segment's voice is compared with that of every speaker, as it is elsewhere in the recording.

    A speaker's voice is the mean of the embeddings of his other segments, weighted by length, without those that share
    frames with the segment in question, as the windows before and after it do. A segment stays where nothing else is
    known of its speaker's voice.

    Args:
        found: The segments.
        assignment_WK: The speakers of the recording.
        margin: By how much the cosine similarity to the other speaker's voice must be higher.
        speakers_S: The speaker of each segment so far. None: as `assignment_WK` says.
    """
    if not len(segments.windows_S):
        return []
    assigned_S = assignment_WK[segments.windows_S, segments.columns_S]
    persons_S = assigned_S if speakers_S is None else speakers_S
    frames_S = segments.frames_S2[:, 1] - segments.frames_S2[:, 0]
    weighted_SD = frames_S[:, None] * segments.embeddings_SD
    frames_G = np.bincount(persons_S, frames_S)
    sums_GD = np.zeros((len(frames_G), weighted_SD.shape[1]))
    np.add.at(sums_GD, persons_S, weighted_SD)
    changed = []
    for segment, same in enumerate(_simultaneous(segments)):
        speaker = own = int(persons_S[segment])
        elsewhere_G = frames_G - np.bincount(persons_S[same], frames_S[same], len(frames_G))
        if elsewhere_G[own] > 0:
            voices_GD = sums_GD.copy()
            np.subtract.at(voices_GD, persons_S[same], weighted_SD[same])
            similarity_G = voices_GD @ segments.embeddings_SD[segment] / np.linalg.norm(voices_GD, axis=1).clip(_SMALL)
            similarity_G[elsewhere_G == 0] = -np.inf
            nearest = int(similarity_G.argmax())
            if similarity_G[nearest] > similarity_G[own] + margin:
                speaker = nearest
        if speaker != assigned_S[segment]:
            start, end = segments.frames_S2[segment].tolist()
            changed.append(Exchange(int(segments.windows_S[segment]), start, end, int(assigned_S[segment]), speaker))
    return changed


def _simultaneous(segments: Segments) -> Iterator[NDArray[np.int64]]:
    """For each segment the numbers of those that share frames with it, itself included."""
    ends_S = segments.starts_S + segments.frames_S2[:, 1] - segments.frames_S2[:, 0]
    reach = int((ends_S - segments.starts_S).max())
    order_S = np.argsort(segments.starts_S, kind="stable")
    sorted_S = segments.starts_S[order_S]
    for start, end in zip(segments.starts_S.tolist(), ends_S.tolist(), strict=True):
        near = order_S[np.searchsorted(sorted_S, start - reach) : np.searchsorted(sorted_S, end)]
        yield near[ends_S[near] > start]


# ----------------------------------------------------- Voice embeddings of the speakers of all windows

_SHORTEST_SECONDS = 0.5
"""Speakers with less non-overlapped speech are embedded from all their speech."""
_PIECES_PER_SECOND = 0.65
"""Pieces of 1.6 s, side by side. Twice as many, which overlap, take twice the time."""
_WAITING_SECONDS = 100.0
"""So much speech is embedded at a time."""
_TRACKED_SECONDS = 0.3
"""Speakers of two windows are linked only if they are active together for at least this long."""


class Voices:
    """Collects an embedding of each active speaker of each window, and of each segment of a single speaker.

    Windows overlap, and what two of them hear is embedded once: of speakers who are linked by their activity (see
    `tracks`) what the earlier window did not hear, and of segments that both windows have one. Speech waits until it
    fills batches.
    """

    def __init__(self, sample_rate: int, segments: bool, device: torch.device) -> None:
        """`sample_rate`: that of the waveforms, in Hz; `segments`: whether segments are wanted; `device`: to compute
        on."""
        self._rate = sample_rate
        self._device = device
        self._wants_segments = segments
        self._windows: list[int] = []
        self._columns: list[int] = []
        self._seconds: list[float] = []
        self._speech_of: list[int] = []
        self._segments: list[tuple[int, int, int, int, int]] = []
        self._speech_of_segments: list[int] = []
        self._speech_at: dict[tuple[int, int], int] = {}
        self._before: tuple[int, NDArray[np.uint8], dict[int, int]] | None = None
        """First frame, activity, and speech of each speaker of the window before."""
        self._embeddings: list[FloatArray] = []
        """Of each speech in turn."""
        self._waiting: list[FloatArray] = []

    @cached_property
    def _judge(self) -> SpeakerEncoder:
        return SpeakerEncoder(device=self._device)

    def add(self, window: int, start: int, active_UK: NDArray[np.uint8], waveform_N: FloatArray, frame: int) -> None:
        """Add the speakers of a window. Windows come in the order of their starts.

        Args:
            window: Index of the window.
            start: Its first frame in the recording.
            active_UK: 1 where a speaker is active.
            waveform_N: The samples of the window.
            frame: Samples per output frame.
        """
        linked, shared = self._linked(start, active_UK, frame)
        alone_U = active_UK.sum(axis=1) == 1
        shortest = _SHORTEST_SECONDS * self._rate / frame
        speech_of: dict[int, int] = {}
        for column in np.flatnonzero(active_UK.any(axis=0)).tolist():
            clean_U = active_UK[:, column] * alone_U
            new_U = np.where(np.arange(len(clean_U)) < shared, 0, clean_U) if column in linked else clean_U
            if new_U.sum() >= shortest or column not in linked:
                chosen_U = new_U if new_U.sum() >= shortest else active_UK[:, column]
                chosen_N = np.repeat(chosen_U != 0, frame)[: len(waveform_N)]
                speech_of[column] = self._later(waveform_N[: len(chosen_N)][chosen_N])
            else:
                speech_of[column] = linked[column]
            self._windows.append(window)
            self._columns.append(column)
            self._seconds.append(float(clean_U.sum()) * frame / self._rate)
            self._speech_of.append(speech_of[column])
            if self._wants_segments:
                # embed the segments in which a speaker of a window is active alone
                for first, end in np.flatnonzero(np.diff(clean_U, prepend=0, append=0)).reshape(-1, 2).tolist():
                    if end - first >= shortest:
                        place = start + first, start + end
                        if place not in self._speech_at:
                            self._speech_at[place] = self._later(waveform_N[first * frame : end * frame])
                        self._segments.append((window, column, first, end, start + first))
                        self._speech_of_segments.append(self._speech_at[place])
        self._before = start, active_UK, speech_of

    def _linked(self, start: int, active_UK: NDArray[np.uint8], frame: int) -> tuple[dict[int, int], int]:
        """The speech of those of a window's speakers who are linked to one of the window before, and how many frames
        the two windows share."""
        if self._before is None:
            return {}, 0
        before, before_UK, speech_of = self._before
        frames = math.ceil(_TRACKED_SECONDS * self._rate / frame)
        before_K, own_K = tracks([before, start], [before_UK, active_UK], frames).tolist()
        linked = {own_K.index(track): speech_of[column] for column, track in enumerate(before_K) if track in own_K}
        return linked, before + len(before_UK) - start

    def _later(self, speech_N: FloatArray) -> int:
        """The number of a speech, which is embedded when enough has come together."""
        if self._rate != SPEAKER_RATE:
            speech_N = resample(speech_N, self._rate, SPEAKER_RATE)
        self._waiting.append(speech_N)
        if sum(map(len, self._waiting)) >= _WAITING_SECONDS * SPEAKER_RATE:
            self._embed()
        return len(self._embeddings) + len(self._waiting) - 1

    def _embed(self) -> None:
        """Embed what waits: of each speech the mean of its pieces; zeros for silence."""
        for pieces_PD in self._judge.embed_pieces(self._waiting, _PIECES_PER_SECOND) if self._waiting else ():
            self._embeddings.append(
                pieces_PD.mean(axis=0) if len(pieces_PD) else np.zeros(EMBEDDING_WIDTH, dtype=np.float32)
            )
        self._waiting = []

    def _embedded(self, numbers: Sequence[int]) -> FloatArray:
        """(N, D): embeddings of speeches with these numbers."""
        self._embed()
        return np.array([self._embeddings[number] for number in numbers], dtype=np.float32).reshape(-1, EMBEDDING_WIDTH)

    def local_speakers(self, tracks_WK: Assignment) -> tuple[LocalSpeakers, NDArray[np.int64]]:
        """All local speakers, with their tracks, and (N,) the column of each in its window."""
        windows_N, columns_N = np.array(self._windows, dtype=np.int64), np.array(self._columns, dtype=np.int64)
        seconds_N = np.array(self._seconds, dtype=np.float32)
        embeddings_ND = self._embedded(self._speech_of)
        return LocalSpeakers(windows_N, embeddings_ND, seconds_N, tracks_WK[windows_N, columns_N]), columns_N

    def segments(self) -> Segments:
        """All segments of single speakers that are long enough to tell voices apart. Raises ValueError if they were not
        wanted."""
        if not self._wants_segments:
            raise ValueError("segments have no embeddings: the recording was analysed without reassignment_margin")
        table_S5 = np.array(self._segments, dtype=np.int64).reshape(-1, 5)
        embeddings_SD = self._embedded(self._speech_of_segments)
        return Segments(table_S5[:, 0], table_S5[:, 1], table_S5[:, 2:4], table_S5[:, 4], embeddings_SD)


# ------------------------------- Who the speakers of each window are in the recording, by their voices


def by_voice(
    windows: Segmentation, voices: Voices, settings: DecodingSettings, limits: SpeakerLimits, frames_per_second: float
) -> tuple[Assignment, Sequence[Exchange]]:
    """(W, K) the speaker of the recording for each speaker of a window, and where single segments have another one."""
    active_WUK = [active(own_UK, settings.threshold, settings.median) for own_UK in windows.probabilities]
    frames = math.ceil(_TRACKED_SECONDS * frames_per_second)
    tracks_WK = tracks(windows.starts, active_WUK, frames)
    speakers, columns_N = voices.local_speakers(tracks_WK)
    assignment_WK = np.full((len(windows.starts), windows.probabilities[0].shape[1]), SILENT)
    margin = settings.reassignment_margin
    if not len(columns_N):
        return assignment_WK, ()
    if margin is None:
        assignment_WK[speakers.windows_N, columns_N] = cluster(speakers, settings.cluster_distance, limits)
        return assignment_WK, ()
    segments = voices.segments()
    segments_S = len(segments.windows_S)
    pieces, piece_columns_N = _pieces(speakers, columns_N, segments, tracks_WK, settings, frames_per_second)
    labels_N = cluster(pieces, settings.cluster_distance, limits, apart=margin)
    # a speaker of a window is who speaks most of what the model gives him; segments of others are exchanged
    shares_WKG = np.zeros((*assignment_WK.shape, int(labels_N.max(initial=-1)) + 1), dtype=np.float32)
    np.add.at(shares_WKG, (pieces.windows_N, piece_columns_N, labels_N), np.maximum(pieces.seconds_N, _LEAST_WEIGHT))
    assignment_WK[pieces.windows_N, piece_columns_N] = shares_WKG[pieces.windows_N, piece_columns_N].argmax(axis=1)
    return assignment_WK, exchanges(segments, assignment_WK, margin, labels_N[:segments_S])


def _pieces(
    speakers: LocalSpeakers,
    columns_N: NDArray[np.int64],
    segments: Segments,
    tracks_WK: Assignment,
    settings: DecodingSettings,
    frames_per_second: float,
) -> tuple[LocalSpeakers, NDArray[np.int64]]:
    """The segments, then the speakers of windows who have none, with the voice of each in place of its track, and the
    column of each in its window."""
    seconds_S = (segments.frames_S2[:, 1] - segments.frames_S2[:, 0]).astype(np.float32) / frames_per_second
    tracks_S = tracks_WK[segments.windows_S, segments.columns_S]
    voices_S = voices_of_tracks(segments, tracks_S, seconds_S, settings.cluster_distance)
    spoken_WK = np.zeros(tracks_WK.shape, dtype=bool)
    spoken_WK[segments.windows_S, segments.columns_S] = True
    rest = np.flatnonzero(~spoken_WK[speakers.windows_N, columns_N])
    # who has no segment is the voice that his track has most of; a track without segments is a voice of its own
    seconds: dict[int, dict[int, float]] = {}
    for track, voice, length in zip(tracks_S.tolist(), voices_S.tolist(), seconds_S.tolist(), strict=True):
        own = seconds.setdefault(track, {})
        own[voice] = own.get(voice, 0.0) + length
    first = int(voices_S.max(initial=-1)) + 1
    rest_tracks = speakers.tracks_N[rest]
    voices_of_rest = [
        max(seconds[one], key=seconds[one].__getitem__) if one in seconds else first + one
        for one in rest_tracks.tolist()
    ]
    pieces = LocalSpeakers(
        np.concatenate([segments.windows_S, speakers.windows_N[rest]]),
        np.concatenate([segments.embeddings_SD, speakers.embeddings_ND[rest]]),
        np.concatenate([seconds_S, speakers.seconds_N[rest]]),
        np.concatenate([voices_S, np.array(voices_of_rest, dtype=np.int64)]),
        np.concatenate([tracks_S, rest_tracks]),
    )
    return pieces, np.concatenate([segments.columns_S, columns_N[rest]])
