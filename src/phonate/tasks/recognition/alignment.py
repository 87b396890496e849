"""When the words of a given text are said in a recording, where the text may have words that are not said, and the
recording may have others.

English is aligned by pocketsphinx, with times of phones. For other languages a recogniser is asked for the
probabilities of the given words: a run of this task by its letters (CTC), Whisper by its attention to the recording.
"""

from __future__ import annotations

import difflib
import itertools
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from phonate.audio.decoding import Audio, FloatArray, as_waveform
from phonate.config.errors import DataError, InputError, option
from phonate.config.language_codes import primary
from phonate.data.progress import Stage, progress_in
from phonate.data.transcripts import Alignment, Transcription
from phonate.evaluation.words import plain
from phonate.pretrained import Pocketsphinx, WordTimes
from phonate.text.captions import TimedWord
from phonate.text.phonemes import Phonemizer, Word, phonemizer

UNSPACED = frozenset({"zh", "ja", "th", "lo", "my", "km", "yue"})
"""Languages written without spaces: each of their characters is aligned by itself."""


def text_units(text: str, language: str) -> list[str]:
    """The words of a text, or its characters where the language has no spaces between words, with the marks around
    them."""
    if primary(language) not in UNSPACED:
        return text.split()
    units: list[str] = []
    for character in "".join(text.split()):
        if units and (unicodedata.category(character)[0] in "MP" or not any(map(str.isalnum, units[-1]))):
            units[-1] += character
        else:
            units.append(character)
    return units


def _letters(word: str) -> str:
    """By which words are compared."""
    return plain(word).replace(" ", "")


# ----------------------------------------------------------------------------- English: pocketsphinx

_CHUNK_SECONDS = 120.0
_LATEST = 0.9
"""Share of a chunk up to which it is relied on: the text may go on."""
_WORDS_PER_SECOND = 5.0
_GROUP_SECONDS = (8.0, 25.0)
"""Length of what the times of phones are looked for in, at least and at most."""
_PAUSE = 0.15


class EnglishAligner:
    """Aligns English texts, by pocketsphinx."""

    def __init__(self, texts: Sequence[str]) -> None:
        """`texts`: all that will be aligned. Raises InputError for one without words."""
        self._phonemizer = phonemizer("english")
        self._words = {text: self._phonemizer(text) for text in texts}
        self._aligner = Pocketsphinx(word for words in self._words.values() for word in words)

    def __call__(self, audio: Audio, text: str, *, sample_rate: int | None = None) -> Alignment:
        """When the words of `text` are said in a recording: a file, or samples (N,) at `sample_rate` Hz (None: 16,000).

        Raises InputError where none of them is said."""
        waveform = as_waveform(audio, _RATE, sample_rate)
        words = self._words[text]
        aligned_up_to = progress_in(Stage.ALIGNING, audio)
        said, others = self._word_times(waveform, words, aligned_up_to) if waveform.any() else ({}, [])
        if not said:
            raise InputError("none of the words of the text is said in the recording; is it the right one?")
        edges = self._edges(waveform, words, said)
        units = text.split()
        owners = _owners(units, words, self._phonemizer)
        timed: list[TimedWord] = []
        missing: list[TimedWord] = []
        at = 0.0
        for number, unit in enumerate(units):
            own = [place for place, owner in enumerate(owners) if owner == number and place in said]
            if own:
                at = said[own[-1]][1]
                timed.append(TimedWord(unit, said[own[0]][0], at))
            elif _letters(unit):
                missing.append(TimedWord(unit, at, at))
        phones = [
            TimedWord(phone, start, end)
            for place in sorted(edges)
            for phone, start, end in zip(words[place].phones, edges[place], edges[place][1:], strict=False)
        ]
        extra = [TimedWord("", start, end) for start, end in others if end - start > _SHORTEST_EXTRA]
        return Alignment(timed, len(waveform) / _RATE, "en", phones=phones, missing=missing, extra=extra)

    def _word_times(
        self, waveform: FloatArray, words: Sequence[Word], aligned_up_to: Callable[[float], None]
    ) -> tuple[dict[int, tuple[float, float]], list[tuple[float, float]]]:
        """The times of the words that are said, by number, and when other things are said. `aligned_up_to` is told how
        many seconds are done."""
        said: dict[int, tuple[float, float]] = {}
        others: list[tuple[float, float]] = []
        start, first = 0.0, 0
        seconds = len(waveform) / _RATE
        while seconds - start > _PAUSE and first < len(words):
            last = seconds - start <= _CHUNK_SECONDS
            part = waveform[round(start * _RATE) : None if last else round((start + _CHUNK_SECONDS) * _RATE)]
            end = len(words) if last else first + round(_CHUNK_SECONDS * _WORDS_PER_SECOND)
            try:
                result = self._aligner.word_times(part, _RATE, words[first:end], cut=not last)
            except DataError:
                result = WordTimes({}, [(0.0, len(part) / _RATE)])
            done = len(part) / _RATE if last else _LATEST * _CHUNK_SECONDS
            result = _with_mumbled(result, words[first:end], len(part) / _RATE)
            chosen = result.words if last else _up_to_a_pause(result.words, done)
            if chosen and not last:
                done = max(times[1] for times in chosen.values())
            said |= {first + place: (start + one, start + two) for place, (one, two) in chosen.items()}
            others += [(start + one, start + two) for one, two in result.others if one < done]
            first += max(chosen, default=-1) + 1
            start += done
            aligned_up_to(start)
        return said, others

    def _edges(
        self, waveform: FloatArray, words: Sequence[Word], said: dict[int, tuple[float, float]]
    ) -> dict[int, list[float]]:
        """The times of the phones of the words that are said, by number; `said` gets theirs. Where the second search
        fails, words keep their times and have no phones."""
        edges: dict[int, list[float]] = {}
        for group in _groups(said):
            start = max(0.0, said[group[0]][0] - _PAUSE)
            part = waveform[round(start * _RATE) : round((said[group[-1]][1] + _PAUSE) * _RATE)]
            try:
                found = self._aligner(part, _RATE, [words[place] for place in group])
            except DataError:
                continue
            for place, times in zip(group, found, strict=True):
                edges[place] = [start + time for time in times]
                said[place] = edges[place][0], edges[place][-1]
        return edges


