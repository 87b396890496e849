"""How a model answers prompts that it did not learn, against the responses that were wanted."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from phonate.evaluation.answers import AnswerScores
from phonate.tasks.language.corpus import Piece
from phonate.tasks.language.documents import Document
from phonate.tasks.language.inference import Generator

logger = logging.getLogger("phonate")

ASKED = 64
"""Prompts that are answered, at most."""
MARGIN = 16
"""Tokens that an answer may have more than the longest response."""
FREQUENT = "most frequent response"
LEGEND = (
    " bleu: words and runs of up to four words that answers have in common with the responses wanted, over all "
    "answers; rouge1, rouge2, rougeL: F measure of common words, of pairs of words and of the longest common "
    "subsequence, mean of the answers; in percent. Answers take the likeliest token each time. "
    f"{FREQUENT}: the one that training had most often, whatever is asked."
)


@dataclass(frozen=True)
class Questions:
    """Prompts with the responses that are wanted."""

    documents: Sequence[Document]
    max_tokens: int
    """Of an answer."""
    scores: AnswerScores

    @classmethod
    def among(cls, documents: Sequence[Document], pieces: Sequence[Piece], scores: AnswerScores) -> Questions | None:
        """Up to `ASKED` of the pairs of `documents` that `pieces` were made of, evenly spread. None: there is none."""
        kept = {piece.id: int(piece.tokens.scored.sum()) for piece in pieces}
        pairs = [one for one in documents if one.prompt is not None and one.id in kept]
        count = min(ASKED, len(pairs))
        if not count:
            return None
        asked = [pairs[number * len(pairs) // count] for number in range(count)]
        return cls(asked, max(kept[one.id] for one in asked) + MARGIN, scores)

    def put_to(self, name: str, generator: Generator) -> list[str]:
        """What the system `name` answers."""
        logger.info("judging: %s (%d answers of up to %d tokens)", name, len(self.documents), self.max_tokens)
        return generator.answers([str(one.prompt) for one in self.documents], self.max_tokens)

    def judged(self, answers: Sequence[str]) -> dict[str, float]:
        """Figures of all `answers`."""
        return self.scores.of_all([one.response for one in self.documents], answers)

    def items(self, answers: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Each answer beside what was asked and wanted."""
        return {
            one.id: {
                "prompt": one.prompt,
                "response": one.response,
                "answer": answer,
                **self.scores.of_one(one.response, answer),
            }
            for one, answer in zip(self.documents, answers, strict=True)
        }

    def notes(self) -> dict[str, Any]:
        """How much was asked, and by which BLEU it was judged, once it was."""
        return {
            "answers": len(self.documents),
            "answer_tokens": f"at most {self.max_tokens}",
            "bleu": self.scores.signature,
        }


def most_frequent_response(documents: Sequence[Document]) -> tuple[str, int] | None:
    """The response that most prompts of `documents` have, the first of several, and how many; None without prompts."""
    found = Counter(one.response for one in documents if one.prompt is not None).most_common(1)
    return found[0] if found else None
