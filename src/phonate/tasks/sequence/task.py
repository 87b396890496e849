"""Sequences as a task: the next token of a target (with teacher forcing), or the label of a source.

Terms: the main loss, cross entropy by default, with the label smoothing and the auxiliary losses of the recipe; and,
for information, `nll`, the negative log likelihood without smoothing, and `accuracy`, the share of tokens or labels
that are the likeliest. Validation adds `perplexity` and, for models that write targets, `exact_match` and `bleu` of
what they write.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phonate.config.errors import InputError
from phonate.evaluation.answers import AnswerScores
from phonate.nn.masks import frame_mask
from phonate.nn.pretrained.loading import require
from phonate.tasks.sequence.corpus import Corpus
from phonate.tasks.sequence.dataset import IGNORED, SequenceDataset
from phonate.tasks.sequence.inference import SequenceGenerator
from phonate.tasks.sequence.model import SequenceModel, build_model, longest
from phonate.tasks.sequence.settings import SequenceRecipe
from phonate.training.losses import LOSSES, build_loss
from phonate.training.task import Batch, Count, Dataset, Sums, Task, Terms

DECODED = 128
"""Validation rows for which targets are written, at most: the first ones."""
_OF_LOGITS = {"cross_entropy", "label_smoothing", "focal"}
"""phonate's own losses that take logits and classes."""


