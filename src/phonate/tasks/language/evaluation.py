"""Perplexity of held-out text and answers to held-out prompts, beside baselines.

Perplexity is the exponential of the mean negative log likelihood of the tokens. Per token it depends on the tokenizer;
per character, or as bits, it compares models with different tokenizers. Held-out prompts are also answered, and the
answers compared with their reference responses.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from phonate.compute.device import choose
from phonate.config.errors import InputError, option
from phonate.config.words import number_of
from phonate.data.dialogues import Dialogue, read_dialogues, require_rows
from phonate.evaluation.tables import Evaluation
from phonate.evaluation.words import AnswerScores
from phonate.pretrained import judge_of
from phonate.tasks.language import model as models
from phonate.tasks.language.data import LanguageCorpus, LanguageDataset, TokenSequence, encode_all
from phonate.tasks.language.inference import Generator
from phonate.tasks.language.task import scores
from phonate.training.generators import seed_torch
from phonate.training.task import Batch, move

logger = logging.getLogger("phonate")

# -------------------------------- Answers to held-out prompts, compared with their reference responses

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
        logger.info(
            "evaluating: %s (%s of up to %d tokens)", name, number_of(len(self.dialogues), "answer"), self.max_tokens
        )
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
    counts = Counter(one.response.text for one in dialogues if one.prompt).most_common(1)
    return counts[0] if counts else None


# ------------------ Perplexity of held-out text, compared with the untrained model and a unigram model

_LEGEND = (
    "perplexity: exponential of the mean negative log likelihood, per token of this tokenizer; character_perplexity: "
    "the same per character of the text, and bits_per_character its logarithm to base 2, both of which compare across "
    "tokenizers; lower is better. unigram: predicts each token by its frequency in the training texts."
)


def evaluate(run: Path, data: str | None = None, *, device: str | None = None, base: str | None = None) -> Evaluation:
    """Evaluate the model of `run` on the texts at `data`, or on its validation texts.

    `device`: such as "cuda:0"; None: the GPU, where there is one. `base`: as for `Generator.load`.

    Raises InputError if there is no text.
    """
    generator = Generator.load(run, base=base)
    corpus = LanguageCorpus(generator.recipe.data)
    dialogues = corpus.dialogues[1] if data is None else read_dialogues(data, corpus.data.documents).dialogues
    answered = any(not one.is_plain for one in dialogues)
    answer_scores = judge_of("BLEU, ROUGE of answers", AnswerScores) if answered else None
    held_out = _dataset(generator, corpus, dialogues, data)
    if not held_out.rows:
        raise InputError(f"{run}: no validation texts (data.validation); give texts with {option('data')}")
    where = choose(device=device) if device else torch.device("cuda" if torch.cuda.is_available() else "cpu")
    batches = [move(batch, where) for batch in _batches(held_out, generator.recipe.training.batch_size)]
    characters = sum(float(batch["characters"].sum()) for batch in batches)
    questions = answer_scores and Questions.select(dialogues, held_out.sequences, answer_scores)
    systems = {"unigram": _figures(*_unigram(generator, corpus, batches), characters)}
    answers: dict[str, list[str]] = {}
    notes = {
        "texts": data or f"{generator.recipe.data.path}, kept for validation",
        "documents": len(held_out.sequences),
        "tokens": sum(len(batch["labelled"]) for batch in batches),
        "characters": int(characters),
        "vocabulary": len(generator.tokenizer),
    }
    if questions and (frequent := most_frequent_response(corpus.dialogues[0])):
        systems[FREQUENT], answers[FREQUENT] = {}, [frequent[0]] * len(questions.dialogues)
        notes[FREQUENT] = f"{frequent[0]!r}, {frequent[1]} times"
    models_of: dict[str, Callable[[Generator], nn.Module]] = {"untrained": _untrained, "trained": lambda one: one.model}
    for name, model in models_of.items():  # one at a time: they may be large
        system = Generator(model(generator).to(where), generator.tokenizer, generator.chat, generator.recipe)
        sums = [scores(system.model.eval(), batch) for batch in batches]
        systems[name] = _figures(sum(nll for nll, _ in sums), sum(count for _, count in sums), characters)
        if questions:
            answers[name] = questions.ask(name, system)
        del system
    if not questions:
        return Evaluation("language", systems, "trained", _LEGEND, notes)
    for name, hypotheses in answers.items():
        systems[name] |= questions.figures(hypotheses)
    items = questions.items(answers["trained"])
    return Evaluation("language", systems, "trained", _LEGEND + LEGEND, notes | questions.notes(), items)


def _dataset(
    generator: Generator, corpus: LanguageCorpus, dialogues: Sequence[Dialogue], data: str | None
) -> LanguageDataset:
    settings = corpus.data
    if data is None:
        return corpus.dataset("validation", generator.tokenizer)
    sequences, refused = encode_all(generator.tokenizer, dialogues, settings.max_length)
    require_rows(data, sequences, refused, "to evaluate on")
    return LanguageDataset(sequences, settings.max_length, settings.packing, generator.tokenizer)


def _batches(dataset: LanguageDataset, size: int) -> list[Batch]:
    rng = np.random.default_rng(0)
    items = [dataset.get(index, rng) for index in range(len(dataset.rows))]
    return [dataset.collate(items[start : start + size]) for start in range(0, len(items), size)]


def _untrained(generator: Generator) -> nn.Module:
    """The model before the first step: the pretrained one, or the initialisation of the run's seed."""
    recipe = generator.recipe
    if recipe.model.name is not None:
        return models.load_base(recipe.model, torch.device("cpu"))
    seed_torch(torch.device("cpu"), recipe.training.random_seed, "model")
    return models.new_model(recipe.model, generator.tokenizer, recipe.data.max_length)


def _unigram(generator: Generator, corpus: LanguageCorpus, batches: Sequence[Batch]) -> tuple[float, int]:
    """Sum of -log p and number of tokens, under the frequencies of the training labels with add-one smoothing."""
    counts = np.ones(len(generator.tokenizer))
    train = corpus.dataset("train", generator.tokenizer)
    for batch in _batches(train, generator.recipe.training.batch_size):
        counts += np.bincount(_labels(batch), minlength=len(counts))
    log_p = np.log(counts / counts.sum())
    labels = np.concatenate([_labels(batch) for batch in batches])
    return -float(log_p[labels].sum()), len(labels)


def _labels(batch: Batch) -> NDArray[np.int64]:
    """(N,) token ids to predict."""
    labels: NDArray[np.int64] = batch["labels"].flatten()[batch["labelled"]].cpu().numpy()
    return labels


def _figures(nll: float, tokens: int, characters: float) -> dict[str, float]:
    """Perplexities from a sum of -log p; those per character only if there are characters."""
    figures = {"perplexity": math.exp(nll / tokens)}
    if characters:
        figures["character_perplexity"] = math.exp(nll / characters)
        figures["bits_per_character"] = nll / characters / math.log(2.0)
    return figures
