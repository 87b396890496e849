"""Splitting long texts into sentences."""

from __future__ import annotations

import functools
import itertools
import re
from bisect import bisect_right
from collections.abc import Sequence
from typing import TypeVar

from phonate.config.errors import InputError
from phonate.text.language import Language, language

WordT = TypeVar("WordT")

_END = re.compile(
    r"([.!?…؟।॥۔։።။។]+[\"'”’»)\]]*)\s+(?!\s|KG\b)"
    r"|(?<=[。！？｡])(?![。！？｡」』）】”’])"
    r"|(?<=[。！？｡][」』）】”’])(?![」』）】”’、。，と])"
    r"|\n\s*\n\s*|\n(?=[ \t]*(?:[-*•–]|\d{1,2}[.)])[ \t])"
)
"""A bracket or quote that closes stays with its sentence. The last is the end of a line in front of an item of a list.
"GmbH & Co. KG" is one name."""
_LAST_WORD = re.compile(r"([^\s(\"'“‘]+?)\.[\"'”’»)\]]*$")
_NUMBER = re.compile(r"[0-9]|(?:[IVXLC]{2,}|[B-HJ-Z])(?=[\s.,;:)]|$)")
"""Also in Roman numerals, or a letter that is no word."""
_WORD = re.compile(r"[^\W\d_]+")
_ORDINAL = re.compile(r"(?:[0-9]{1,2}\.[-–])?[0-9]{1,2}")
"""Also a range of them, "3.–5."."""
_FOLLOWED = re.compile(r"\s*\S+\s|[^\W\x00-\u02ff]")
"""A whole word, or a letter of a script that sets no spaces."""
PARAGRAPHS = re.compile(r"\n\s*\n")
_CLAUSE = re.compile(r"[,;:،؛][\"'”’)]*\s|\s[-–—]+\s|[，；：、—]")


def sentences(text: str, longest: int = 300, code: str = "en-us") -> list[str]:
    """The sentences of `text`; those of more than `longest` characters are cut: at clauses if possible, else in front
    of conjunctions, else at spaces.

    `code` names the language, whose abbreviations end no sentence. Nothing but white space between the pieces is lost,
    and U+FEFF, which is no space here.
    Raises InputError for `longest` below 1.
    """
    if longest < 1:
        raise InputError(f"the longest piece must have 1 character or more, not {longest}")
    text = text.replace("\ufeff", "")
    data, pieces, begin = language(code), [], 0
    for match in _ends(data.ends).finditer(text):
        if match.start() >= begin and not _continues(text, match, data):
            pieces.append(text[begin : match.end()])
            begin = match.end()
    pieces.append(text[begin:])
    return [part for piece in pieces if (whole := piece.strip()) for part in _parts(whole, longest, data)]


@functools.cache
def _ends(own: str) -> re.Pattern[str]:
    """Where sentences end, also at the signs `own`."""
    return re.compile(_END.pattern.replace("[.!?…", f"[{own}.!?…", 1)) if own else _END


class SentenceStream:
    """The sentences of a text that comes in pieces, each as soon as it is certain where it ends: with the first word of
    the next one."""

    def __init__(self, longest: int = 300, code: str = "en-us") -> None:
        """As for `sentences`."""
        self._longest, self._code = longest, code
        self._rest = ""

    def add(self, piece: str) -> list[str]:
        """The sentences that the next piece completes. A paragraph's end stays with its last sentence."""
        ready: list[str] = []
        *whole, last = PARAGRAPHS.split(self._rest + piece)
        for paragraph in whole:
            *before, end = sentences(paragraph, self._longest, self._code) or [""]
            ready += [*before, f"{end}\n\n"] if end else []
        self._rest = last
        *before, end = sentences(last, self._longest, self._code) or [""]
        if before and _FOLLOWED.match(end + last[len(last.rstrip()) :]):
            ready += before
            self._rest = end + last[len(last.rstrip()) :]
        return ready

    def finish(self) -> list[str]:
        """What is left when no more comes."""
        rest, self._rest = self._rest, ""
        return sentences(rest, self._longest, self._code)


def _continues(text: str, match: re.Match[str], data: Language) -> bool:
    """Whether the sentence continues after an apparent end."""
    if match[1] is None:
        return False
    after = text[match.end() : match.end() + 1]
    if after.islower() or "\n\n" in match[0]:
        return after.islower() and "\n\n" not in match[0]
    last = _LAST_WORD.search(text[max(0, match.start() - 20) : match.end()].rstrip())
    if last is None or set(match[1]) & set("!?…؟।॥۔։።။។" + data.ends) or ".." in match[1]:
        return False
    word = last[1]
    if word.lower() in data.abbreviations:
        return True
    if f"{word.lower()}#" in data.abbreviations and _NUMBER.match(text, match.end()):
        return True
    initial = len(word) == 1 and word.isupper() and word != "I"
    if initial or re.fullmatch(r"(?:[A-Z]\.)+[A-Z]", word):
        return not _likely_end(text, match, data)
    return data.ordinals and _ORDINAL.fullmatch(word) is not None


def _likely_end(text: str, match: re.Match[str], data: Language) -> bool:
    """Whether a word that often starts a sentence follows "Plan B.", "U.S." or "P.M."; an initial is none."""
    following = _WORD.match(text, match.end())
    return (
        following is not None
        and following[0].lower() in data.starters
        and text[following.end() : following.end() + 1] != "."
    )


def cut_words(words: list[WordT], sizes: Sequence[int], marked: Sequence[bool], longest: int) -> list[list[WordT]]:
    """Words, of `sizes`, in pieces that are no larger than `longest`: cut behind the last that is `marked`, or else
    behind the last one."""
    pieces: list[list[WordT]] = []
    begin = 0
    while begin < len(words):
        ends = list(itertools.accumulate(sizes[begin:]))
        most = begin + max(1, bisect_right(ends, longest))
        places = (place for place in range(most, begin, -1) if marked[place - 1])
        at = most if most == len(words) else next(places, most)
        pieces.append(words[begin:at])
        begin = at
    return pieces


def _parts(sentence: str, longest: int, data: Language) -> list[str]:
    """`sentence` in parts of at most `longest` characters, each cut as late as possible."""
    parts: list[str] = []
    while len(sentence) > longest:
        near = sentence[: longest + 1]
        clauses = [match.end() for match in _CLAUSE.finditer(near)]
        spaces = [match.end() for match in re.finditer(r"\s", near)]
        joined = [at for at in spaces if (word := _WORD.match(near, at)) and word[0].lower() in data.conjunctions]
        late = [[at for at in places if at >= longest // 3] for places in (clauses, joined)]
        at = (late[0] or late[1] or spaces or [longest])[-1]
        parts.append(sentence[:at].strip())
        sentence = sentence[at:].strip()
    return [part for part in [*parts, sentence] if part]
