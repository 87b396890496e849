"""Evaluation of a run on rows it was not trained on, compared with baselines.

The baselines are a copy of the source, the most frequent target or label of the training rows, and the untrained
network.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from phonate.compute.device import choose
from phonate.config.errors import InputError, option
from phonate.config.words import number_of
from phonate.data.batches import evaluation_batches
from phonate.data.dialogues import Dialogue, require_rows
from phonate.evaluation.tables import Evaluation
from phonate.evaluation.words import AnswerScores
from phonate.nn.losses import IGNORED
from phonate.pretrained import judge_of
from phonate.tasks.sequence.data import ItemMaker, SequenceCorpus, SequenceDataset, SequenceItem
from phonate.tasks.sequence.inference import SequenceGenerator
from phonate.tasks.sequence.model import build_model
from phonate.tasks.sequence.settings import METRICS
from phonate.training.generators import seed_torch
from phonate.training.task import move

logger = logging.getLogger("phonate")

COPY, FREQUENT = "copy of the source", "most frequent"
_LEGEND = (
    "exact match: fraction of targets generated without an error; BLEU (corpus level) and ROUGE (mean F-measure): from "
    "0 to 100; perplexity and accuracy: per token, given the true previous tokens, or per label."
)


def evaluate(run: Path, data: str | None = None, *, device: str | None = None) -> Evaluation:
    """Evaluate the model of `run` on the rows at `data`, or on its validation rows.

    `device`: such as "cuda:0"; None: the GPU if there is one.

    Raises InputError if there are no rows.
    """
    generator = SequenceGenerator.load(run)
    corpus = SequenceCorpus(generator.recipe)
    rows = corpus.dialogues[1] if data is None else corpus.read(data)
    items = _items(generator, rows, data or generator.recipe.data.path)
    where = choose(device=device) if device else torch.device("cuda" if torch.cuda.is_available() else "cpu")
    pairs = [item.row for item in items if item.row is not None and not item.row.is_plain]
    with_text = bool(pairs) and generator.model.decoder is not None
    scorer = judge_of("BLEU, ROUGE", AnswerScores) if with_text else None
    systems: dict[str, dict[str, float]] = {}
    if pairs:
        systems = _baselines(corpus, pairs, scorer, with_text)
    hypotheses: list[str] = []
    for name, system in (("untrained", _untrained(generator)), ("trained", generator)):
        logger.info("evaluating: %s (%s)", name, number_of(len(items), "row"))
        system.to(where)
        systems[name] = _token_figures(system, items)
        if with_text:
            hypotheses = system.answers(pairs)
            systems[name] |= _text_figures(scorer, [one.response.text for one in pairs], hypotheses)
    notes = {
        "rows": data or f"{generator.recipe.data.path}, kept for validation",
        "number": len([item for item in items if item.row is not None]),
        "vocabulary": len(generator.tokenizer),
        "beam_width": generator.recipe.training.eval_knobs.beam_width,
    }
    return Evaluation("sequence", systems, "trained", _LEGEND, notes, _each(pairs, hypotheses), columns=METRICS)


def _items(generator: SequenceGenerator, rows: Sequence[Dialogue], path: str) -> list[SequenceItem]:
    if not rows:
        raise InputError(f"{path}: no validation rows (data.validation); give rows with {option('data')}")
    window = generator.recipe.training.eval_knobs.sliding_window
    items, refused = ItemMaker(generator.recipe, generator.tokenizer, generator.labels, window).make_all(rows)
    require_rows(path, items, refused, "to evaluate on")
    return items


def _baselines(
    corpus: SequenceCorpus, pairs: Sequence[Dialogue], scorer: AnswerScores | None, with_text: bool
) -> dict[str, dict[str, float]]:
    """The results of the baselines that need no model."""
    answers = Counter(one.response.text for one in corpus.dialogues[0] if not one.is_plain).most_common(1)
    frequent = [answers[0][0] if answers else ""] * len(pairs)
    references = [one.response.text for one in pairs]
    if not with_text:
        return {FREQUENT: {"accuracy": _share(references, frequent)}}
    return {
        COPY: _text_figures(scorer, references, [one.prompt[-1].text for one in pairs]),
        FREQUENT: _text_figures(scorer, references, frequent),
    }


def _untrained(generator: SequenceGenerator) -> SequenceGenerator:
    """The untrained network, as initialised by the run's seed."""
    recipe = generator.recipe
    seed_torch(torch.device("cpu"), recipe.training.random_seed, "model")
    model = build_model(recipe.model, len(generator.tokenizer), len(generator.labels))
    return SequenceGenerator(model, generator.tokenizer, generator.labels, generator.chat, recipe)


@torch.no_grad()
def _token_figures(generator: SequenceGenerator, items: Sequence[SequenceItem]) -> dict[str, float]:
    dataset = SequenceDataset(items, generator.tokenizer.pad)
    nll, right, count = 0.0, 0, 0.0
    for _, _, batch in evaluation_batches(dataset, range(len(items)), generator.recipe.training.batch_size):
        batch = move(batch, generator.device)
        logits, _ = generator.model(batch)
        flat = logits.float().flatten(0, -2)
        targets = batch["labels" if "labels" in batch else "label"].flatten()
        nll += float(F.cross_entropy(flat, targets, ignore_index=IGNORED, reduction="sum"))
        right += int((flat.argmax(-1) == targets).sum())
        count += dataset.unit_counts(batch)["targets"]
    return {"perplexity": math.exp(min(nll / count, 700.0)), "accuracy": right / count}


def _text_figures(
    scorer: AnswerScores | None, references: Sequence[str], hypotheses: Sequence[str]
) -> dict[str, float]:
    scores = {} if scorer is None else scorer.of_all(references, hypotheses)
    return {"exact_match": _share(references, hypotheses), **scores}


def _share(references: Sequence[str], hypotheses: Sequence[str]) -> float:
    return sum(one == other for one, other in zip(references, hypotheses, strict=True)) / len(references)


def _each(pairs: Sequence[Dialogue], hypotheses: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The generated text for each source; empty for encoder-only models."""
    return {
        one.id: {"source": one.prompt[-1].text, "target": one.response.text, "written": text}
        for one, text in zip(pairs, hypotheses, strict=bool(hypotheses))
    }
