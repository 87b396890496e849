"""How the pitch of questions ends, by rules, for voices that did not learn it.

- **Yes/no questions** rise from their last accented syllable to their end (L* H-H% of Pierrehumbert and Hirschberg
  1990, "The meaning of intonational contours in the interpretation of discourse"; the usual contour in the corpus of
  Hedberg, Sosa and Görgülü 2017, "The meaning of intonation in yes-no questions in American English"). Questions in
  the form of a statement ("You saw him?") rise too: nothing else tells that they are questions.
- **Wh-questions** fall as statements do (H* L-L%, the usual one by Hedberg, Sosa, Görgülü and Mameni 2010, "The prosody
  and meaning of wh-questions in American English"; German likewise, Grice and Baumann 2002, "Deutsche Intonation und
  GToBI").
- **Alternatives** ("Tea or coffee?") rise before "or", if less, and fall at the end: it is the fall that tells them
  from yes/no questions (Pruitt and Roelofsen 2013, "The interpretation of prosody in disjunctive questions"). A text
  does not say which is meant; "or something" makes it a yes/no question.
- **Tags** ("isn't it?") fall: those that ask for agreement do, those that ask for information rise (Quirk et al. 1985,
  "A comprehensive grammar of the English language", 11.8), and a text does not say which one it is.

The words that tell these apart are data of the language (`phonate.text.language`). Shapes: L tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from phonate.text.language import Questions
from phonate.text.phonemes import Word

ALTERNATIVE = 0.5
"""Rise before "or", as a share of that of a yes/no question."""
_ENDS = frozenset(".!;:")
_CLAUSE_ENDS = frozenset(",-")
_VOICELESS = frozenset(["P", "T", "K", "F", "TH", "S", "SH", "HH", "CH", *"ptkfθsʃçxχhħqc"])


def rises(words: Sequence[Word], questions: Questions) -> NDArray[np.float32] | None:
    """Semitones at the beginning and the end of each token of a sentence (L, 2), tokens being those of
    `Inventory.tokens`; None where nothing rises."""
    first_W = np.cumsum([1, *(len(word.phones) + 1 for word in words)])  # the first token of each word
    rises_L2 = np.zeros((first_W[-1], 2), dtype=np.float32)
    for begin, end in _questions(words):
        for start, last, share in _rising(words[begin:end], questions):
            accented, final = begin + start, begin + last
            token = int(first_W[accented]) + _stressed(words[accented].phones)
            stop = int(first_W[final]) + _voiced(words[final].phones)
            steps = np.linspace(0.0, share * questions.rise, max(stop - token, 1) + 1)
            stop = token + len(steps) - 1
            rises_L2[token:stop] = np.stack([steps[:-1], steps[1:]], axis=1)
            if final + 1 == end:
                rises_L2[stop : first_W[end]] = steps[-1]  # the last phone dies away in the mark
    return rises_L2 if rises_L2.any() else None


def _questions(words: Sequence[Word]) -> Iterator[tuple[int, int]]:
    """First word of each question, and the one behind its last."""
    begin = 0
    for number, word in enumerate(words, start=1):
        if word.mark == "?":
            yield begin, number
        if word.mark == "?" or word.mark in _ENDS:
            begin = number


def _rising(words: Sequence[Word], questions: Questions) -> Iterator[tuple[int, int, float]]:
    """Parts of a question that rise: the accented word, the last one, and the share of the rise."""
    texts = [word.text.lower().replace("’", "'") for word in words]
    clauses = list(_clauses(words, texts))
    if len(clauses) > 1 and any(re.fullmatch(tag, " ".join(clauses[-1])) for tag in questions.tags):
        return
    if _falls(clauses, questions):
        return
    between = _alternative(texts, questions)
    end = len(words) if between is None else between
    yield _accented(texts[:end], questions), end - 1, 1.0 if between is None else ALTERNATIVE


def _clauses(words: Sequence[Word], texts: Sequence[str]) -> Iterator[list[str]]:
    clause: list[str] = []
    for word, text in zip(words, texts, strict=True):
        clause.append(text)
        if word.pause or word.mark in _CLAUSE_ENDS:
            yield clause
            clause = []
    if clause:
        yield clause


def _falls(clauses: Sequence[Sequence[str]], questions: Questions) -> bool:
    """Whether it is a wh-question: the last clause that begins as a question does begins with such a word."""
    for clause in reversed(clauses):
        opening = next((word for word in clause if word not in questions.leading), None)
        if opening in questions.auxiliaries:
            return False
        if opening in questions.falling or any(word in questions.falling for word in clause[:1]):
            return True
    return False


def _alternative(texts: Sequence[str], questions: Questions) -> int | None:
    """The word between the last two alternatives; None where there are none."""
    for number in range(len(texts) - 2, 0, -1):
        if texts[number] in questions.alternatives:
            return None if texts[number + 1] in questions.open_ends else number
    return None


def _accented(texts: Sequence[str], questions: Questions) -> int:
    """The last word that is likely to be accented."""
    return next((n for n in range(len(texts) - 1, -1, -1) if texts[n] not in questions.unaccented), len(texts) - 1)


def _voiced(phones: Sequence[str]) -> int:
    """Phones of a word up to its last voiced one: the pitch of others is not heard."""
    return next((n for n in range(len(phones), 0, -1) if phones[n - 1] not in _VOICELESS), len(phones))


def _stressed(phones: Sequence[str]) -> int:
    """The last stressed phone of a word: a vowel with the 1 of CMUdict, or IPA's mark before one; else the first."""
    for number in range(len(phones) - 1, -1, -1):
        if phones[number] == "ˈ" or phones[number].endswith("1"):
            return number
    return 0
