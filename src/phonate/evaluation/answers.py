"""Comparison of answers with reference responses: common words and n-grams, in percent.

BLEU (Papineni et al. 2002, https://aclanthology.org/P02-1040) measures how much of the answers occurs in the
responses. ROUGE (Lin 2004, https://aclanthology.org/W04-1013) also measures how much of the responses occurs in the
answers. Neither considers meaning: a correct answer in other words scores low.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from phonate.config.packages import optional_package

_ROUGE = ("rouge1", "rouge2", "rougeL")


class Words:
    """Tokenizer for ROUGE: lower-case letters and digits of any script.

    For English, the words are those of rouge-score's own tokenizer, which treats all letters except a to z as spaces.
    """

    def tokenize(self, text: str) -> list[str]:
        """The words of `text`."""
        letters = unicodedata.normalize("NFC", text.lower())
        return "".join(one if unicodedata.category(one)[0] in "LMN" else " " for one in letters).split()


class AnswerScores:
    """BLEU by sacrebleu (Post 2018, https://arxiv.org/abs/1804.08771) and ROUGE by rouge-score, without stemming."""

    def __init__(self) -> None:
        """Raises MissingPackageError if sacrebleu or rouge-score is not installed."""
        purpose = "comparing answers with responses"
        bleu = optional_package("sacrebleu", purpose).BLEU
        # force: no warning about full stops separated by a space, as in some corpora
        self._bleu, self._bleu_of_one = bleu(force=True), bleu(force=True, effective_order=True)
        optional_package("rouge_score", purpose)
        scorer = optional_package("rouge_score.rouge_scorer", purpose)
        self._rouge = scorer.RougeScorer(_ROUGE, tokenizer=Words())

    @property
    def signature(self) -> str:
        """sacrebleu's signature of the latest corpus BLEU, if any."""
        return str(self._bleu.get_signature())

    def of_one(self, response: str, answer: str) -> dict[str, float]:
        """`bleu` of an answer (with n-grams of up to four words, as available), and the F measures `rouge1`, `rouge2`
        (words and pairs of words) and `rougeL` (longest common subsequence of words); 0 to 100."""
        return {"bleu": float(self._bleu_of_one.sentence_score(answer, [response]).score)} | self._f(response, answer)

    def of_all(self, responses: Sequence[str], answers: Sequence[str]) -> dict[str, float]:
        """`bleu` of a corpus, and the means of the F measures of its answers.

        There is no `bleu` if none of the responses has four words.
        """
        if not responses:
            raise ValueError("no answers to compare")
        bleu = {"bleu": self._corpus(responses, answers)} if self._corpus(responses, responses) else {}
        each = [self._f(response, answer) for response, answer in zip(responses, answers, strict=True)]
        return bleu | {name: sum(one[name] for one in each) / len(each) for name in _ROUGE}

    def _corpus(self, responses: Sequence[str], answers: Sequence[str]) -> float:
        return float(self._bleu.corpus_score(list(answers), [list(responses)]).score)

    def _f(self, response: str, answer: str) -> dict[str, float]:
        found = self._rouge.score(response, answer)
        return {name: 100.0 * float(found[name].fmeasure) for name in _ROUGE}
