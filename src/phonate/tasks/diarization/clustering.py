"""Matching the speakers of all windows by their voices.

The model's speaker order is arbitrary in each window. Speakers of overlapping windows are linked into tracks by their
activity. Tracks are then clustered hierarchically by their voice embeddings, under the constraint that two speakers of
one window are never merged.

Shapes: N local speakers (of single windows), M tracks, D embedding, G speakers of the recording, W windows.

Within a window, a model may give a segment to the wrong one of two speakers, above all where they speak in turn for a
short time. With the speakers of all windows matched, each segment's voice is compared with that of every speaker, as it
is elsewhere in the recording, and the segment goes to the nearest.

Shapes: S segments, D embedding, U output frames of a window, G speakers of the recording, K of the model, W windows.

Shapes: N local speakers (or samples, of a waveform), U output frames, K speakers of the model, D embedding, P segments.

Shapes: W windows, K speakers of the model, N local speakers (of single windows).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.cluster.hierarchy import cut_tree, linkage
from scipy.sparse import csr_array
from scipy.spatial.distance import squareform

from phonate.audio.decoding import FloatArray, resample
from phonate.config.errors import InputError
from phonate.pretrained import EMBEDDING_WIDTH, SPEAKER_RATE, SpeakerEncoder
from phonate.tasks.diarization.segmentation import SILENT, Assignment, Exchange, Segmentation, active, tracks
from phonate.tasks.diarization.settings import DecodingSettings

# ------------------------------------------ Matches speakers across windows by clustering their voices

_APART = 1e9
"""Distance between two speakers of one window. The average distance of clusters of n and m tracks with one such pair is
above 1e9 / nm, so they are merged after all others."""
_FARTHEST = 3.0
"""Upper bound of all other distances: 1 - cosine is at most 2."""
_ENOUGH_SECONDS = 1.0
"""Tracks with less non-overlapped speech are not clustered, but assigned to clusters afterwards."""
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
    given = {"speakers": speakers, "min_speakers": min_speakers, "max_speakers": max_speakers}
    for name, value in given.items():
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
    """The track of each. Two speakers of one window are never in one track."""


def cluster(found: LocalSpeakers, distance: float, limits: SpeakerLimits = SpeakerLimits()) -> Labels:
    """(N,) the cluster of each local speaker, numbered from 0.

    Tracks with at least one second of speech are clustered by average linkage up to `distance` (1 - cosine similarity),
    or until the limits are met. The others, longest first, are then assigned to the nearest cluster that does not occur
    in their windows. If there is none, they become a new cluster, or, if `limits` do not allow that, join the nearest.
    """
    if not len(found.windows_N):
        return np.zeros(0, dtype=np.int64)
    tracks = _Tracks.of(found)
    clear_M = tracks.seconds_M >= _ENOUGH_SECONDS
    if clear_M.sum() < limits.least:
        clear_M[:] = True
    labels_M = np.full(len(clear_M), -1)
    if clear_M.any():
        chosen = np.flatnonzero(clear_M)
        labels_M[chosen] = _largest(_linked(tracks, chosen, distance, limits), tracks.seconds_M[chosen], limits.most)
    return _completed(tracks, labels_M, limits.most)[tracks.track_N]


@dataclass(frozen=True)
class _Tracks:
    """Properties of the tracks."""

    track_N: Labels
    """The track of each local speaker."""
    embeddings_MD: FloatArray
    """Means over local speakers, weighted by their duration."""
    seconds_M: FloatArray
    there_MW: Any
    """Sparse: 1 if the track occurs in the window."""

    @classmethod
    def of(cls, found: LocalSpeakers) -> _Tracks:
        _, track_N = np.unique(found.tracks_N, return_inverse=True)
        weights_N = np.maximum(found.seconds_N, _LEAST_WEIGHT)
        where = (track_N, np.arange(len(track_N)))
        sums_MN = csr_array((weights_N, where))
        embeddings_MD = (sums_MN @ found.embeddings_ND) / np.bincount(track_N, weights_N)[:, None]
        there_MW = csr_array((np.ones(len(track_N), dtype=np.int32), (track_N, found.windows_N)))
        seconds_M = np.bincount(track_N, found.seconds_N).astype(np.float32)
        return cls(track_N, embeddings_MD.astype(np.float32), seconds_M, there_MW)


def _linked(tracks: _Tracks, chosen: Labels, distance: float, limits: SpeakerLimits) -> Labels:
    """Cluster labels of the `chosen` tracks. There may be more clusters than `limits.most`, as speakers of one window
    are not merged."""
    count = len(chosen)
    if count == 1:
        return np.zeros(1, dtype=np.int64)
    embeddings = tracks.embeddings_MD[chosen].astype(np.float64)
    apart = np.maximum(0.0, 1.0 - embeddings @ embeddings.T)
    there = tracks.there_MW[chosen]
    apart[(there @ there.T).nonzero()] = _APART
    np.fill_diagonal(apart, 0.0)
    tree = linkage(squareform(apart, checks=False), method="average")
    merges = int(np.searchsorted(tree[:, 2], distance, side="right"))
    merges = min(merges, count - min(limits.least, count))
    if limits.most is not None:
        merges = max(merges, count - limits.most)
    merges = min(merges, int(np.searchsorted(tree[:, 2], _FARTHEST)))
    return np.asarray(cut_tree(tree, n_clusters=count - merges)[:, 0], dtype=np.int64)


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
    taken: dict[int, set[int]] = {}
    for track in np.flatnonzero(labels_M >= 0):
        for window in windows[track]:
            taken.setdefault(window, set()).add(int(labels_M[track]))
    open_M = np.flatnonzero(labels_M < 0)
    for track in open_M[np.argsort(-tracks.seconds_M[open_M], kind="stable")]:
        used = set().union(*(taken.get(window, ()) for window in windows[track]))
        if len(used) == len(centres) and (most is None or len(centres) < most):
            centres.append(tracks.embeddings_MD[track])
        free = [person for person in range(len(centres)) if person not in used] or list(range(len(centres)))
        similarity = np.stack([centres[person] for person in free]) @ tracks.embeddings_MD[track]
        labels_M[track] = person = free[int(similarity.argmax())]
        for window in windows[track]:
            taken.setdefault(window, set()).add(person)
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


def exchanges(found: Segments, assignment_WK: Assignment, margin: float) -> list[Exchange]:
    """The segments that are given to another speaker than `assignment_WK` says.

    A speaker's voice is the mean of the embeddings of his other segments, weighted by length, without those that share
    frames with the segment in question, as the windows before and after it do. A segment stays where nothing else is
    known of its speaker's voice.

    Args:
        found: The segments.
        assignment_WK: The speakers of the recording.
        margin: By how much the cosine similarity to the other speaker's voice must be higher.
    """
    if not len(found.windows_S):
        return []
    persons_S = assignment_WK[found.windows_S, found.columns_S]
    frames_S = found.frames_S2[:, 1] - found.frames_S2[:, 0]
    weighted_SD = frames_S[:, None] * found.embeddings_SD
    frames_G = np.bincount(persons_S, frames_S)
    sums_GD = np.zeros((len(frames_G), weighted_SD.shape[1]))
    np.add.at(sums_GD, persons_S, weighted_SD)
    changed = []
    for segment, same in enumerate(_simultaneous(found)):
        own = int(persons_S[segment])
        elsewhere_G = frames_G - np.bincount(persons_S[same], frames_S[same], len(frames_G))
        if elsewhere_G[own] == 0:
            continue
        voices_GD = sums_GD.copy()
        np.subtract.at(voices_GD, persons_S[same], weighted_SD[same])
        similarity_G = voices_GD @ found.embeddings_SD[segment] / np.linalg.norm(voices_GD, axis=1).clip(_SMALL)
        similarity_G[elsewhere_G == 0] = -np.inf
        nearest = int(similarity_G.argmax())
        if similarity_G[nearest] > similarity_G[own] + margin:
            start, end = found.frames_S2[segment].tolist()
            changed.append(Exchange(int(found.windows_S[segment]), start, end, own, nearest))
    return changed


def _simultaneous(found: Segments) -> Iterator[NDArray[np.int64]]:
    """For each segment the numbers of those that share frames with it, itself included."""
    ends_S = found.starts_S + found.frames_S2[:, 1] - found.frames_S2[:, 0]
    reach = int((ends_S - found.starts_S).max())
    order_S = np.argsort(found.starts_S, kind="stable")
    sorted_S = found.starts_S[order_S]
    for start, end in zip(found.starts_S.tolist(), ends_S.tolist(), strict=True):
        near = order_S[np.searchsorted(sorted_S, start - reach) : np.searchsorted(sorted_S, end)]
        yield near[ends_S[near] > start]


# ----------------------------------------------------- Voice embeddings of the speakers of all windows

_SHORTEST_SECONDS = 0.5
"""Speakers with less non-overlapped speech are embedded from all their speech."""


class Voices:
    """Collects an embedding of each active speaker of each window, and of each segment of a single speaker."""

    def __init__(self, sample_rate: int, segments: bool, device: torch.device) -> None:
        """`sample_rate`: that of the waveforms, in Hz; `segments`: whether segments are wanted; `device`: to compute
        on."""
        self._rate = sample_rate
        self._device = device
        self._wants_segments = segments
        self._windows: list[int] = []
        self._columns: list[int] = []
        self._embeddings: list[FloatArray] = []
        self._seconds: list[float] = []
        self._segments: list[tuple[int, int, int, int, int]] = []
        self._segment_embeddings: list[FloatArray] = []

    @cached_property
    def _judge(self) -> SpeakerEncoder:
        return SpeakerEncoder(device=self._device)

    def add(self, window: int, start: int, active_UK: NDArray[np.uint8], waveform_N: FloatArray, frame: int) -> None:
        """Embed the speakers of a window.

        Args:
            window: Index of the window.
            start: Its first frame in the recording.
            active_UK: 1 where a speaker is active.
            waveform_N: The samples of the window.
            frame: Samples per output frame.
        """
        alone_U1 = active_UK.sum(axis=1, keepdims=True) == 1
        for column in np.flatnonzero(active_UK.any(axis=0)).tolist():
            clean_U = active_UK[:, column] * alone_U1[:, 0]
            seconds = float(clean_U.sum()) * frame / self._rate
            chosen_U = clean_U if seconds >= _SHORTEST_SECONDS else active_UK[:, column]
            chosen_N = np.repeat(chosen_U != 0, frame)[: len(waveform_N)]
            self._windows.append(window)
            self._columns.append(column)
            self._seconds.append(seconds)
            self._embeddings.append(self._embedding(waveform_N[: len(chosen_N)][chosen_N]))
            if self._wants_segments:
                self._add_segments(window, start, column, clean_U, waveform_N, frame)

    def _add_segments(
        self, window: int, start: int, column: int, clean_U: NDArray[np.uint8], waveform_N: FloatArray, frame: int
    ) -> None:
        """Embed the segments in which a speaker of a window is active alone."""
        for first, end in np.flatnonzero(np.diff(clean_U, prepend=0, append=0)).reshape(-1, 2).tolist():
            if (end - first) * frame >= _SHORTEST_SECONDS * self._rate:
                self._segments.append((window, column, first, end, start + first))
                self._segment_embeddings.append(self._embedding(waveform_N[first * frame : end * frame]))

    def _embedding(self, speech_N: FloatArray) -> FloatArray:
        """(D,) mean of the embeddings of segments of the speech; zeros for silence."""
        if self._rate != SPEAKER_RATE:
            speech_N = resample(speech_N, self._rate, SPEAKER_RATE)
        pieces_PD = self._judge.embed_pieces(speech_N)
        return pieces_PD.mean(axis=0) if len(pieces_PD) else np.zeros(EMBEDDING_WIDTH, dtype=np.float32)

    def found(self, tracks_WK: Assignment) -> tuple[LocalSpeakers, NDArray[np.int64]]:
        """All local speakers, with their tracks, and (N,) the column of each in its window."""
        windows_N, columns_N = np.array(self._windows, dtype=np.int64), np.array(self._columns, dtype=np.int64)
        embeddings_ND = np.stack(self._embeddings) if self._embeddings else np.zeros((0, EMBEDDING_WIDTH), np.float32)
        seconds_N = np.array(self._seconds, dtype=np.float32)
        return LocalSpeakers(windows_N, embeddings_ND, seconds_N, tracks_WK[windows_N, columns_N]), columns_N

    def segments(self) -> Segments:
        """All segments of single speakers that are long enough to tell voices apart. Raises ValueError if they were not
        wanted."""
        if not self._wants_segments:
            raise ValueError("segments have no embeddings: the recording was analysed without reassignment_margin")
        table_S5 = np.array(self._segments, dtype=np.int64).reshape(-1, 5)
        embeddings_SD = np.array(self._segment_embeddings, dtype=np.float32).reshape(-1, EMBEDDING_WIDTH)
        return Segments(table_S5[:, 0], table_S5[:, 1], table_S5[:, 2:4], table_S5[:, 4], embeddings_SD)


# ------------------------------- Who the speakers of each window are in the recording, by their voices

_TRACKED_SECONDS = 0.3
"""Speakers of two windows are linked only if they are active together for at least this long."""


def by_voice(
    windows: Segmentation, voices: Voices, settings: DecodingSettings, limits: SpeakerLimits, frames_per_second: float
) -> tuple[Assignment, Sequence[Exchange]]:
    """(W, K) the speaker of the recording for each speaker of a window, and where single segments have another one."""
    active_WUK = [active(own_UK, settings.threshold, settings.median) for own_UK in windows.probabilities]
    frames = math.ceil(_TRACKED_SECONDS * frames_per_second)
    found, columns_N = voices.found(tracks(windows, active_WUK, frames))
    assignment_WK = np.full((len(windows.starts), windows.probabilities[0].shape[1]), SILENT)
    assignment_WK[found.windows_N, columns_N] = cluster(found, settings.cluster_distance, limits)
    if settings.reassignment_margin is None:
        return assignment_WK, ()
    return assignment_WK, exchanges(voices.segments(), assignment_WK, settings.reassignment_margin)
