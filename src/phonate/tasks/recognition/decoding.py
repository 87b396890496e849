"""Decoding of symbol probabilities to text. Shapes: U frames, S symbols, where 0 is the blank."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from weakref import WeakValueDictionary

import numpy as np

from phonate.audio.decoding import FloatArray
from phonate.tasks.recognition.language import END, History, SymbolModel
from phonate.tasks.recognition.symbols import BLANK

_NEVER = -math.inf
LEAST = math.log(1e-4)
"""Symbols with a lower log probability at a frame are not tried."""


@dataclass(frozen=True)
class LanguageModelFusion:
    """Scores added to the network's probabilities in the search."""

    model: SymbolModel | None = None
    weight: float = 0.0
    """Weight of the language model's log probabilities."""
    bonus: float = 0.0
    """Bonus for each symbol."""

    def of(self, history: History, symbol: int) -> float:
        """Score of a symbol, or END, after a history."""
        said = 0.0 if self.model is None else self.weight * math.log(self.model.probability(history, symbol))
        return said + (self.bonus if symbol != END else 0.0)


class _Prefix:
    """A prefix of a text: its last symbol, and the preceding prefix."""

    __slots__ = ("__weakref__", "before", "history", "number", "symbol", "wished")

    def __init__(self, number: int, before: _Prefix | None, symbol: int, history: History, wished: float) -> None:
        self.number, self.before, self.symbol = number, before, symbol
        self.history, self.wished = history, wished

    def ids(self) -> list[int]:
        found: list[int] = []
        prefix = self
        while prefix.before is not None:
            found.append(prefix.symbol)
            prefix = prefix.before
        return found[::-1]


class _Prefixes:
    """Each prefix exists once, as long as the search or a longer prefix refers to it."""

    def __init__(self, fusion: LanguageModelFusion) -> None:
        self.fusion = fusion
        self.root = _Prefix(0, None, BLANK, fusion.model.begin() if fusion.model else (), 0.0)
        self._known: WeakValueDictionary[tuple[int, int], _Prefix] = WeakValueDictionary()
        self._count = 0

    def longer(self, before: _Prefix, symbol: int) -> _Prefix:
        found = self._known.get((before.number, symbol))
        if found is None:
            self._count += 1
            model = self.fusion.model
            history = model.after(before.history, symbol) if model else ()
            wished = before.wished + self.fusion.of(before.history, symbol)
            found = _Prefix(self._count, before, symbol, history, wished)
            self._known[before.number, symbol] = found
        return found


def greedy(log_probs_US: FloatArray) -> list[int]:
    """The likeliest symbol of each frame (U, S), repetitions merged and blanks removed: "best path decoding" (Graves
    et al. 2006, section 3.2); returns symbol ids."""
    best_U = log_probs_US.argmax(axis=1)
    first_U = np.flatnonzero(np.diff(best_U, prepend=-1))
    return [int(symbol) for symbol in best_U[first_U] if symbol != BLANK]


def beam_search(
    log_probs_US: FloatArray, beam: int, fusion: LanguageModelFusion | None = None, least: float = LEAST
) -> list[int]:
    """The text with the highest score: log probability over all its alignments plus `fusion`.

    Args:
        log_probs_US: Log probabilities (U, S) of the symbols at each frame.
        beam: Number of prefixes kept at each frame.
        fusion: Language model and bonus, if any.
        least: Symbols with a lower log probability are not tried.

    Returns:
        Symbol ids.

    Prefix beam search (Hannun et al. 2014, "First-pass large vocabulary continuous speech recognition using
    bi-directional recurrent DNNs", algorithm 1), with a language model of symbols instead of words.
    The `beam` best prefixes are kept at each frame.
    """
    fusion = fusion or LanguageModelFusion()
    prefixes = _Prefixes(fusion)
    # Log probabilities of a prefix whose last frame was a blank, and of one whose last frame was its last symbol.
    kept: dict[_Prefix, tuple[float, float]] = {prefixes.root: (0.0, _NEVER)}
    for row_S in np.asarray(log_probs_US, dtype=np.float64):
        tried = np.flatnonzero(row_S >= min(least, float(row_S.max())))
        kept = _best(_step(prefixes, kept, list(zip(tried.tolist(), row_S[tried].tolist(), strict=True))), beam)
    ends = {prefix: _sum(*logs) + prefix.wished + fusion.of(prefix.history, END) for prefix, logs in kept.items()}
    return max(ends, key=ends.__getitem__).ids()


def _step(
    prefixes: _Prefixes, kept: dict[_Prefix, tuple[float, float]], tried: list[tuple[int, float]]
) -> dict[_Prefix, tuple[float, float]]:
    """All prefixes after one more frame."""
    found: dict[_Prefix, tuple[float, float]] = {}

    def add(prefix: _Prefix, blank: float, symbol: float) -> None:
        before = found.get(prefix, (_NEVER, _NEVER))
        found[prefix] = _sum(before[0], blank), _sum(before[1], symbol)

    for prefix, (blank, last) in kept.items():
        either = _sum(blank, last)
        for symbol, log in tried:
            if symbol == BLANK:
                add(prefix, either + log, _NEVER)
            elif symbol == prefix.symbol:
                add(prefix, _NEVER, last + log)  # the same symbol continues
                add(prefixes.longer(prefix, symbol), _NEVER, blank + log)  # repeated after a blank
            else:
                add(prefixes.longer(prefix, symbol), _NEVER, either + log)
    return found


def _best(found: dict[_Prefix, tuple[float, float]], beam: int) -> dict[_Prefix, tuple[float, float]]:
    best = heapq.nlargest(beam, found, key=lambda prefix: _sum(*found[prefix]) + prefix.wished)
    return {prefix: found[prefix] for prefix in best}


def _sum(one: float, two: float) -> float:
    """Log of the sum of two probabilities given as logs."""
    high, low = (one, two) if one > two else (two, one)
    return high if low == _NEVER else high + math.log1p(math.exp(low - high))
