"""Where a long recording can be cut: in the pauses between words, into pieces of a length that is good to train on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from phonate.audio.decoding import FloatArray, resample
from phonate.evaluation.packages import judge_package

SHORTEST, LONGEST = 2.0, 14.0
"""Seconds of a piece."""
KEPT = 0.15
"""Seconds of the pause that are kept at either end, where the pause has as many for both sides."""

_VAD_RATE = 16000
_LEAST_PAUSE_MS = 100
_WIDEST_PAUSE = 2.0  # seconds inside of a piece; a longer one always ends it
_COMMON_PAUSE = 0.8
_GOOD_PAUSE = 0.5
_QUIET_SECONDS = 0.1


@dataclass(frozen=True)
class Piece:
    """A part of a recording, in seconds."""

    start: float
    end: float
    in_pause: bool = True
    """False where its end is no pause: somebody spoke on for too long, and it was cut where it is quietest."""

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end - self.start


def speech_in(waveform: FloatArray, rate: int) -> list[Piece]:
    """The stretches of speech between pauses, found by Silero's voice activity detector. Raises MissingPackageError
    without faster-whisper, which brings that detector."""
    vad = judge_package("faster_whisper.vad", "finding speech")
    samples = waveform if rate == _VAD_RATE else resample(waveform, rate, _VAD_RATE)
    options = vad.VadOptions(min_silence_duration_ms=_LEAST_PAUSE_MS, speech_pad_ms=0)
    found = vad.get_speech_timestamps(samples, options)
    return [Piece(one["start"] / _VAD_RATE, min(one["end"], len(samples)) / _VAD_RATE) for one in found]


def pieces_of(waveform: FloatArray, rate: int) -> tuple[list[Piece], list[Piece]]:
    """The pieces to cut out of a recording, and the speech that stands alone and is too short for one."""
    speech = [part for one in speech_in(waveform, rate) for part in _divided(one, waveform, rate)]
    joined = [Piece(group[0].start, group[-1].end, group[-1].in_pause) for group in _grouped(speech)]
    kept = [one for one in joined if one.seconds >= SHORTEST]
    return _with_ends(kept, joined, len(waveform) / rate), [one for one in joined if one.seconds < SHORTEST]


def _divided(speech: Piece, waveform: FloatArray, rate: int) -> list[Piece]:
    """A stretch of speech as it is, or cut where it is quietest if it is too long for one piece."""
    longest = LONGEST - 2 * KEPT
    parts = []
    while speech.seconds > longest:
        # Not before the middle, and so that what is left is long enough by itself.
        earliest, latest = speech.start + longest / 2, min(speech.start + longest, speech.end - SHORTEST)
        size = int(_QUIET_SECONDS * rate)
        power = np.cumsum(np.square(waveform[int(earliest * rate) : int(latest * rate)], dtype=np.float64))
        at = earliest + (int(np.argmin(power[size:] - power[:-size])) + size / 2) / rate
        parts.append(Piece(speech.start, at, in_pause=False))
        speech = Piece(at, speech.end, speech.in_pause)
    return [*parts, speech]


def _grouped(speech: Sequence[Piece]) -> list[Sequence[Piece]]:
    """Stretches of speech that become a piece together: the division that costs least over the whole recording."""
    best: list[tuple[float, int]] = [(0.0, 0)]  # for the first n stretches: cost, and where the last group begins
    for end in range(1, len(speech) + 1):
        options = []
        inner = 0.0
        for start in range(end - 1, -1, -1):
            if start < end - 1:
                inner += _cost_inside(speech[start + 1].start - speech[start].end)
            seconds = speech[end - 1].end - speech[start].start
            alone = start == end - 1
            if not alone and (seconds > LONGEST - 2 * KEPT or math.isinf(inner)):
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
    """Of keeping a pause inside of a piece."""
    return math.inf if pause > _WIDEST_PAUSE else 3.0 * max(0.0, pause - _COMMON_PAUSE)


def _cost_of_cut(pause: float) -> float:
    """Of cutting in a pause: words are cut off in short ones, and sentences end in long ones."""
    return 4.0 * max(0.0, _GOOD_PAUSE - pause)


def _with_ends(kept: Sequence[Piece], every: Sequence[Piece], length: float) -> list[Piece]:
    """The pieces with a little of the pauses around them, never more than half of a pause."""
    ends = [0.0, *(one.end for one in every)]
    starts = [*(one.start for one in every), length]
    padded = []
    for one in kept:
        at = every.index(one)
        before = one.start - ends[at] if at == 0 else (one.start - ends[at]) / 2
        after = starts[at + 1] - one.end if at + 1 == len(every) else (starts[at + 1] - one.end) / 2
        padded.append(Piece(one.start - min(KEPT, before), one.end + min(KEPT, max(after, 0.0)), one.in_pause))
    return padded
