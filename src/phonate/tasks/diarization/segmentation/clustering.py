"""Which speakers of different windows are the same person.

A model tells the speakers of one window apart, in an order of its own. Their voices are embedded, and clustered
hierarchically under the constraint that two speakers of one window are two persons.

Shapes: N local speakers (each of one window), D embedding, G persons.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import cut_tree, linkage
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import squareform

from phonate.audio.decoding import FloatArray

_APART = 1e9
"""Distance of two speakers of one window. Average linkage of clusters of n and m speakers with one such pair is over
1e9 / nm, so these are merged after all others, however large they are."""
_FARTHEST = 3.0
"""Distances of other clusters are under this one: cosines are at least -1."""
_ENOUGH_SECONDS = 1.0
"""Speakers with less speech are not clustered, but given to the nearest person of the others."""

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


def cluster(found: LocalSpeakers, distance: float, limits: SpeakerLimits = SpeakerLimits()) -> Labels:
    """(N,) the person of each local speaker, from 0.

    Average linkage over those with a second of speech, up to `distance` (1 - cosine), or as far as the limits want.
    Then each window gives its speakers to the persons to whom they are nearest in sum, one to one. Only where a window
    has more speakers than there may be persons do several become one.
    """
    count = len(found.windows_N)
    if not count:
        return np.zeros(0, dtype=np.int64)
    clear_N = found.seconds_N >= _ENOUGH_SECONDS
    if clear_N.sum() < limits.least:
        clear_N[:] = True
    labels_M = _linked(found.embeddings_ND[clear_N], found.windows_N[clear_N], distance, limits)
    labels_M = _largest(labels_M, found.seconds_N[clear_N], limits.most)
    persons_GD = _centres(found.embeddings_ND[clear_N], found.seconds_N[clear_N], labels_M)
    return _assigned(found, persons_GD)


def _linked(embeddings_MD: FloatArray, windows_M: Labels, distance: float, limits: SpeakerLimits) -> Labels:
    """(M,) clusters; more than the most allowed where fewer would merge two speakers of one window."""
    count = len(embeddings_MD)
    if count == 1:
        return np.zeros(1, dtype=np.int64)
    apart_MM = np.maximum(0.0, 1.0 - embeddings_MD.astype(np.float64) @ embeddings_MD.T.astype(np.float64))
    apart_MM[windows_M[:, None] == windows_M] = _APART
    np.fill_diagonal(apart_MM, 0.0)
    tree = linkage(squareform(apart_MM, checks=False), method="average")
    merges = int(np.searchsorted(tree[:, 2], distance, side="right"))
    merges = min(merges, count - min(limits.least, count))
    if limits.most is not None:
        merges = max(merges, count - limits.most)
    merges = min(merges, int(np.searchsorted(tree[:, 2], _FARTHEST)))
    return np.asarray(cut_tree(tree, n_clusters=count - merges)[:, 0], dtype=np.int64)


def _largest(labels_M: Labels, seconds_M: FloatArray, most: int | None) -> Labels:
    """The `most` clusters with most speech, numbered from 0; -1 for members of others."""
    speech_G = np.bincount(labels_M, weights=seconds_M)
    order_G = np.argsort(-speech_G, kind="stable")[:most]
    number_G = np.full(len(speech_G), -1)
    number_G[order_G] = np.arange(len(order_G))
    return number_G[labels_M]


def _centres(embeddings_MD: FloatArray, seconds_M: FloatArray, labels_M: Labels) -> FloatArray:
    """(G, D): the mean embedding of each cluster, weighted by speech."""
    weights_M = np.maximum(seconds_M, 1e-3)
    centres = [
        np.average(embeddings_MD[labels_M == person], axis=0, weights=weights_M[labels_M == person])
        for person in range(labels_M.max() + 1)
    ]
    return np.stack(centres).astype(np.float32)


def _assigned(found: LocalSpeakers, persons_GD: FloatArray) -> Labels:
    """(N,) the nearest persons, one to one in each window as far as there are enough."""
    similarity_NG = found.embeddings_ND @ persons_GD.T
    labels_N = similarity_NG.argmax(axis=1)
    for window in np.unique(found.windows_N):
        there = np.flatnonzero(found.windows_N == window)
        rows, persons = linear_sum_assignment(similarity_NG[there], maximize=True)
        labels_N[there[rows]] = persons
    return np.asarray(labels_N, dtype=np.int64)
