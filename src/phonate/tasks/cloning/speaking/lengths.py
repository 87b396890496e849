"""How long a text may take to say, and long texts in parts that the model can say in one go."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterator

from phonate.config.errors import InputError
from phonate.text.sentences import sentences

MAX_CHARACTERS = 5000
"""Of a text."""
_WORD_SECONDS = 60.0 / 130.0
_MARGIN = 1.2
"""Slow speakers take longer; a model that ends in time is not affected."""
_FEWEST, _MOST = 48, 384
"""Frames of a part: limits below and above. At 25 frames per second, 2 and 15 seconds."""
_PART_CHARACTERS = 160


def check_text(text: str) -> None:
    """Raise InputError for a text without a letter or digit, or one that is too long."""
    if not any(map(str.isalnum, text)):
        raise InputError("the text is empty" if not text.strip() else f"nothing of this text can be spoken: {text!r}")
    if len(text) > MAX_CHARACTERS:
        raise InputError(f"the text has {len(text)} characters, and at most {MAX_CHARACTERS} are allowed; split it")


def frame_limit(text: str, frame_rate: float) -> int:
    """Frames that saying `text` takes at most, 130 words per minute and a fifth in reserve; from 48 to 384."""
    return min(_MOST, max(_FEWEST, _frames(text, frame_rate)))


def parts(text: str, frame_rate: float) -> list[str]:
    """`text` in parts that fit into the limit of frames, cut between sentences, or clauses of long ones."""
    found: list[str] = []
    for piece in _fitting(text, frame_rate, _PART_CHARACTERS):
        if not any(map(str.isalnum, piece)):
            continue
        longer = f"{found[-1]} {piece}" if found else piece
        if found and _frames(longer, frame_rate) <= _MOST:
            found[-1] = longer
        else:
            found.append(piece)
    return found


def _fitting(text: str, frame_rate: float, characters: int) -> Iterator[str]:
    """Sentences, those of more than `characters` cut, or of fewer if their words are many and short."""
    for piece in sentences(text, characters):
        if _frames(piece, frame_rate) > _MOST and characters > 1:
            yield from _fitting(piece, frame_rate, characters // 2)
        else:
            yield piece


def _frames(text: str, frame_rate: float) -> int:
    return math.ceil(_words(text) * _WORD_SECONDS * _MARGIN * frame_rate)


def _words(text: str) -> float:
    """Words; a digit may be read as one, and two characters of scripts without spaces take about as long."""
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return len(text.split()) + sum(map(str.isdigit, text)) + wide / 2
