"""An n-gram language model of symbols, counted in the training texts."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

START, END = -1, 0
"""Markers before the first and after the last symbol. END is the id of the blank, which texts do not contain."""
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
