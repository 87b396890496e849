"""Clips of single speakers in prepared corpora, for simulated conversations: the speech in them, and frame labels.

Speech is detected, so silence around a clip and pauses within it are not labelled as speech. Shapes: N samples, T
frames, K segments of speech, C clips.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from phonate.audio.decoding import FloatArray
from phonate.config.errors import DataError
from phonate.data.cache import FeatureCache, Index, IndexedSegment
from phonate.data.cluster import executor_of
from phonate.data.corpora.validation import warn_left_out
from phonate.data.derived import DerivedFeatures, open_derived
from phonate.data.parallel import Here
from phonate.data.prepared import PreparedCorpus

# ---------------------- Frame labels from segments of speech. Shapes: T frames, S speakers, K segments

_ROUNDING = 6  # decimals of a frame: 0.3 s at 100 frames a second is frame 30, whatever the float


def arrival_activity(
    begin_K: NDArray[np.float64], end_K: NDArray[np.float64], speaker_K: NDArray[np.int64], frames: int, centre: float
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The activity (T, S) uint8 of T = `frames` frames, and the speaker of each column (S,).

    A speaker is active in a frame if active at its centre. Columns are in order of arrival, speakers that start in the
    same frame sorted by number; silent speakers have no column.

    Args:
        begin_K, end_K: Times in frames, from the beginning of frame 0; they may lie outside of the T frames.
        speaker_K: Speaker numbers.
        centre: Position of the centre of a frame, in frames.
    """
    first_K = np.clip(np.ceil(np.round(begin_K - centre, _ROUNDING)), 0, frames).astype(np.int64)
    last_K = np.clip(np.ceil(np.round(end_K - centre, _ROUNDING)), 0, frames).astype(np.int64)
    audible = last_K > first_K
    first_K, last_K, speaker_K = first_K[audible], last_K[audible], speaker_K[audible]
    order = np.lexsort((speaker_K, first_K))
    columns = {int(speaker): column for column, speaker in enumerate(dict.fromkeys(speaker_K[order].tolist()))}
    activity_TS = np.zeros((frames, len(columns)), dtype=np.uint8)
    for first, last, speaker in zip(first_K.tolist(), last_K.tolist(), speaker_K.tolist(), strict=True):
        activity_TS[first:last, columns[speaker]] = 1
    return activity_TS, np.fromiter(columns, dtype=np.int64, count=len(columns))


