"""Where in a prepared corpus one speaker talks alone, found once and kept beside the corpus."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from phonate.data.conversations.speech import speech_stretches
from phonate.data.store.cache import FeatureCache
from phonate.data.store.derived import DerivedFeatures, open_derived
from phonate.data.store.index import Index, IndexedSegment
from phonate.data.store.prepared import Prepared

_VERSION = 2  # raise it when stretches are found otherwise
_SHORTEST = 0.3
"""Seconds; shorter times alone are not looked at."""

_LONGEST = 60.0
"""Seconds; longer times alone are several clips."""

CLIP, SPEAKER, START, END, LEVEL = range(5)
"""Columns of what `Source.speech` returns: number of the clip in the row, number of its speaker in the index, first and
end sample, and the level (RMS) of the clip's speech in hundredths of a dB."""


@dataclass(frozen=True)
class Source:
    """Some rows of a prepared corpus, of which clips are taken."""

    prepared: Prepared
    positions: Sequence[int]
    """Positions in the index."""
    person: Callable[[int, int], str]
    """The person's name for (position, number of the speaker in the index)."""
    sample_rate: int
    """Of the cached waveforms."""

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
        """The same with other rows."""
        return replace(self, positions=positions)

    def speech(self, position: int) -> NDArray[np.int64]:
        """(K, 5) the stretches of speech of the clips in a row; see CLIP."""
        return np.asarray(self._speech[position])


def _speech_of(index: Index, cache: FeatureCache, sample_rate: int, position: int) -> NDArray[np.int64]:
    found: list[tuple[int, ...]] = []
    parts = (part for one in alone(index.segments(position)) for part in _cut(*one))
    for clip, (speaker, start, end) in enumerate(parts):
        if end - start < _SHORTEST:
            continue
        first = round(start * sample_rate)
        waveform_N = cache.waveform(position, first, round(end * sample_rate))
        stretches = speech_stretches(waveform_N, sample_rate)
        if len(stretches):
            energy = sum(float(np.dot(waveform_N[a:b], waveform_N[a:b])) for a, b in stretches)
            level = round(1000.0 * np.log10(energy / int((stretches[:, 1] - stretches[:, 0]).sum())))
            found += [(clip, speaker, first + int(a), first + int(b), level) for a, b in stretches]
    return np.array(found, dtype=np.int64).reshape(-1, 5)


def _cut(speaker: int, start: float, end: float) -> Iterator[tuple[int, float, float]]:
    """A part in pieces of at most _LONGEST seconds: memory stays bounded, and what counts as quiet is found anew."""
    pieces = max(1, math.ceil((end - start) / _LONGEST))
    length = (end - start) / pieces
    for number in range(pieces):
        yield speaker, start + number * length, start + (number + 1) * length


def alone(segments: Sequence[IndexedSegment]) -> Iterator[tuple[int, float, float]]:
    """The parts (speaker, start, end) of a row in which one known speaker talks and no other, in order."""
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
