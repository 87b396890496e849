"""Words with the times at which they are said, and captions of them: SubRip (.srt), WebVTT (.vtt), or JSON (.json)."""

from __future__ import annotations

import itertools
import json
import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from phonate.compute.system import write_output
from phonate.config.errors import InputError

LINE = 42
"""Characters of a line, at most, of which a caption has two: what subtitling guidelines give."""
SHORTEST = 1.0
"""Seconds that a caption stands at least, to be read."""
LONG_PAUSE = 1.5
"""Seconds without speech after which a caption does not go on."""
_BREATH = 0.5
"""Seconds of silence, at least, between two turns of a speaker."""
_INITIALS = re.compile(r"(?:\w\.){2,}")
"""Such as P.M., which also stand within sentences."""


@dataclass(frozen=True)
class TimedWord:
    """A word, with the mark behind it, and when it is said."""

    text: str
    start: float
    """Seconds from the beginning."""
    end: float
    confidence: float | None = None
    """Probability that it was recognised rightly, from 0 to 1, where it was recognised."""
    speaker: str | None = None
    """Who says it, where that is known."""

    def document(self) -> dict[str, str | float]:
        """What is known of it, as plain JSON."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def captions(words: Sequence[TimedWord], form: str, seconds: float = math.inf) -> str:
    """`words` as the text of a file of the kind `form`: .srt, .vtt or .json. Raises InputError for another one.

    Args:
        words: In the order in which they begin.
        form: The suffix.
        seconds: How long the recording is, after which no caption stands.
    """
    if form not in _WRITERS:
        raise InputError(f"captions are written as {', '.join(_WRITERS)}, not as {form or 'a file without a suffix'}")
    return _WRITERS[form](words, seconds)


def write_captions(path: str | Path, words: Sequence[TimedWord], seconds: float = math.inf) -> None:
    """Write `words` in the form that the suffix of `path` names; `seconds` as in `captions`. Raises InputError."""
    try:
        text = captions(words, Path(path).suffix.lower(), seconds)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    write_output(path, text.encode())


def cues(words: Sequence[TimedWord]) -> list[list[TimedWord]]:
    """The words of each caption, sorted by start. A speaker's captions are lines that end with the sentence and before
    a long pause; one that is too short to be read is joined with the nearer of its neighbours, if two lines hold both
    and nobody answers in between.
    """
    spoken: dict[str | None, list[TimedWord]] = {}
    for word in words:
        spoken.setdefault(word.speaker, []).append(word)
    found: list[list[TimedWord]] = []
    for speaker, own in spoken.items():
        others = [word for word in words if word.speaker != speaker]
        found += _joined(list(_lines(own, _turns(others))), sorted(word.start for word in others))
    return sorted(found, key=lambda cue: cue[0].start)


def _turns(words: Sequence[TimedWord]) -> list[tuple[float, float]]:
    """Start and end of what each speaker says without a pause of `_BREATH`, sorted by start."""
    turns: dict[str | None, list[tuple[float, float]]] = {}
    for word in words:
        own = turns.setdefault(word.speaker, [])
        if own and word.start - own[-1][1] <= _BREATH:
            own[-1] = own[-1][0], max(own[-1][1], word.end)
        else:
            own.append((word.start, word.end))
    return sorted(itertools.chain.from_iterable(turns.values()))


def _lines(words: Sequence[TimedWord], others: Sequence[tuple[float, float]]) -> Iterator[list[TimedWord]]:
    """The words of one speaker in lines. `others`: turns of other speakers, sorted by start."""

    def answered(line: list[TimedWord], word: TimedWord) -> bool:
        first, last = (bisect_left(others, (time, -math.inf)) for time in (line[-1].end, word.start))
        return any(end <= word.start for _, end in others[first:last])

    line: list[TimedWord] = []
    for word, following in zip(words, (*words[1:], None), strict=False):
        if line and (_pause(line, [word]) > LONG_PAUSE or len(_text([*line, word])) > LINE or answered(line, word)):
            yield line
            line = []
        line.append(word)
        goes_on = word.text.endswith("...") and following is not None and following.text[:1].islower()
        if word.text.endswith((".", "!", "?")) and not goes_on and not _INITIALS.fullmatch(word.text):
            yield line
            line = []
    if line:
        yield line


def _joined(lines: list[list[TimedWord]], others: Sequence[float]) -> list[list[TimedWord]]:
    """`lines` of one speaker, each that is too short joined with a neighbour where that is possible. `others`: when
    words of other speakers begin."""

    def are_one(line: list[TimedWord], following: list[TimedWord]) -> bool:
        answered = bisect_left(others, following[0].start) > bisect_right(others, line[-1].start)
        fits = max(map(len, _wrapped(_text(line + following)).split("\n"))) <= LINE
        return fits and not answered and _pause(line, following) <= LONG_PAUSE

    at = 0
    while at < len(lines):
        short = lines[at][-1].end - lines[at][0].start < SHORTEST
        near = [one for one in (at - 1, at) if short and 0 <= one < len(lines) - 1 and are_one(*lines[one : one + 2])]
        if near:
            at = min(near, key=lambda one: _pause(*lines[one : one + 2]))
            lines[at : at + 2] = [lines[at] + lines[at + 1]]
        else:
            at += 1
    return lines


def _pause(line: Sequence[TimedWord], following: Sequence[TimedWord]) -> float:
    return following[0].start - line[-1].end


def _text(words: Sequence[TimedWord]) -> str:
    """What a viewer reads of one speaker's words."""
    return _named(words[0].speaker, " ".join(word.text for word in words))


