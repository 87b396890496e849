"""Answers to held-out prompts, compared with their reference responses."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phonate.data.dialogues.dialogue import Dialogue
from phonate.evaluation.answers import AnswerScores
from phonate.tasks.language.dataset import TokenSequence
from phonate.tasks.language.inference import Generator

logger = logging.getLogger("phonate")

MAX_QUESTIONS = 64
"""Prompts that are answered, at most."""
MARGIN = 16
"""Tokens that an answer may have more than the longest reference response."""
FREQUENT = "most frequent response"
LEGEND = (
    " bleu: n-gram precision (up to 4 words) over all answers; rouge1, rouge2, rougeL: F measure of common words, word "
    "pairs and the longest common subsequence, mean over answers; in percent, higher is better. Answers are decoded "
    f"greedily. {FREQUENT}: the response that occurs most often in the training texts, given to every prompt."
)


@dataclass(frozen=True)
class Questions:
    """Prompts with their reference responses."""

    dialogues: Sequence[Dialogue]
    max_tokens: int
    """Of an answer."""
    scores: AnswerScores

    @classmethod
    def select(
        cls, dialogues: Sequence[Dialogue], sequences: Sequence[TokenSequence], scores: AnswerScores
    ) -> Questions | None:
        """Up to `MAX_QUESTIONS` of the conversations among `dialogues` that `sequences` were made of, evenly spread.
        None if there is none."""
        lengths = {one.id: _response_length(one.tokens.learnt) for one in sequences}
        usable = [one for one in dialogues if one.prompt and one.id in lengths]
        count = min(MAX_QUESTIONS, len(usable))
        if not count:
            return None
        selected = [usable[number * len(usable) // count] for number in range(count)]
        return cls(selected, max(lengths[one.id] for one in selected) + MARGIN, scores)

    def ask(self, name: str, generator: Generator) -> list[str]:
        """The answers of the system `name`."""
        logger.info("evaluating: %s (%d answers of up to %d tokens)", name, len(self.dialogues), self.max_tokens)
        contexts = [generator.tokenizer.encode_context(one) for one in self.dialogues]
        return generator.answers(contexts, self.max_tokens)

    def figures(self, answers: Sequence[str]) -> dict[str, float]:
        """Scores over all `answers`."""
        return self.scores.of_all([one.response.text for one in self.dialogues], answers)

    def items(self, answers: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Each answer with its prompt, its reference and its scores."""
        return {
            one.id: {
                "prompt": one.prompt[-1].text,
                "response": one.response.text,
                "answer": answer,
                **self.scores.of_one(one.response.text, answer),
            }
            for one, answer in zip(self.dialogues, answers, strict=True)
        }

    def notes(self) -> dict[str, Any]:
        """Number and length of the answers, and the version of BLEU, once it has been computed."""
        return {
            "answers": len(self.dialogues),
            "answer_tokens": f"at most {self.max_tokens}",
            "bleu": self.scores.signature,
        }


def _response_length(learnt: NDArray[np.bool_]) -> int:
    """Tokens of the last learnt turn, with which a conversation's tokens end."""
    context = np.flatnonzero(~learnt)
    return len(learnt) - (int(context[-1]) + 1 if len(context) else 0)


def most_frequent_response(dialogues: Sequence[Dialogue]) -> tuple[str, int] | None:
    """The response that occurs most often, the first of several, and how often; None if there are only texts."""
    found = Counter(one.response.text for one in dialogues if one.prompt).most_common(1)
    return found[0] if found else None
