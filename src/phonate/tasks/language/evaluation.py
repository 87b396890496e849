"""How well a language model foretells held-out text, beside itself before training and a model without context.

Perplexity is the inverse of the geometric mean of the probabilities that the text's tokens were given. Per token it
depends on the tokenizer; per character, or as bits, models of any tokenizers compare. Where prompts have responses, the
model also answers some, and its answers are compared with them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

from phonate.config.errors import InputError
from phonate.evaluation.answers import AnswerScores
from phonate.evaluation.tables import Evaluation
from phonate.tasks.language import model as models
from phonate.tasks.language.answers import FREQUENT, LEGEND, Questions, most_frequent_response
from phonate.tasks.language.corpus import IGNORED, Corpus, LanguageDataset, pieces_of
from phonate.tasks.language.documents import Document, read_texts, warn_refused
from phonate.tasks.language.inference import Generator
from phonate.tasks.language.task import scores
from phonate.training.step import seed_torch
from phonate.training.task import Batch, move

logger = logging.getLogger("phonate")

_LEGEND = (
    "perplexity: inverse of the geometric mean of the probabilities of the tokens, per token of this tokenizer; "
    "character_perplexity: the same per character of the text, bits_per_character its logarithm to base 2, which "
    "compare across tokenizers. unigram: each token as often as in the training texts, whatever came before."
)


def evaluate(run: Path, data: str | None = None, vocoder: str | None = None) -> Evaluation:
    """Judge the model of `run` on the texts at `data`, or on those that its training kept for validation.

    Raises InputError when there is no text to judge by, or for a vocoder, which text has no use for, and
    MissingPackageError where there are responses to compare answers with, but not the packages that do it.
    """
    if vocoder is not None:
        raise InputError("--vocoder: text is not made sound of; leave it out")
    generator = Generator.load(run)
    corpus = Corpus(generator.recipe.data)
    documents = corpus.documents[1] if data is None else read_texts(data, corpus.data.documents).documents
    comparison = AnswerScores() if any(one.prompt is not None for one in documents) else None
    held_out = _samples(generator, corpus, documents, data)
    if not len(held_out.ids):
        raise InputError(f"{run}: its training kept no text to judge by (data.validation); give some by --data")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    batches = [move(batch, device) for batch in _batches(held_out, generator.recipe.training.batch_size)]
    characters = sum(float(batch["characters"].sum()) for batch in batches)
    questions = comparison and Questions.among(documents, held_out.pieces, comparison)
    systems = {"unigram": _figures(*_unigram(generator, corpus, batches), characters)}
    answers: dict[str, list[str]] = {}
    notes = {
        "texts": data or f"{generator.recipe.data.path}, kept for validation",
        "documents": len(held_out.pieces),
        "tokens": sum(int((batch["labels"] != IGNORED).sum()) for batch in batches),
        "characters": int(characters),
        "vocabulary": len(generator.tokenizer),
    }
    if questions and (frequent := most_frequent_response(corpus.documents[0])):
        systems[FREQUENT], answers[FREQUENT] = {}, [frequent[0]] * len(questions.documents)
        notes[FREQUENT] = f"{frequent[0]!r}, {frequent[1]} times"
    for name, model in (("untrained", _untrained), ("trained", _trained)):  # one after the other: they may be large
        judged = Generator(model(generator).to(device), generator.tokenizer, generator.answered, generator.recipe)
        systems[name] = _judged(judged.model, batches, characters)
        if questions:
            answers[name] = questions.put_to(name, judged)
        del judged
    if not questions:
        return Evaluation("language", systems, "trained", _LEGEND, notes)
    for name, given in answers.items():
        systems[name] |= questions.judged(given)
    items = questions.items(answers["trained"])
    return Evaluation("language", systems, "trained", _LEGEND + LEGEND, notes | questions.notes(), items)


def _samples(generator: Generator, corpus: Corpus, documents: Sequence[Document], data: str | None) -> LanguageDataset:
    """What is judged on."""
    settings = corpus.data
    if data is None:
        return corpus.dataset("validation", generator.tokenizer)
    pieces, refused = pieces_of(generator.tokenizer, documents, settings.max_length)
    warn_refused(Path(data), refused)
    if not pieces:
        raise InputError(f"{data}: nothing to judge by; {refused[0].place}: {refused[0].reason}")
    return LanguageDataset(pieces, settings.max_length, settings.packing, generator.tokenizer.pad)


def _batches(samples: LanguageDataset, size: int) -> list[Batch]:
    rng = np.random.default_rng(0)
    items = [samples.get(index, rng) for index in range(len(samples.ids))]
    return [samples.collate(items[start : start + size]) for start in range(0, len(items), size)]


def _judged(model: nn.Module, batches: Sequence[Batch], characters: float) -> dict[str, float]:
    found = [scores(model.eval(), batch) for batch in batches]
    return _figures(sum(nll for nll, _ in found), sum(count for _, count in found), characters)


def _untrained(generator: Generator) -> nn.Module:
    """The model as it was before the first step: the pretrained one, or fresh weights of the run's seed."""
    recipe = generator.recipe
    if recipe.model.name is not None:
        return models.load_base(recipe.model, torch.device("cpu"))
    seed_torch(torch.device("cpu"), recipe.training.random_seed, "model")
    return models.new_model(recipe.model, generator.tokenizer, recipe.data.max_length)


def _trained(generator: Generator) -> nn.Module:
    return generator.model


def _unigram(generator: Generator, corpus: Corpus, batches: Sequence[Batch]) -> tuple[float, int]:
    """Sum of -log p, and tokens, under the frequencies of the training labels, one added to each (Laplace)."""
    counts = np.ones(len(generator.tokenizer))
    train = corpus.dataset("train", generator.tokenizer)
    for batch in _batches(train, generator.recipe.training.batch_size):
        labels = batch["labels"][batch["labels"] != IGNORED]
        counts += np.bincount(labels.numpy(), minlength=len(counts))
    log_p = np.log(counts / counts.sum())
    wanted = np.concatenate([batch["labels"][batch["labels"] != IGNORED].cpu().numpy() for batch in batches])
    return -float(log_p[wanted].sum()), len(wanted)


def _figures(nll: float, tokens: int, characters: float) -> dict[str, float]:
    """Perplexities from a sum of -log p; those per character where there are any."""
    figures = {"perplexity": math.exp(nll / tokens)}
    if characters:
        figures["character_perplexity"] = math.exp(nll / characters)
        figures["bits_per_character"] = nll / characters / math.log(2.0)
    return figures
