"""Decoding of symbol probabilities to text, by an n-gram language model where wanted."""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from phonate.audio.decoding import FloatArray
from phonate.tasks.recognition.data import BLANK

START, END = -1, 0
"""Markers before the first and after the last symbol. END is the id of the blank, which texts do not contain."""
# ---------------------------------- An n-gram language model of symbols, counted in the training texts

_MOST = 300_000
"""Number of most frequent sequences kept."""

History = tuple[int, ...]


class SymbolModel:
    """Probabilities of the next symbol, or of the end, given the last `order - 1` symbols.

    Counts of all orders are interpolated with Witten-Bell weights, down to a uniform distribution (Chen and
    Goodman 1999, "An empirical study of smoothing techniques for language modeling", section 2.7).
    """

    def __init__(self, order: int, symbols: int, counts: Mapping[History, int]) -> None:
        """`symbols`: number of symbols, without END. `counts`: counts of sequences of up to `order` symbols."""
        self.order, self.symbols, self.counts = order, symbols, dict(counts)
        self._totals: dict[History, int] = defaultdict(int)
        self._kinds: dict[History, int] = defaultdict(int)
        for sequence, count in self.counts.items():
            self._totals[sequence[:-1]] += count
            self._kinds[sequence[:-1]] += 1
        self.probability = lru_cache(maxsize=1 << 18)(self._probability)
        """Probability of a symbol, or END, after a history: `probability(history, symbol)`."""

    @classmethod
    def of(cls, texts: Iterable[Sequence[int]], order: int, symbols: int) -> SymbolModel:
        """Train the model on `texts`, each a sequence of symbol ids."""
        counts: Counter[History] = Counter()
        for text in texts:
            whole = (START, *text, END)
            for end in range(2, len(whole) + 1):
                counts.update(whole[start:end] for start in range(max(0, end - order), end))
        return cls(order, symbols, dict(counts.most_common(_MOST)))

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> SymbolModel:
        """Read the model written by `document()`."""
        counts = {tuple(map(int, key.split())): count for key, count in document["counts"].items()}
        return cls(document["order"], document["symbols"], counts)

    def document(self) -> dict[str, Any]:
        """The model as plain JSON, for `read`."""
        counts = {" ".join(map(str, sequence)): count for sequence, count in self.counts.items()}
        return {"order": self.order, "symbols": self.symbols, "counts": counts}

    def begin(self) -> History:
        """The history before the first symbol."""
        return (START,)[: self.order - 1]

    def after(self, history: History, symbol: int) -> History:
        """The history after `symbol`."""
        return (*history, symbol)[-(self.order - 1) :] if self.order > 1 else ()

    def log_probability(self, text: Sequence[int]) -> float:
        """Of a whole text and its end."""
        history, total = self.begin(), 0.0
        for symbol in (*text, END):
            total += math.log(self.probability(history, symbol))
            history = self.after(history, symbol)
        return total

    def _probability(self, history: History, symbol: int) -> float:
        probability = 1.0 / (self.symbols + 1)
        for start in range(len(history), -1, -1):
            context = history[start:]
            kinds = self._kinds.get(context, 0)
            if not kinds:  # an unseen longer context has no influence
                break
            count = self.counts.get((*context, symbol), 0)
            probability = (count + kinds * probability) / (self._totals[context] + kinds)
        return probability


# --------- Decoding of symbol probabilities to text. Shapes: U frames, S symbols, where 0 is the blank

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
