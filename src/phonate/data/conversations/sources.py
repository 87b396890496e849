"""Finds the parts of a prepared corpus with a single active speaker; the result is stored next to the corpus."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from phonate.data.conversations.speech import speech_segments
from phonate.data.store.cache import FeatureCache
from phonate.data.store.derived import DerivedFeatures, open_derived
from phonate.data.store.index import Index, IndexedSegment
from phonate.data.store.prepared import Prepared

_VERSION = 2  # increment when a change alters the result
_SHORTEST = 0.3
"""Seconds; shorter single-speaker parts are ignored."""

_LONGEST = 60.0
"""Seconds; longer single-speaker parts are divided into several clips."""

CLIP, SPEAKER, START, END, LEVEL = range(5)
"""Columns of `Source.speech`: number of the clip in the row, number of its speaker in the index, first and end sample,
and the level (RMS) of the clip's speech in hundredths of a dB."""


@dataclass(frozen=True)
class Source:
    """Rows of a prepared corpus from which clips are taken."""

    prepared: Prepared
    positions: Sequence[int]
    """Positions in the index."""
    person: Callable[[int, int], str]
    """(position, number of the speaker in the index) -> name of the person."""
    sample_rate: int
    """Sample rate of the cached waveforms, in Hz."""

    @cached_property
    def _speech(self) -> DerivedFeatures:
        prepared = self.prepared
        return open_derived(
            prepared.folder / f"speech-v{_VERSION}",
            len(prepared.index),
            partial(_speech_of, prepared.index, prepared.cache, self.sample_rate),
            dtype=np.int64,
            what="finding speech",
        )

    def of(self, positions: Sequence[int]) -> Source:
        """The source restricted to these rows."""
        return replace(self, positions=positions)

    def speech(self, position: int) -> NDArray[np.int64]:
        """(K, 5) the segments of speech of the clips in a row; see CLIP for the columns."""
        return np.asarray(self._speech[position])


def _speech_of(index: Index, cache: FeatureCache, sample_rate: int, position: int) -> NDArray[np.int64]:
    found: list[tuple[int, ...]] = []
    parts = (part for one in alone(index.segments(position)) for part in _cut(*one))
    for clip, (speaker, start, end) in enumerate(parts):
        if end - start < _SHORTEST:
            continue
        first = round(start * sample_rate)
        waveform_N = cache.waveform(position, first, round(end * sample_rate))
        segments = speech_segments(waveform_N, sample_rate)
        if len(segments):
            energy = sum(float(np.dot(waveform_N[a:b], waveform_N[a:b])) for a, b in segments)
            level = round(1000.0 * np.log10(energy / int((segments[:, 1] - segments[:, 0]).sum())))
            found += [(clip, speaker, first + int(a), first + int(b), level) for a, b in segments]
    return np.array(found, dtype=np.int64).reshape(-1, 5)


def _cut(speaker: int, start: float, end: float) -> Iterator[tuple[int, float, float]]:
    """Divides a part into equal pieces of at most _LONGEST seconds: memory is bounded, and thresholds adapt."""
    pieces = max(1, math.ceil((end - start) / _LONGEST))
    length = (end - start) / pieces
    for number in range(pieces):
        yield speaker, start + number * length, start + (number + 1) * length


def alone(segments: Sequence[IndexedSegment]) -> Iterator[tuple[int, float, float]]:
    """The parts (speaker, start, end) of a row, in seconds, in which exactly one speaker is active, who is known."""
    changes = sorted(
        [(one.start, 1, one.speaker) for one in segments] + [(one.end, -1, one.speaker) for one in segments]
    )
    talking: dict[int, int] = {}
    since, who = 0.0, None
    for time, change, speaker in changes:
        talking[speaker] = talking.get(speaker, 0) + change
        now = [one for one, count in talking.items() if count > 0]
        single = now[0] if len(now) == 1 and now[0] >= 0 else None
        if single != who:
            if who is not None and time > since:
                yield who, since, time
            since, who = time, single