_RATE = 16000
_MUMBLED = 2
_PHONE_SECONDS = (0.03, 0.2)
"""Of a phone, at least and at most."""
_SHORTEST_EXTRA = 0.3
"""Seconds of speech that is not in the text from which it is reported."""


def _with_mumbled(said: WordTimes, words: Sequence[Word], seconds: float) -> WordTimes:
    """One or two missing words in whose place something else is said, about as long as they are, are said after all:
    other phones may fit a slurred word better than its own. So is a single one that is hardly heard in fluent speech,
    such as "of"; it shares the time of the word before it until phones are looked for."""
    found, others = dict(said.words), list(said.others)
    places = [-1, *sorted(said.words), len(words)]
    for one, two in itertools.pairwise(places):
        gap = range(one + 1, two)
        if not 0 < len(gap) <= _MUMBLED or (one < 0 and two == len(words)):
            continue
        before = said.words[one][1] if one >= 0 else 0.0
        after = said.words[two][0] if two < len(words) else seconds
        inside = [times for times in others if before - 0.05 <= times[0] and times[1] <= after + 0.05]
        phones = sum(len(words[place].phones) for place in gap)
        shortest, longest = (phones * limit for limit in _PHONE_SECONDS)
        if len(inside) == 1 and shortest <= inside[0][1] - inside[0][0] <= longest:
            others.remove(inside[0])
            start, step = inside[0][0], (inside[0][1] - inside[0][0]) / phones
            for place in gap:
                end = start + step * len(words[place].phones)
                found[place], start = (start, end), end
        elif not inside and len(gap) == 1 and one >= 0 and two < len(words) and _is_weak(words[gap[0]]):
            start, end = said.words[one]
            middle = (start + end) / 2
            found[one], found[gap[0]] = (start, middle), (middle, end)
    return WordTimes(dict(sorted(found.items())), others)


def _is_weak(word: Word) -> bool:
    return len(word.phones) < 3 or not any(phone.endswith("1") for phone in word.phones)