def _wrapped(text: str) -> str:
    """`text` in one line, or else in two that are as even as can be."""
    spaces = [at for at, letter in enumerate(text) if letter == " "]
    if len(text) <= LINE or not spaces:
        return text
    middle = min(spaces, key=lambda at: max(at, len(text) - at - 1))
    return f"{text[:middle]}\n{text[middle + 1 :]}"


def _srt(words: Sequence[TimedWord], seconds: float) -> str:
    shown = _cues(words, ",", seconds, lambda speaker, text: _wrapped(_named(speaker, text)))
    return "\n".join(f"{number}\n{cue}" for number, cue in enumerate(shown, start=1))


def _vtt(words: Sequence[TimedWord], seconds: float) -> str:
    return "WEBVTT\n\n" + "\n".join(_cues(words, ".", seconds, _voiced))


def _cues(
    words: Sequence[TimedWord], point: str, seconds: float, spoken: Callable[[str | None, str], str]
) -> Iterator[str]:
    follows: dict[str | None, float] = {}
    texts = []
    for cue in reversed(cues(words)):
        start, end, speaker = cue[0].start, cue[-1].end, cue[0].speaker
        end = max(end, min(start + SHORTEST, follows.get(speaker, seconds), seconds))
        follows[speaker] = start
        text = spoken(speaker, " ".join(word.text for word in cue))
        texts.append(f"{clock(start, point)} --> {clock(end, point)}\n{text}\n")
    return reversed(texts)


def _named(speaker: str | None, text: str) -> str:
    return text if speaker is None else f"{speaker}: {text}"


def _voiced(speaker: str | None, text: str) -> str:
    """A WebVTT cue, with a voice span for the speaker. What would begin a tag is escaped."""
    import html  # whose table of entities nothing else needs

    text = html.escape(_wrapped(text), quote=False)
    return text if speaker is None else f"<v {html.escape(speaker, quote=False)}>{text}"


def clock(seconds: float, point: str) -> str:
    """Such as 00:01:02,345."""
    whole, thousandths = divmod(round(1000 * seconds), 1000)
    return f"{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}{point}{thousandths:03}"


def _json(words: Sequence[TimedWord], _: float) -> str:
    return json.dumps({"words": [word.document() for word in words]}, ensure_ascii=False, indent=1) + "\n"


_WRITERS: dict[str, Callable[[Sequence[TimedWord], float], str]] = {".srt": _srt, ".vtt": _vtt, ".json": _json}
