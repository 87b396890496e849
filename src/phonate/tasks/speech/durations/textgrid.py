"""Durations from TextGrids of the Montreal Forced Aligner, one for each recording.

The aligner may find a pronunciation that differs from ours. `said` then returns the words with the
aligner's phones. A file that does not match its text is an error.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from phonate.config.errors import DataError
from phonate.tasks.speech.durations import textgrids
from phonate.tasks.speech.durations.boundaries import Durations, frames_between
from phonate.tasks.speech.durations.textgrids import Grid, Span
from phonate.text.phonemes import Word

_SILENCES = {"", "sil", "sp", "silence", "<eps>", "<s>", "</s>", "<sil>"}
_UNKNOWN = {"<unk>", "spn", "<spn>", "oov", "<oov>"}
_LONGER_SECONDS = 0.25
"""Seconds by which a TextGrid may be longer than its recording."""


@dataclass(frozen=True)
class _Group:
    """Words of the text, and the matching part of the TextGrid."""

    words: list[Word]
    phones: list[Span]


class TextGridTimes:
    """The aligner of a corpus: reads a TextGrid for each recording."""

    def __init__(
        self,
        paths: Mapping[int, Path],
        ids: Sequence[str],
        lengths: NDArray[np.int64],
        frames_per_second: float,
        inventory: Collection[str],
    ) -> None:
        """`paths`: the TextGrid of each position; `lengths`: its frames; `inventory`: all known phones."""
        self._paths = paths
        self._ids = ids
        self._lengths = lengths
        self._frames_per_second = frames_per_second
        self._inventory = frozenset(inventory)

    def said(self, position: int, words: Sequence[Word]) -> list[Word]:
        """`words` with the phones of the TextGrid. Raises DataError naming the recording if they differ."""
        return [word for group in self._groups(position, words) for word in self._heard(position, group)]

    def __call__(self, position: int, words: Sequence[Word]) -> Durations:
        """Frames of each token; `words` are the result of `said`. Pauses belong to the preceding boundary."""
        starts: list[float] = []
        for group in self._groups(position, words):
            at = 0
            for word in group.words:
                phones = group.phones[at : at + len(word.phones)]
                at += len(word.phones)
                starts += [phone.start for phone in phones]
                starts.append(phones[-1].end)
        return frames_between(starts, int(self._lengths[position]), self._frames_per_second)

    def _groups(self, position: int, words: Sequence[Word]) -> list[_Group]:
        grid = textgrids.read(self._paths[position])
        seconds = int(self._lengths[position]) / self._frames_per_second
        if grid.phones and grid.phones[-1].end > seconds + _LONGER_SECONDS:
            raise DataError(
                f"{self._ids[position]}: its TextGrid ends at {grid.phones[-1].end:.2f} s, the recording lasts "
                f"{seconds:.2f} s ({grid.path})"
            )
        try:
            return list(_grouped(words, grid))
        except DataError as error:
            raise DataError(f"{self._ids[position]}: {error} ({grid.path})") from None

    def _heard(self, position: int, group: _Group) -> list[Word]:
        """The words of a group, with the phones of the TextGrid if these differ in more than stress."""
        heard = [phone.label for phone in group.phones]
        own = [phone for word in group.words for phone in word.phones]
        if _plain(heard) == _plain(own):
            return group.words
        near = _distance(_plain(heard), _plain(own)) <= len(heard) / 2
        if len(group.words) == 1 and near and self._inventory.issuperset(heard):
            return [replace(group.words[0], phones=tuple(heard))]
        text = " ".join(word.text for word in group.words)
        raise DataError(
            f"{self._ids[position]}: the word {text!r} is {' '.join(own)} here, and {' '.join(heard) or 'nothing'} in "
            f"its TextGrid ({self._paths[position]})"
        )


def _grouped(words: Sequence[Word], grid: Grid) -> Iterator[_Group]:
    """The smallest groups of words with equal spelling (the aligner may write "thursday 's" or "well-known")."""
    spoken = [span for span in grid.words if span.label.lower() not in _SILENCES]
    at = 0
    pending: list[Word] = []
    for number, word in enumerate(words):
        pending.append(word)
        wanted = "".join(_letters(one.text) for one in pending)
        end, found = at, ""
        unknown = at < len(spoken) and spoken[at].label.lower() in _UNKNOWN
        if unknown:
            end, found = at + 1, wanted
        while end < len(spoken) and len(found) < len(wanted):
            found += _letters(spoken[end].label)
            end += 1
        while found == wanted and end < len(spoken) and not _letters(spoken[end].label):  # "'" by itself
            if spoken[end].label.lower() in _UNKNOWN:
                break
            end += 1
        if found == wanted:
            yield _Group(pending, [phone for span in spoken[at:end] for phone in _phones_in(span, grid)])
            at, pending = end, []
        elif not found.startswith(wanted) or number + 1 == len(words):
            said = spoken[at].label if at < len(spoken) else "nothing"
            raise DataError(f"the text has the word {pending[0].text!r} where its TextGrid has {said!r}")
    if at < len(spoken):
        raise DataError(f"its TextGrid has the word {spoken[at].label!r} after the end of the text")


def _phones_in(word: Span, grid: Grid) -> list[Span]:
    """The phones of a word, without pauses in it."""
    inside = [span for span in grid.phones if word.start <= (span.start + span.end) / 2 < word.end]
    return [span for span in inside if span.label.lower() not in _SILENCES]


def _letters(word: str) -> str:
    """Spelling for comparison: case-folded, Unicode-normalised, only letters and digits."""
    return "".join(letter for letter in unicodedata.normalize("NFC", word).casefold() if letter.isalnum())


def _plain(phones: Sequence[str]) -> list[str]:
    """The phone without ARPAbet stress."""
    return [phone.rstrip("012") or phone for phone in phones]


def _distance(one: Sequence[str], other: Sequence[str]) -> int:
    """Insertions, deletions and substitutions between two sequences."""
    row = list(range(len(other) + 1))
    for number, mine in enumerate(one, start=1):
        before, row[0] = row[0], number
        for place, theirs in enumerate(other, start=1):
            before, row[place] = row[place], min(row[place] + 1, row[place - 1] + 1, before + (mine != theirs))
    return row[-1]
