"""Segmentation of long recordings at pauses, into pieces of a length suited to training."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from phonate.audio.decoding import FloatArray, resample
from phonate.config.packages import optional_package

SHORTEST, LONGEST = 2.0, 14.0
"""Length of a piece in seconds."""
MARGIN = 0.15
"""Seconds of a pause that are kept at either end of a piece, but no more than half of the pause."""
WINDOW = 600.0
"""Seconds of a recording that are segmented at a time, so that memory does not grow with its length."""

_VAD_RATE = 16000
_MIN_PAUSE_MS = 100
_MAX_PAUSE = 2.0  # seconds, within a piece; a longer pause always ends it
_COMMON_PAUSE = 0.8
_GOOD_PAUSE = 0.5
_QUIET_SECONDS = 0.1
_SEARCHED = 60.0  # seconds at the end of a window in which its last pause is looked for


@dataclass(frozen=True)
class Piece:
    """A part of a recording; times in seconds."""

    start: float
    end: float
    in_pause: bool = True
    """False if it ends within speech: speech without a pause was too long, and was cut at its quietest point."""

    @property
    def seconds(self) -> float:
        """Its length in seconds."""
        return self.end - self.start

    def shifted(self, seconds: float) -> Piece:
        """The same piece, `seconds` later."""
        return dataclasses.replace(self, start=self.start + seconds, end=self.end + seconds)


@dataclass(frozen=True)
class Window:
    """Part of a recording, with its pieces."""

    start: float
    """In seconds."""
    waveform: FloatArray
    """(samples,)"""
    pieces: list[Piece]
    """Times are from the start of the window."""
    short: list[Piece]
    """Isolated speech that is too short for a piece."""


def speech_in(waveform: FloatArray, rate: int) -> list[Piece]:
    """The stretches of speech in a waveform (samples,), found by Silero's voice activity detector.

    Raises MissingPackageError without faster-whisper, which includes the detector.
    """
    vad = optional_package("faster_whisper.vad", "finding speech")
    samples = waveform if rate == _VAD_RATE else resample(waveform, rate, _VAD_RATE)
    options = vad.VadOptions(min_silence_duration_ms=_MIN_PAUSE_MS, speech_pad_ms=0)
    found = vad.get_speech_timestamps(samples, options)
    return [Piece(one["start"] / _VAD_RATE, min(one["end"], len(samples)) / _VAD_RATE) for one in found]


def pieces_of(waveform: FloatArray, rate: int) -> tuple[list[Piece], list[Piece]]:
    """The pieces of a waveform (samples,), and isolated speech that is too short for a piece."""
    return _pieces(speech_in(waveform, rate), waveform, rate)


def windows_of(blocks: Iterator[FloatArray], rate: int) -> Iterator[Window]:
    """`pieces_of` a recording that is read in blocks (samples,). Windows end in pauses, where pieces do, too."""
    start, held = 0.0, np.zeros(0, np.float32)
    for block in blocks:
        held = np.concatenate([held, block])
        if len(held) < WINDOW * rate:
            continue
        speech = speech_in(held, rate)
        end = _last_pause(speech, len(held) / rate)
        before = [one for one in speech if one.end <= end]
        size = round(end * rate)
        yield Window(start, held[:size], *_pieces(before, held[:size], rate))
        start, held = start + size / rate, held[size:]
    if len(held):
        yield Window(start, held, *pieces_of(held, rate))


def _last_pause(speech: Sequence[Piece], length: float) -> float:
    """The middle of the longest pause in the last `_SEARCHED` seconds; the end itself if there is no pause."""
    edges = [0.0, *(time for one in speech for time in (one.start, one.end)), length]
    pauses = [(after - before, (after + before) / 2) for before, after in zip(edges[::2], edges[1::2], strict=True)]
    return max((pause for pause in pauses if pause[1] > length - _SEARCHED and pause[0] > 0), default=(0.0, length))[1]


def _pieces(speech: Sequence[Piece], waveform: FloatArray, rate: int) -> tuple[list[Piece], list[Piece]]:
    speech = [part for one in speech for part in _divided(one, waveform, rate)]
    joined = [Piece(group[0].start, group[-1].end, group[-1].in_pause) for group in _grouped(speech)]
    kept = [one for one in joined if one.seconds >= SHORTEST]
    return _with_ends(kept, joined, len(waveform) / rate), [one for one in joined if one.seconds < SHORTEST]


def _divided(speech: Piece, waveform: FloatArray, rate: int) -> list[Piece]:
    """A stretch of speech, cut at quiet points if it is too long for one piece."""
    longest = LONGEST - 2 * MARGIN
    parts = []
    while speech.seconds > longest:
        # not in the first half, and so that the rest is long enough for a piece
        earliest, latest = speech.start + longest / 2, min(speech.start + longest, speech.end - SHORTEST)
        size = int(_QUIET_SECONDS * rate)
        power = np.cumsum(np.square(waveform[int(earliest * rate) : int(latest * rate)], dtype=np.float64))
        at = earliest + (int(np.argmin(power[size:] - power[:-size])) + size / 2) / rate
        parts.append(Piece(speech.start, at, in_pause=False))
        speech = Piece(at, speech.end, speech.in_pause)
    return [*parts, speech]


def _grouped(speech: Sequence[Piece]) -> list[Sequence[Piece]]:
    """Stretches of speech grouped into pieces, at the least total cost (dynamic programming)."""
    best: list[tuple[float, int]] = [(0.0, 0)]  # for the first n stretches: cost, and start of the last group
    for end in range(1, len(speech) + 1):
        options = []
        inner = 0.0
        for start in range(end - 1, -1, -1):
            if start < end - 1:
                inner += _cost_inside(speech[start + 1].start - speech[start].end)
            seconds = speech[end - 1].end - speech[start].start
            alone = start == end - 1
            if not alone and (seconds > LONGEST - 2 * MARGIN or math.isinf(inner)):
                break
            pause = speech[start].start - speech[start - 1].end if start else _GOOD_PAUSE
            cost = inner + _cost_of_cut(pause) + (100.0 if seconds < SHORTEST else 0.3)
            options.append((best[start][0] + cost, start))
        best.append(min(options))
    groups: list[Sequence[Piece]] = []
    end = len(speech)
    while end:
        start = best[end][1]
        groups.append(speech[start:end])
        end = start
    return groups[::-1]


def _cost_inside(pause: float) -> float:
    """The cost of a pause within a piece."""
    return math.inf if pause > _MAX_PAUSE else 3.0 * max(0.0, pause - _COMMON_PAUSE)


def _cost_of_cut(pause: float) -> float:
    """The cost of cutting in a pause: short ones risk cutting words, and long ones end sentences."""
    return 4.0 * max(0.0, _GOOD_PAUSE - pause)


def _with_ends(kept: Sequence[Piece], every: Sequence[Piece], length: float) -> list[Piece]:
    """The pieces with up to `MARGIN` of the pauses around them, and no more than half of each pause."""
    ends = [0.0, *(one.end for one in every)]
    starts = [*(one.start for one in every), length]
    padded = []
    for one in kept:
        at = every.index(one)
        before = one.start - ends[at] if at == 0 else (one.start - ends[at]) / 2
        after = starts[at + 1] - one.end if at + 1 == len(every) else (starts[at + 1] - one.end) / 2
        padded.append(Piece(one.start - min(MARGIN, before), one.end + min(MARGIN, max(after, 0.0)), one.in_pause))
    return padded
