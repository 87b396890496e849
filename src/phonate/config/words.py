"""Numbers of things, and times, as people write them."""

from __future__ import annotations

import re

_FIRST = {"are": "is", "have": "has", "come": "comes", "hold": "holds"}
_LATER = {"and are": "and is", "their texts": "its text", "their": "its"}
_OF_SEVERAL = re.compile(rf"^({'|'.join(_FIRST)})\b|\b({'|'.join(_LATER)})\b")


def number_of(count: int, noun: str) -> str:
    """`1 row`, `2 rows`, `1,200 rows`."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def that_many(count: int, noun: str, predicate: str) -> str:
    """`2 rows are too long`, `1 row is too long`, by a `predicate` that is written of several."""
    if count == 1:
        predicate = _OF_SEVERAL.sub(lambda match: (_FIRST | _LATER)[match[0]], predicate)
    return f"{number_of(count, noun)} {predicate}"


def duration(seconds: float) -> str:
    """`12 s`, `2.5 min`, `1.6 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h"
