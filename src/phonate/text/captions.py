"""Words with the times at which they are said, and captions of them: SubRip (.srt), WebVTT (.vtt), or JSON (.json)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from phonate.compute.system import write_output
from phonate.config.errors import InputError

LINE = 42
"""Characters of a caption, at most: what subtitling guidelines give a line."""
_LONG_PAUSE = 1.5
"""Seconds without speech after which a caption does not go on."""
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


def captions(words: Sequence[TimedWord], form: str) -> str:
    """`words` as the text of a file of the kind `form`: .srt, .vtt or .json. Raises InputError for another one."""
    if form not in _WRITERS:
        raise InputError(f"captions are written as {', '.join(_WRITERS)}, not as {form or 'a file without a suffix'}")
    return _WRITERS[form](words)


def write_captions(path: str | Path, words: Sequence[TimedWord]) -> None:
    """Write `words` in the form that the suffix of `path` names. Raises InputError."""
    try:
        text = captions(words, Path(path).suffix.lower())
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    write_output(path, text.encode())


def lines(words: Sequence[TimedWord]) -> Iterator[list[TimedWord]]:
    """The words of each caption: as many as fit of one speaker, ending early at the end of a sentence and before a long
    pause."""
    line: list[TimedWord] = []
    for word, following in zip(words, (*words[1:], None), strict=False):
        if line and (
            word.speaker != line[-1].speaker
            or word.start - line[-1].end > _LONG_PAUSE
            or len(" ".join(one.text for one in (*line, word))) > LINE
        ):
            yield line
            line = []
        line.append(word)
        goes_on = word.text.endswith("...") and following is not None and following.text[:1].islower()
        if word.text.endswith((".", "!", "?")) and not goes_on and not _INITIALS.fullmatch(word.text):
            yield line
            line = []
    if line:
        yield line


def _srt(words: Sequence[TimedWord]) -> str:
    return "\n".join(f"{number}\n{cue}" for number, cue in enumerate(_cues(words, ",", _named), start=1))


def _vtt(words: Sequence[TimedWord]) -> str:
    return "WEBVTT\n\n" + "\n".join(_cues(words, ".", _voiced))


def _cues(words: Sequence[TimedWord], point: str, spoken: Callable[[str | None, str], str]) -> Iterator[str]:
    for line in lines(words):
        times = f"{_clock(line[0].start, point)} --> {_clock(line[-1].end, point)}"
        yield f"{times}\n{spoken(line[0].speaker, ' '.join(word.text for word in line))}\n"


def _named(speaker: str | None, text: str) -> str:
    return text if speaker is None else f"{speaker}: {text}"


def _voiced(speaker: str | None, text: str) -> str:
    """A WebVTT cue, with a voice span for the speaker. What would begin a tag is escaped."""
    import html  # whose table of entities nothing else needs

    text = html.escape(text, quote=False)
    return text if speaker is None else f"<v {html.escape(speaker, quote=False)}>{text}"


def _clock(seconds: float, point: str) -> str:
    """Such as 00:01:02,345."""
    whole, thousandths = divmod(round(1000 * seconds), 1000)
    return f"{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}{point}{thousandths:03}"


def _json(words: Sequence[TimedWord]) -> str:
    return json.dumps({"words": [word.document() for word in words]}, ensure_ascii=False, indent=1) + "\n"


_WRITERS: dict[str, Callable[[Sequence[TimedWord]], str]] = {".srt": _srt, ".vtt": _vtt, ".json": _json}
