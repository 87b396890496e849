"""Which speakers of different windows are the same person.

A model tells the speakers of one window apart, in an order of its own. Where windows overlap, their activity shows who
of one is who of the next, which gives tracks through neighbouring windows. The voices of tracks are clustered
hierarchically, under the constraint that two speakers of one window are two persons.

Shapes: N local speakers (each of one window), M tracks, D embedding, G persons.
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

_APART = 1e9
"""Distance of two speakers of one window. Average linkage of clusters of n and m speakers with one such pair is over
1e9 / nm, so these are merged after all others, however large they are."""
_FARTHEST = 3.0
"""Distances of other clusters are under this one: cosines are at least -1."""
_ENOUGH_SECONDS = 1.0
"""Tracks with less speech of one speaker alone are not clustered, but given to persons afterwards."""
_LEAST_WEIGHT = 1e-3
"""Seconds that somebody who never talks alone counts in means."""

Labels = NDArray[np.int64]


@dataclass(frozen=True)
class SpeakerLimits:
    """How many persons there may be."""

    least: int = 1
    most: int | None = None
    """None: any number."""


@dataclass(frozen=True)
class LocalSpeakers:
    """The speakers of all windows."""

    windows_N: Labels
    """The window of each."""
    embeddings_ND: FloatArray
    """Means of unit-length embeddings of pieces of their speech. So the product of two is the mean cosine of pieces,
    whatever the lengths of speech."""
    seconds_N: FloatArray
    """How long they talk alone."""
    tracks_N: Labels
    """Equal for those who are the same person for certain; never for two of one window."""


def cluster(found: LocalSpeakers, distance: float, limits: SpeakerLimits = SpeakerLimits()) -> Labels:
    """(N,) the person of each local speaker, from 0.

    Average linkage over the tracks with a second of speech, up to `distance` (1 - cosine), or as far as the limits
    want. Then each other track, those with most speech first, goes to the nearest person who is in none of its windows;
    where there is none, it is a person of its own, or, if there may be no more, the nearest of all.
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
    """What is known of each track."""

    track_N: Labels
    """The track of each local speaker."""
    embeddings_MD: FloatArray
    """Means over local speakers, weighted by speech."""
    seconds_M: FloatArray
    there_MW: Any
    """Sparse: 1 in each window that a track is in."""

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
    """Clusters of the `chosen` tracks; more than the most allowed where fewer would merge two speakers of one
    window."""
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
    """The `most` clusters with most speech, numbered from 0; -1 for members of others."""
    speech_G = np.bincount(labels, weights=seconds)
    order_G = np.argsort(-speech_G, kind="stable")[:most]
    number_G = np.full(len(speech_G), -1)
    number_G[order_G] = np.arange(len(order_G))
    return number_G[labels]


def _completed(tracks: _Tracks, labels_M: Labels, most: int | None) -> Labels:
    """Persons for the tracks that have none (-1), too."""
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