def _up_to_a_pause(words: dict[int, tuple[float, float]], latest: float) -> dict[int, tuple[float, float]]:
    """The words up to the longest pause in the second half of the time before `latest`."""
    inside = [place for place in sorted(words) if words[place][1] <= latest]
    pauses = [
        (words[two][0] - words[one][1], one)
        for one, two in itertools.pairwise(inside)
        if words[one][1] >= latest / 2 and two == one + 1
    ]
    if pauses:
        inside = [place for place in inside if place <= max(pauses)[1]]
    return {place: words[place] for place in inside}


def _groups(said: dict[int, tuple[float, float]]) -> Iterator[list[int]]:
    """The words that are said, in groups of some seconds that end in pauses."""
    least, most = _GROUP_SECONDS
    group: list[int] = []
    for place in sorted(said):
        start, end = said[place]
        if group:
            begin, before = said[group[0]][0], said[group[-1]][1]
            if start - before > 1.0 or (before - begin > least and start - before >= _PAUSE) or end - begin > most:
                yield group
                group = []
        group.append(place)
    if group:
        yield group


def _owners(units: Sequence[str], words: Sequence[Word], phonemizer: Phonemizer) -> list[int]:
    """The number of the unit of the text that each word is read from: "1476" is read as several words."""
    one, two = [_letters(unit) for unit in units], [_letters(word.text) for word in words]
    owners = [-1] * len(words)
    for kind, a, b, c, d in difflib.SequenceMatcher(None, one, two, autojunk=False).get_opcodes():
        if kind == "equal":
            owners[c:d] = range(a, b)
        elif d > c:
            shares = [number for number in range(a, b) for _ in _read(phonemizer, units[number])]
            shares = shares or [max(0, min(a, len(units) - 1))]
            for place in range(c, d):
                owners[place] = shares[(place - c) * len(shares) // (d - c)]
    return owners


def _read(phonemizer: Phonemizer, unit: str) -> Sequence[Word]:
    """The words of a unit by itself, which may be others than within its text."""
    try:
        return phonemizer(unit)
    except InputError:
        return ()


# ------------------------------------------------------------------- Any language: what a recogniser hears


class Forces(Protocol):
    """A recogniser that can be given the words."""

    @property
    def sample_rate(self) -> int | None:
        """Hz of what it takes."""

    def timed(
        self, audio: Audio, beam: int | None = None, *, sample_rate: int | None = None, language: str | None = None
    ) -> Transcription:
        """What it hears."""

    def forced(self, samples: FloatArray, words: Sequence[str], language: str) -> list[TimedWord]:
        """The times of `words`, with the probabilities that it gives them, in samples (N,) of up to 30 s."""


_LONGEST = 28.0
"""Seconds of a stretch, at most."""
_FASTEST = 0.025
"""Seconds that a letter takes at least."""
_LEAST_CONFIDENCE = 0.05
"""A word that was not heard, and is less probable, is missing."""


@dataclass(frozen=True)
class _Stretch:
    """A part of a recording, and the units of the text that are said in it."""

    first: int
    last: int
    start: float
    end: float


def align_as_heard(
    recogniser: Forces, audio: Audio, text: str, language: str | None = None, *, sample_rate: int | None = None
) -> Alignment:
    """When the words of `text` are said in a recording. What the recogniser hears is compared with the text; where both
    agree, the recording is cut into stretches, in each of which it is given the words of the text.

    Raises InputError where it hears nothing of the text."""
    rate = recogniser.sample_rate
    assert rate is not None
    waveform = as_waveform(audio, rate, sample_rate)
    seconds = len(waveform) / rate
    transcription = recogniser.timed(audio, sample_rate=sample_rate, language=language)  # of a file, with its progress
    aligned_up_to = progress_in(Stage.ALIGNING, audio)
    language = language or transcription.language or "en"
    units = text_units(text, language)
    heard = _unit_times(transcription.words, language)
    pairs = _pairs(units, heard)
    if not pairs:
        raise InputError(
            f"no words of the text are heard in the recording; are it and {option('language')} the right ones?"
        )
    matched = {unit: heard[place].confidence or 0.0 for unit, place in pairs}
    stretches, squeezed, extra = _stretches(units, heard, pairs, seconds)
    words: list[TimedWord] = []
    missing: list[TimedWord] = []
    for stretch in stretches:
        chosen = [number for number in range(stretch.first, stretch.last) if number not in squeezed]
        part = waveform[round(stretch.start * rate) : round(stretch.end * rate)]
        timed = recogniser.forced(part, [units[number] for number in chosen], language)
        doubtful = {
            number
            for number, word in zip(chosen, timed, strict=True)
            if number not in matched and (word.confidence or 0.0) < _LEAST_CONFIDENCE
        }
        if doubtful:
            chosen = [number for number in chosen if number not in doubtful]
            timed = recogniser.forced(part, [units[number] for number in chosen], language)
        by_number = dict(zip(chosen, timed, strict=True))
        at = stretch.start
        for number in range(stretch.first, stretch.last):
            if number in by_number:
                word = by_number[number]
                start, at = word.start + stretch.start, word.end + stretch.start
                confidence = max(word.confidence or 0.0, matched.get(number, 0.0))
                words.append(TimedWord(units[number], start, at, round(confidence, 4)))
            elif _letters(units[number]):
                missing.append(TimedWord(units[number], at, at, 0.0))
        aligned_up_to(stretch.end)
    return Alignment(words, seconds, primary(language), missing=missing, extra=extra)


def _unit_times(words: Sequence[TimedWord], language: str) -> list[TimedWord]:
    """Words as `text_units` has them: characters share the time of what the recogniser takes for a word."""
    if primary(language) not in UNSPACED:
        return list(words)
    units: list[TimedWord] = []
    for word in words:
        parts = text_units(word.text, language)
        step = (word.end - word.start) / max(1, len(parts))
        units += [
            replace(word, text=part, start=word.start + place * step, end=word.start + (place + 1) * step)
            for place, part in enumerate(parts)
        ]
    return units


def _pairs(units: Sequence[str], heard: Sequence[TimedWord]) -> list[tuple[int, int]]:
    """Numbers of units of the text and of heard words that are the same; words of one or two letters only beside
    others."""
    one, two = [_letters(unit) for unit in units], [_letters(word.text) for word in heard]
    matcher = difflib.SequenceMatcher(None, one, two, autojunk=False)
    pairs: list[tuple[int, int]] = []
    for a, b, size in matcher.get_matching_blocks():
        letters = sum(map(len, one[a : a + size]))
        if letters > 2 or size == len(units):
            pairs += [(a + place, b + place) for place in range(size) if one[a + place]]
    return pairs


def _stretches(
    units: Sequence[str], heard: Sequence[TimedWord], pairs: Sequence[tuple[int, int]], seconds: float
) -> tuple[list[_Stretch], set[int], list[TimedWord]]:
    """The stretches, the units for which there is no time, and what is heard and not in the text."""
    stretches: list[_Stretch] = []
    squeezed: set[int] = set()
    extra: list[TimedWord] = []
    cuts: list[tuple[float, int, float, float]] = []  # pause, units before it, its beginning and end
    start, first = 0.0, 0

    def cut(units_before: int, end: float, resume: float) -> None:
        nonlocal start, first
        if units_before > first:
            stretches.append(_Stretch(first, units_before, start, end))
        cuts[:] = [one for one in cuts if one[1] > units_before]
        start, first = resume, units_before

    for (t1, h1), (t2, h2) in itertools.pairwise([(-1, -1), *pairs, (len(units), len(heard))]):
        end = heard[h1].end if h1 >= 0 else 0.0
        resume = heard[h2].start if h2 < len(heard) else seconds
        between = range(t1 + 1, t2)
        letters = sum(len(_letters(units[number])) for number in between)
        others = list(heard[h1 + 1 : h2])
        if letters and resume - end < _FASTEST * letters:
            squeezed |= {*between}
            letters = 0
        if not letters and others:
            extra += others
            cut(t2, (end + others[0].start) / 2, (others[-1].end + resume) / 2)
            continue
        if resume - start > _LONGEST and cuts:
            _, before, stop, go_on = max(one for one in cuts if one[3] - start <= _LONGEST or one is cuts[0])
            cut(before, (stop + go_on) / 2, (stop + go_on) / 2)
        if resume - start > _LONGEST and letters:  # nothing of it is heard right for too long
            squeezed |= {*between}
            extra += others
            cut(t1 + 1, end, resume)
        elif not letters:
            cuts.append((max(0.0, resume - end), t2, end, resume))
    cut(len(units), seconds, seconds)
    return stretches, squeezed, extra
