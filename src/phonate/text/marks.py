"""Which marks of punctuation a model has learnt, by how often its training texts have them.

A mark that they hardly have is a symbol that was hardly trained: what it does to the sound is accidental.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from phonate.text.phonemes import Word

KEY = "marks"
"""In what a checkpoint holds for inference: mark -> words of the training texts that it follows."""
START_KEY = "marks_of_start"
"""Beside it: the marks that the voice had learnt whose weights training started from."""
ENOUGH = 20
"""Words that a mark must follow to count as learnt,"""
ENOUGH_SHARE = 0.2
"""or, in small corpora, so many of each recording."""
_WEAKER = {"?": ".", "!": ".", ";": ",", ":": ",", "-": ",", ".": "", ",": ""}


def counted_marks(texts: Iterable[Sequence[Word]]) -> dict[str, int]:
    """How many words of `texts` each mark follows."""
    return dict(Counter(word.mark for words in texts for word in words if word.mark))


def learnt_marks(inference_metadata: Mapping[str, Any]) -> frozenset[str] | None:
    """The marks that a model has learnt; None where its checkpoint does not tell."""
    counts, recordings = inference_metadata.get(KEY), inference_metadata.get("recordings", 0)
    if counts is None:
        return None
    least = max(1.0, min(ENOUGH, ENOUGH_SHARE * recordings))
    own = frozenset(mark for mark, count in counts.items() if count >= least)
    return own.union(inference_metadata.get(START_KEY, ()))


def known_mark(word: Word, learnt: Collection[str] | None) -> str:
    """The mark after a word, or the next weaker one that was learnt; a comma for a parenthesis."""
    if learnt is None:
        return word.mark
    mark = word.mark or ("," if word.pause == "(" else "")
    while mark and mark not in learnt:
        mark = _WEAKER[mark]
    return mark