class SequenceTask(Task):
    """Trains a SequenceModel as `recipe` says."""

    def __init__(self, recipe: SequenceRecipe) -> None:
        require("transformers")
        recipe.model.require_agreement(recipe.training.batch_size, recipe.training.device)
        self.recipe = recipe
        self.corpus = Corpus(recipe)
        self.writes = recipe.model.decoder is not None
        self.criterion = build_loss(recipe.training.loss, default="cross_entropy")
        self.coupling = self.criterion.coupling
        _check(recipe, self.criterion.main)
        if recipe.model.model_type == "encoder_decoder":
            _ = self._scores  # a missing package is told now

    def loss_weights(self, step: int) -> Mapping[str, float]:
        """The losses of the recipe; `nll` and `accuracy` are reported, not trained on."""
        return {**self.criterion.weights, "nll": 0.0, "accuracy": 0.0}

    def model(self, device: torch.device) -> nn.Module:
        """A model for the tokens and labels of the corpus."""
        corpus = self.corpus
        return build_model(self.recipe.model, len(corpus.tokenizer), len(corpus.labels)).to(device)

    def dataset(self, split: str) -> SequenceDataset:
        """The samples of "train" or "validation"."""
        if self.writes and self._chat:
            _ = self._scores  # a decoder alone needs it for pairs only
        return self.corpus.dataset(split)

    def loss(self, model: nn.Module, batch: Batch, phase: str) -> Terms:
        """See the module."""
        logits, pooled_BD = model(batch)
        targets = batch["label"] if "label" in batch else _within(batch["labels"], batch["lengths"])
        terms = self.criterion(logits, targets, model=model, embeddings=pooled_BD, labels=batch.get("label"))
        with torch.no_grad():
            flat, wanted = logits.float().flatten(0, -2), targets.flatten()
            nll = F.cross_entropy(flat, wanted, ignore_index=IGNORED, reduction="sum")
            right = (flat.argmax(-1) == wanted).sum().float()
        informative: Terms = {"nll": (nll, batch["labelled"]), "accuracy": (right, batch["labelled"])}
        return {**terms, **informative}

    def counts(self, batch: Batch, phase: str) -> dict[str, Count] | None:
        """Learnt tokens, or labels, where the loss is one number for each of them."""
        main = self.criterion.main
        if main not in _OF_LOGITS or len(self.criterion.losses) > 1 or self.criterion.reduction != "mean":
            return None
        labelled: float = batch["labelled"]
        return {main: labelled, "nll": labelled, "accuracy": labelled}

    @property
    def validation_metrics(self) -> frozenset[str]:
        """See the module."""
        written = {"exact_match", "bleu"} if self.writes else set()
        return frozenset({*self.criterion.losses, "nll", "accuracy", "perplexity", *written})

    @property
    def higher_is_better(self) -> frozenset[str]:
        """Shares of what is right, and BLEU."""
        return frozenset({"accuracy", "exact_match", "bleu"})

    @torch.no_grad()
    def evaluate(self, model: nn.Module, dataset: Dataset, positions: Sequence[int]) -> Sums:
        """`exact_match` (a share) and `bleu` (of each target, up to 100) of targets that beam search finds; for the
        first 128 rows."""
        items = cast(SequenceDataset, dataset).items
        rows = [items[index].row for index in positions if index < DECODED]
        pairs = [row for row in rows if row is not None and not row.is_plain]
        if not self.writes or not pairs:
            return {}
        written = self._generator(model).answers(pairs)
        references = [pair.response.text for pair in pairs]
        exact = sum(text == reference for text, reference in zip(written, references, strict=True))
        bleu = sum(self._scores.of_one(ref, text)["bleu"] for ref, text in zip(references, written, strict=True))
        return {"exact_match": (float(exact), len(pairs)), "bleu": (bleu, len(pairs))}

    def derived(self, metrics: Mapping[str, float]) -> Mapping[str, float]:
        """`perplexity`, per token or per label."""
        return {"perplexity": math.exp(min(metrics["nll"], 700.0))}

    def _generator(self, model: nn.Module) -> SequenceGenerator:
        corpus = self.corpus
        return SequenceGenerator(cast(SequenceModel, model), corpus.tokenizer, corpus.labels, self._chat, self.recipe)

    @cached_property
    def _scores(self) -> AnswerScores:
        """Raises MissingPackageError without the packages that compare texts."""
        return AnswerScores()

    @cached_property
    def _chat(self) -> bool:
        return any(not row.is_plain for row in self.corpus.dialogues[0])

    def resume_conflict(self, exported: Mapping[str, Any]) -> str | None:
        """Other tokens or labels."""
        for name, what in (("fingerprint", "tokens"), ("labels", "labels")):
            if exported.get(name) != self._exported[name]:
                return f"was trained with other {what}; give it the rows it was begun with, or start a new run"
        return None

    def inference_metadata(self, model: nn.Module) -> Mapping[str, Any]:
        """Tokenizer and labels."""
        return self._exported

    @cached_property
    def _exported(self) -> dict[str, Any]:
        tokenizer = self.corpus.tokenizer
        return {
            "fingerprint": tokenizer.fingerprint,
            "tokenizer": tokenizer.export(),
            "labels": list(self.corpus.labels),
            "answered": self._chat,
        }


def _within(labels_BT: Tensor, lengths_B: Tensor) -> Tensor:
    """Labels without those beyond the lengths: `training.performance.batch_shim` pads batches with zeros."""
    return labels_BT.masked_fill(~frame_mask(lengths_B, labels_BT.shape[1]), IGNORED)


def _check(recipe: SequenceRecipe, loss: str) -> None:
    """Raise InputError for a loss of other values than classes, and for longer sequences than the positions."""
    own = LOSSES.get(loss).__module__.startswith("phonate.nn.losses.")
    if own and loss not in _OF_LOGITS:
        raise InputError(f"training.loss.main: {loss} is no loss of tokens; use one of {', '.join(sorted(_OF_LOGITS))}")
    limit = longest(recipe.model)
    if limit is not None and recipe.data.max_length > limit:
        raise InputError(
            f"data.max_length: {recipe.data.max_length}; learnable positions reach to max_seq_len {limit}; raise that, "
            "or lower this"
        )
    window = recipe.training.eval_knobs.sliding_window
    if window is not None and limit is not None and window > limit:
        raise InputError(f"training.eval_knobs.sliding_window: {window}; learnable positions reach to {limit}")
