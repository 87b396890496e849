"""Matches speakers across windows by clustering their voices.

The model's speaker order is arbitrary in each window. Speakers of overlapping windows are linked into tracks by their
activity. Tracks are then clustered hierarchically by their voice embeddings, under the constraint that two speakers of
one window are never merged.

Shapes: N local speakers (of single windows), M tracks, D embedding, G speakers of the recording, W windows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import cut_tree, linkage
from scipy.sparse import csr_array
from scipy.spatial.distance import squareform

from phonate.audio.decoding import FloatArray
from phonate.config.errors import InputError

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
