"""Quality checks of a clip and its text. Each finding has a score: 1 or more is a warning, and clips with higher scores
are more likely to be unusable."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from phonate.data.manifests.rows import Checked, Problem

CLIPPED_SHARE = 0.001
LONGEST_EDGE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 2.0
NOISE_DB = -15.0
SLOWEST, FASTEST = 4.0, 35.0
"""Characters per second; speech is neither slower nor faster."""
DEVIATIONS = 5.0
"""Largest deviation from the corpus's median rate, in robust standard deviations of the log rate."""
_LEAST_DEVIATION = 0.08  # similar sentences hardly deviate: without a minimum some would be flagged
_FEWEST = 10  # rates needed for a meaningful median
_SHORT = 20  # characters; for shorter texts the pauses around them dominate the duration
_FORMATTING = {"\u200c", "\u200d"}  # (non-)joiners, needed in Persian, Hindi and others
_MOST_SCORE = 9.9


@dataclass(frozen=True)
class Finding:
    """One problem of a clip."""

    reason: str
    detail: str
    score: float


@dataclass(frozen=True)
class Rates:
    """Speaking rates of a corpus: median and spread of the log of characters per second."""

    median: float
    deviation: float

    @classmethod
    def of(cls, clips: Iterable[Checked]) -> Rates | None:
        """The rates of the clips with text; None if there are fewer than 10."""
        found = [rate for one in clips if characters(one) >= _SHORT and (rate := rate_of(one)) > 0.0]
        if len(found) < _FEWEST:
            return None
        logs = np.log(found)
        middle = float(np.median(logs))
        return cls(middle, max(_LEAST_DEVIATION, 1.4826 * float(np.median(np.abs(logs - middle)))))


def has_words(text: str | None) -> bool:
    """Whether a text contains a letter or a digit."""
    return any(letter.isalnum() for letter in text or "")


def characters(one: Checked) -> int:
    """Characters of a clip's text; a run of spaces counts as one."""
    return len(" ".join((one.row.text or "").split()))


def rate_of(one: Checked) -> float:
    """Characters per second, without leading and trailing silence."""
    return characters(one) / max(0.1, one.seconds - one.quality.leading_silence - one.quality.trailing_silence)


def findings(one: Checked, rates: Rates | None) -> list[Finding]:
    """All findings for a clip, including its speaking rate relative to the corpus.

    Pauses and rates are not judged for recordings of several segments, which may be conversations."""
    found = [*_sound(one), *_signs(one.row.text or "")]
    if len(one.row.segments) > 1:
        return [finding for finding in found if finding.reason != "long silence"]
    if has_words(one.row.text):
        found.append(_rate(one, rates))
    return found


def speech_warnings(usable: Sequence[Checked]) -> Iterator[Problem]:
    """A warning for each finding with a score of at least 1, and for missing and duplicate texts."""
    rates = Rates.of(usable)
    any_text = any(has_words(one.row.text) for one in usable)
    first: dict[str, Checked] = {}
    for one in usable:
        row = one.row
        for finding in findings(one, rates):
            if finding.score >= 1.0:
                yield Problem(row.id, row.place, finding.reason, finding.detail)
        if not has_words(row.text):
            if any_text:
                yield Problem(row.id, row.place, "no text", "other recordings have a text")
            continue
        earlier = first.setdefault(" ".join((row.text or "").split()).lower(), one)
        # Several speakers may well read the same sentence.
        if earlier is not one and earlier.row.speaker == row.speaker and earlier.content != one.content:
            yield Problem(row.id, row.place, "duplicate text", f"same text as {earlier.row.id!r}, but different audio")


def _sound(one: Checked) -> Iterator[Finding]:
    quality = one.quality
    clipped = f"{100 * quality.clipping_share:.1f} % of the samples are clipped"
    yield _finding("clipping", clipped, quality.clipping_share / CLIPPED_SHARE, quality.clipping_share > CLIPPED_SHARE)
    for where, seconds, most in (
        ("before the first sound", quality.leading_silence, LONGEST_EDGE_SECONDS),
        ("after the last sound", quality.trailing_silence, LONGEST_EDGE_SECONDS),
        ("in the middle", quality.longest_pause, LONGEST_PAUSE_SECONDS),
    ):
        yield _finding("long silence", f"{seconds:.1f} s of silence {where}", seconds / most, seconds > most)
    noise = f"the quietest parts are only {-quality.noise_db:.0f} dB below the loudest: noise or music"
    # 1 at the limit, and one more for each 3 dB
    yield _finding("noise", noise, 1.0 + (quality.noise_db - NOISE_DB) / 3.0, quality.noise_db > NOISE_DB)


def _signs(text: str) -> Iterator[Finding]:
    odd = sorted({letter for letter in text if _is_odd(letter)})
    if odd:
        named = ", ".join(f"U+{ord(letter):04X}" for letter in odd[:5])
        yield Finding("odd characters", f"the text contains unprintable characters: {named}", 1.0)


def _is_odd(letter: str) -> bool:
    if letter in _FORMATTING:
        return False
    # U+FFFD stands where another program could not decode a character.
    return letter == "\ufffd" or unicodedata.category(letter) in {"Cc", "Cf", "Co", "Cn", "Zl", "Zp"}


def _rate(one: Checked, rates: Rates | None) -> Finding:
    length, rate = characters(one), rate_of(one)
    short = length < _SHORT
    # Allow a second for the pauses around a short text.
    slowest = length / max(0.1, one.seconds - 1.0) if short else rate
    detail = f"{rate:.1f} characters a second"
    score = 0.0 if rates is None or short else abs(np.log(rate) - rates.median) / rates.deviation / DEVIATIONS
    if rates is not None and not short:
        detail += f", the corpus has {np.exp(rates.median):.1f}"
    slow = slowest < SLOWEST or (score > 1.0 and rates is not None and np.log(rate) < rates.median)
    fast = rate > FASTEST or (score > 1.0 and not slow)
    beyond = max(SLOWEST / max(slowest, 0.01), rate / FASTEST)
    reason = "too slow for its text" if slow else "too fast for its text" if fast else "speaking rate"
    return _finding(reason, detail, max(float(score), beyond if slow or fast else 0.0), slow or fast)


def _finding(reason: str, detail: str, score: float, warned: bool) -> Finding:
    """A finding with a score of at least 1 if `warned`, otherwise below 1."""
    bounded = min(max(score, 0.0), _MOST_SCORE)
    return Finding(reason, detail, max(1.0, bounded) if warned else min(bounded, 0.99))