def mixed_activity(
    one_TS: NDArray[np.uint8], one_S: NDArray[np.int64], two_TS: NDArray[np.uint8], two_S: NDArray[np.int64]
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The activity (T, S) and speakers (S,) of two conversations that are heard at once and begin together, as long as
    the first. A speaker of both has one column; negative numbers are always different speakers. Columns are in the
    order of `arrival_activity`."""
    both_TS = np.zeros((len(one_TS), one_TS.shape[1] + two_TS.shape[1]), dtype=np.uint8)
    both_TS[:, : one_TS.shape[1]] = one_TS
    both_TS[: len(two_TS), one_TS.shape[1] :] = two_TS[: len(one_TS)]
    number_S = np.concatenate([one_S, two_S])
    for column in range(one_TS.shape[1], len(number_S)):
        same = np.flatnonzero((number_S[: one_TS.shape[1]] == number_S[column]) & (number_S[column] >= 0))
        both_TS[:, same] |= both_TS[:, [column]]
        both_TS[:, column] *= not len(same)
    heard_S = np.flatnonzero(both_TS.any(axis=0))
    order_S = heard_S[np.lexsort((number_S[heard_S], both_TS[:, heard_S].argmax(axis=0)))]
    return np.ascontiguousarray(both_TS[:, order_S]), number_S[order_S]


# ----------------------------------------------- Energy-based speech detection in single-speaker clips

Segments = NDArray[np.int64]
"""(K, 2) first and end samples of segments of speech, in order."""

_FRAME_SECONDS = 0.01
_SILENCE_DB = -90.0
_RANGE_DB = 35.0
"""Frames further than this below the loud level (95th percentile) are silence."""
_OVER_FLOOR_DB = 6.0
"""Frames less than this above the quiet level (5th percentile) are silence, ..."""
_SURE_DB = 12.0
"""... unless they are less than this below the loud level."""
SHORTEST_PAUSE = 0.2
"""Seconds; shorter quiet parts, such as the closure of a plosive, count as speech."""
_LEAST_RANGE_DB = 10.0
"""Minimum difference between the loud and the quiet level; if it is smaller, noise masks the speech."""
_SHORTEST_SPEECH = 0.06
"""Seconds; shorter bursts are clicks."""
_MARGIN = 0.02
"""Seconds added on both sides for weak onsets and endings."""


def speech_segments(waveform_N: FloatArray, sample_rate: int) -> Segments:
    """The segments of speech in a clip (N,) at `sample_rate` Hz; none if it is silent or has a constant level."""
    frame = round(_FRAME_SECONDS * sample_rate)
    count = len(waveform_N) // frame
    if count == 0:
        return np.zeros((0, 2), dtype=np.int64)
    framed = waveform_N[: count * frame].reshape(count, frame)
    power_T = np.einsum("tn,tn->t", framed, framed) / frame
    # over three frames, as a pitch period of a low voice is about as long as one frame
    smooth_T = np.convolve(power_T, np.full(3, 1.0 / 3.0), mode="same")
    level_T = 10.0 * np.log10(np.maximum(smooth_T, 1e-10))
    quiet, loud = np.percentile(level_T, (5.0, 95.0))
    if loud <= _SILENCE_DB or loud - quiet < _LEAST_RANGE_DB:
        return np.zeros((0, 2), dtype=np.int64)
    threshold = max(loud - _RANGE_DB, min(quiet + _OVER_FLOOR_DB, loud - _SURE_DB))
    runs = _runs(level_T > threshold)
    runs = joined(runs, round(SHORTEST_PAUSE / _FRAME_SECONDS))
    runs = runs[runs[:, 1] - runs[:, 0] >= round(_SHORTEST_SPEECH / _FRAME_SECONDS)]
    margin = round(_MARGIN / _FRAME_SECONDS)
    return np.asarray(np.clip(runs + np.array([-margin, margin]), 0, count) * frame, dtype=np.int64)


def _runs(mask_T: NDArray[np.bool_]) -> NDArray[np.int64]:
    """(K, 2) first and end indices of the runs of True."""
    changes = np.flatnonzero(np.diff(mask_T, prepend=False, append=False))
    return changes.reshape(-1, 2).astype(np.int64)


def joined(runs: NDArray[np.int64], gap: int) -> NDArray[np.int64]:
    """(K, 2): sorted runs, merged if they are less than `gap` (frames or samples) apart."""
    if not len(runs):
        return runs
    apart = np.flatnonzero(runs[1:, 0] - runs[:-1, 1] >= gap)
    return np.stack([runs[np.concatenate([[0], apart + 1]), 0], runs[np.concatenate([apart, [-1]]), 1]], axis=1)


# ----------------------------------- Finds the parts of a prepared corpus with a single active speaker

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

    prepared: PreparedCorpus
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
            executor=executor_of(prepared.executor, Here()),
            what="finding speech",
        )

    def of(self, positions: Sequence[int]) -> Source:
        """The source restricted to these rows."""
        return replace(self, positions=positions)

    def speech(self, position: int) -> NDArray[np.int64]:
        """(K, 5) the segments of speech of the clips in a row; see CLIP for the columns."""
        return np.asarray(self._speech[position])


def _speech_of(index: Index, cache: FeatureCache, sample_rate: int, position: int) -> NDArray[np.int64]:
    rows: list[tuple[int, ...]] = []
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
            rows += [(clip, speaker, first + int(a), first + int(b), level) for a, b in segments]
    return np.array(rows, dtype=np.int64).reshape(-1, 5)


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


# -------------------- Single-speaker clips of prepared corpora, from which conversations are simulated

_FADE_SECONDS = 0.01


@dataclass(frozen=True)
class Utterance:
    """Speech of one speaker, without silence at its ends."""

    waveform_N: FloatArray
    segments: NDArray[np.int64]
    """(K, 2) first and end samples of its segments of speech."""


@dataclass(frozen=True)
class _Clips:
    """C clips with K segments of speech in total, by speaker: speaker p has the clips first[p] to first[p + 1]."""

    first: NDArray[np.int64]
    source: NDArray[np.int64]
    position: NDArray[np.int64]
    segment_first: NDArray[np.int64]
    """(C + 1,) clip c has the segments segment_first[c] to segment_first[c + 1]."""
    segments: NDArray[np.int64]
    """(K, 2) first and end samples in the row."""
    level: NDArray[np.float64]
    """(C,) RMS of the speech."""


class ClipBank:
    """The clips of a set of speakers; see `of`."""

    def __init__(self, speakers: list[str], caches: list[FeatureCache], clips: _Clips, sample_rate: int) -> None:
        self.speakers = speakers
        self.sample_rate = sample_rate
        self._caches = caches
        self._clips = clips

    def utterance(self, speaker: int, samples: int, rng: np.random.Generator) -> Utterance:
        """Speech of speaker number `speaker`, of about `samples` samples or fewer: a random clip or a part of one, cut
        at a pause if there is one nearby, and scaled to a level (RMS of the speech) of 1."""
        clips = self._clips
        clip = int(rng.integers(clips.first[speaker], clips.first[speaker + 1]))
        segments = clips.segments[clips.segment_first[clip] : clips.segment_first[clip + 1]]
        start, end = _part(segments, samples, rng)
        waveform = self._caches[clips.source[clip]].waveform(int(clips.position[clip]), start, end)
        waveform /= np.float32(clips.level[clip])
        _fade(waveform, round(_FADE_SECONDS * self.sample_rate))
        inside = np.clip(segments - start, 0, end - start)
        return Utterance(waveform, inside[inside[:, 1] > inside[:, 0]])

    def seconds(self) -> NDArray[np.float64]:
        """(speakers,) total duration of each speaker's clips, in seconds."""
        clips = self._clips
        first, last = clips.segment_first[:-1], clips.segment_first[1:] - 1
        length_C = (clips.segments[last, 1] - clips.segments[first, 0]) / self.sample_rate
        return np.array([length_C[a:b].sum() for a, b in zip(clips.first, clips.first[1:], strict=False)])

    @classmethod
    def of(
        cls,
        sources: Sequence[Source],
        sample_rate: int,
        min_seconds: float,
        people: Collection[str] | None = None,
    ) -> ClipBank:
        """The clips in all rows of `sources` whose speech spans at least `min_seconds`.

        Args:
            sample_rate: Sample rate of the sources in Hz.
            people: Only clips of these speakers; None: all.

        Raises DataError if there are none.
        """
        clips_of: dict[str, list[tuple[int, int, NDArray[np.int64]]]] = {}
        without: list[str] = []
        for number, source in enumerate(sources):
            for position in source.positions:
                clips = _long_clips(source, position, min_seconds * sample_rate)
                if not clips:
                    without.append(source.prepared.index.id[position])
                for clip in clips:
                    name = source.person(position, int(clip[0, SPEAKER]))
                    if people is None or name in people:
                        clips_of.setdefault(name, []).append((number, int(position), clip))
        if people is None:  # otherwise they were reported before
            warn_left_out(f"have no clip of at least {min_seconds:g} s with clear speech of a single speaker", without)
        if not clips_of:
            raise DataError(
                f"there is no clip of at least {min_seconds:g} s with clear speech of a single speaker; lower "
                "data.simulation.min_clip_seconds, or set data.simulation.path to other corpora"
            )
        caches = [source.prepared.cache for source in sources]
        return cls(sorted(clips_of), caches, _table(clips_of), sample_rate)


def _long_clips(source: Source, position: int, samples: float) -> list[NDArray[np.int64]]:
    """The clips of a row, each a table as in `Source.speech`, whose speech spans at least `samples` samples."""
    segments = source.speech(position)
    clips = np.split(segments, np.flatnonzero(np.diff(segments[:, CLIP])) + 1)
    return [clip for clip in clips if len(clip) and clip[-1, END] - clip[0, START] >= samples]


def _table(clips_of: dict[str, list[tuple[int, int, NDArray[np.int64]]]]) -> _Clips:
    """Speaker -> (index of the source, position, clip), as arrays."""
    names = sorted(clips_of)
    every = [clip for name in names for clip in clips_of[name]]
    return _Clips(
        first=np.cumsum([0, *(len(clips_of[name]) for name in names)], dtype=np.int64),
        source=np.array([number for number, _, _ in every], dtype=np.int64),
        position=np.array([position for _, position, _ in every], dtype=np.int64),
        segment_first=np.cumsum([0, *(len(one) for _, _, one in every)], dtype=np.int64),
        segments=np.concatenate([one[:, START : END + 1] for _, _, one in every]),
        level=np.array([10.0 ** (one[0, LEVEL] / 2000.0) for _, _, one in every]),
    )


def _part(segments: NDArray[np.int64], samples: int, rng: np.random.Generator) -> tuple[int, int]:
    """First and end sample of a random part of about `samples` samples of a clip with these segments of speech; the
    whole clip if it is at most 25 % longer."""
    begin, end = int(segments[0, 0]), int(segments[-1, 1])
    if end - begin <= 1.25 * samples:
        return begin, end
    starts = segments[segments[:, 0] <= end - samples, 0]
    start = int(rng.choice(starts)) if len(starts) > 1 else int(rng.integers(begin, end - samples))
    stop = start + samples
    last = int(np.searchsorted(segments[:, 0], stop)) - 1  # the last segment that begins before the stop
    finish = int(segments[last, 1])
    return start, min(finish, stop) if finish - stop > 0.3 * samples else finish


def _fade(waveform_N: FloatArray, length: int) -> None:
    length = min(length, len(waveform_N) // 2)
    ramp = np.linspace(0.0, 1.0, length, dtype=np.float32)
    waveform_N[:length] *= ramp
    waveform_N[len(waveform_N) - length :] *= ramp[::-1]
