"""What is done to the sound of a sentence while it is rendered: silences put in, and levels of words.

Shapes: T frames, M mel bands, L tokens, N samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from phonate.audio.decoding import FloatArray
from phonate.text.captions import TimedWord
from phonate.text.script import ScriptWord

FADE_SECONDS = 0.01
"""By which sound ends where a silence is put in, and by which a level changes."""
SILENT_DB = -40.0
"""Of the loudest frame: what is below counts as silence."""
NEAR = 3
"""Frames around a boundary in which its silence is looked for, for durations are not exact."""


@dataclass(frozen=True)
class Pause:
    """A silence that is put in."""

    at: int
    """In front of this sample."""
    samples: int


@dataclass(frozen=True)
class Shaping:
    """The silences of a sentence, in their order, and the levels of its words."""

    rate: int
    pauses: Sequence[Pause] = ()
    levels: Sequence[tuple[int, float]] = ()
    """From which sample on -> decibels added."""

    def __call__(self, chunks: Iterable[FloatArray]) -> Iterator[FloatArray]:
        """The chunks (n,) of the sentence with all that; none of them is empty."""
        yield from (chunk for chunk in self._shaped(chunks) if len(chunk))

    def _shaped(self, chunks: Iterable[FloatArray]) -> Iterator[FloatArray]:
        if not self.pauses and not self.levels:
            yield from chunks
            return
        begins, left = 0, list(self.pauses)
        for chunk in chunks:
            shaped, ends = chunk * self._gains(begins, begins + len(chunk)), begins + len(chunk)
            while left and left[0].at < ends:
                pause = left.pop(0)
                cut = pause.at - (ends - len(shaped))
                yield from (shaped[:cut], np.zeros(pause.samples, dtype=np.float32))
                shaped = shaped[cut:]
            yield shaped
            begins = ends
        for pause in left:
            yield np.zeros(pause.samples, dtype=np.float32)

    def later(self, words: Iterable[TimedWord]) -> Iterator[TimedWord]:
        """Words at the times that they have after the silences were put in."""
        for word in words:
            begin, end = round(word.start * self.rate), round(word.end * self.rate)
            start = word.start + sum(one.samples for one in self.pauses if one.at <= begin) / self.rate
            stop = word.end + sum(one.samples for one in self.pauses if one.at < end) / self.rate
            yield TimedWord(word.text, round(start, 3), round(stop, 3))

    def _gains(self, begin: int, end: int) -> FloatArray:
        """Factors of the samples from `begin` to `end`."""
        fade = max(1, round(FADE_SECONDS * self.rate))
        gains = np.ones(end - begin, dtype=np.float32)
        samples = np.arange(begin, end) + 0.5
        if self.levels:
            places = [place for start, _ in self.levels[1:] for place in (start - fade / 2, start + fade / 2)]
            decibels = [value for _, value in self.levels for _ in range(2)][1:-1]
            first = self.levels[0][1]
            curve = np.interp(samples, places, decibels) if places else np.full(len(samples), first)
            gains = (10.0 ** (curve / 20.0)).astype(np.float32)
        for pause in self.pauses:
            gains *= np.minimum(np.abs(samples - pause.at) / fade, 1.0).astype(np.float32)
        return gains


def level(mel_TM: FloatArray, unit_db: float) -> NDArray[np.float64]:
    """Level of each frame (T,) in dB relative to the loudest; 1 of the mel is `unit_db`."""
    powers_TM = 10.0 ** (unit_db * mel_TM.astype(np.float64) / 10.0)
    found_T = 10.0 * np.log10(powers_TM.sum(axis=1))
    return np.asarray(found_T - found_T.max())


def silent_end(level_T: NDArray[np.float64]) -> int:
    """Silent frames at the end."""
    loud = np.flatnonzero(level_T >= SILENT_DB)
    return len(level_T) - 1 - int(loud[-1])


def shaping(
    words: Sequence[ScriptWord],
    pauses: Sequence[float],
    frames_L: NDArray[np.int64],
    level_T: NDArray[np.float64],
    hop: int,
    rate: int,
) -> Shaping:
    """How a sentence is shaped.

    Args:
        words: W words with their levels and silences, which last at least as long from one word to the next.
        pauses: Seconds of silence to be heard after each word (W,), at least; that after the last is not looked at.
        frames_L: Frames of each token.
        level_T: Level of each frame, see `level`.
        hop: Samples of a frame.
        rate: Samples a second.
    """
    ends_L = np.cumsum(frames_L)
    token, found, middles = 0, [], [0]
    for number, (one, seconds) in enumerate(zip(words, pauses, strict=True), start=1):
        token += len(one.word.phones) + 1
        begin, end = int(ends_L[token - 1]), int(ends_L[token])
        middles.append((begin + end) * hop // 2)
        missing = one.silence - (end - begin) * hop / rate if one.silence else 0.0
        if number < len(words):
            first, last = max(0, begin - NEAR), min(len(level_T), end + NEAR)
            missing = max(missing, seconds - _longest_run(level_T[first:last] < SILENT_DB) * hop / rate)
        if missing > 0:
            place = (end * hop) if number == len(words) else _quietest(level_T, begin, end) * hop
            found.append(Pause(place, round(missing * rate)))
    decibels = [one.delivery.decibels for one in words]
    return Shaping(rate, found, list(zip(middles, decibels, strict=False)) if any(decibels) else ())


def _longest_run(values: NDArray[np.bool_]) -> int:
    """Length of the longest run of True."""
    longest = run = 0
    for value in values:
        run = run + 1 if value else 0
        longest = max(longest, run)
    return longest


def _quietest(level_T: NDArray[np.float64], begin: int, end: int) -> int:
    """The quietest frame between two words, so that the silence in front of it is part of neither."""
    first, last = min(begin, len(level_T) - 1), min(len(level_T), end + 1)
    return first + int(np.argmin(level_T[first:last]))
