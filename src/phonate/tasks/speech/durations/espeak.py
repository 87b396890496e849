"""Exact durations of speech synthesised by espeak-ng, from the TextGrid next to each recording.

`phonate.workflows.demo.embedded_corpus.say` writes them.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from phonate.config.errors import DataError
from phonate.tasks.speech.durations import textgrids
from phonate.tasks.speech.durations.boundaries import Durations, frames_between
from phonate.tasks.speech.durations.textgrids import Span
from phonate.text import espeak
from phonate.text.phonemes import Word

_Timed = tuple[str, float, float]
"""A phone with its start and end in seconds."""
_MARKS = {"Mn", "Lm", "Sk"}
"""Unicode's categories of combining marks, modifier letters such as ˈ, ː and ʲ, and symbols such as the hook of ˞."""
_LEAST_HEARD = 0.9
"""Minimum share of phones that espeak must have reported."""


def starts(words: Sequence[Word], phones: Sequence[Span], length: float) -> list[float]:
    """Start time of each token except the first; `phones` are those of a recording of `length` seconds.

    Pauses between words belong to the boundary, pauses within a word to the preceding phone. Raises DataError if the
    phones differ from those of the words.
    """
    begins = _matched([phone for word in words for phone in word.phones], phones)
    found: list[float] = []
    at = 0
    for word in words:
        found += [start for _, start, _ in begins[at : at + len(word.phones)]]
        at += len(word.phones)
        found.append(begins[at - 1][2] if at else 0.0)
    return [min(second, length) for second in found]


def _matched(wanted: Sequence[str], spans: Sequence[Span]) -> list[_Timed]:
    """Times of the `wanted` phones.

    espeak does not report a few phones (the l of "twelve"); such a phone gets half of the preceding one.
    """
    heard = [phone for span in spans for phone in _code_points(span)]
    found: list[_Timed] = []
    at = 0
    for phone in wanted:
        if at < len(heard) and heard[at][0] == phone:
            found.append(heard[at])
            at += 1
        elif found:
            before, start, end = found[-1]
            found[-1:] = [(before, start, (start + end) / 2), (phone, (start + end) / 2, end)]
    if at < len(heard) or len(heard) < _LEAST_HEARD * len(wanted) or len(found) < len(wanted):
        said = "".join(phone for phone, _, _ in heard)
        raise DataError(f"espeak said {said!r}, the text has {''.join(wanted)!r}")
    return found


def _code_points(span: Span) -> list[_Timed]:
    """(phone, start, end) of each code point of an event: stress and combining marks have no duration, the
    others are equally long."""
    phones = espeak.plain(span.label)
    timed = [not is_silent_mark(phone) for phone in phones]
    share = (span.end - span.start) / max(1, sum(timed))
    found, at = [], span.start
    for phone, lasts in zip(phones, timed, strict=True):
        end = at + share * lasts
        found.append((phone, at, end))
        at = end
    return found


def is_silent_mark(phone: str) -> bool:
    """Whether a code point of espeak's IPA modifies its neighbour (stress, length, diacritics)."""
    return all(unicodedata.category(letter) in _MARKS for letter in phone)


class EspeakTimes:
    """The aligner of a corpus: reads the TextGrid next to each recording."""

    def __init__(self, paths: Mapping[int, Path], lengths: NDArray[np.int64], frames_per_second: float) -> None:
        """`paths`: the TextGrid of each position; `lengths`: its frames."""
        self._paths = paths
        self._lengths = lengths
        self._frames_per_second = frames_per_second

    def __call__(self, position: int, words: Sequence[Word]) -> Durations:
        """Frames of each token."""
        frames = int(self._lengths[position])
        grid = textgrids.read(self._paths[position])
        seconds = starts(words, grid.phones, frames / self._frames_per_second)
        return frames_between(seconds, frames, self._frames_per_second)
