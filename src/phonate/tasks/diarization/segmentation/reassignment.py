"""Compares each segment of a single speaker with the voices of the whole recording.

Within a window, a model may give a segment to the wrong one of two speakers, above all where they speak in turn for a
short time. With the speakers of all windows matched, each segment's voice is compared with that of every speaker, as it
is elsewhere in the recording, and the segment goes to the nearest.

Shapes: S segments, D embedding, U output frames of a window, G speakers of the recording, K of the model, W windows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from phonate.audio.decoding import FloatArray
from phonate.tasks.diarization.segmentation.stitching import Assignment, Exchange

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
