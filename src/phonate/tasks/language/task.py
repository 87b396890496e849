"""Language models as a task: the next token of what is to be learnt, given all before it.

Terms: `nll` (negative log likelihood of each token that is learnt, in nats) and `bits_per_character`, which weighs
nothing and is there to compare models of different tokenizers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phonate.config.errors import InputError
from phonate.tasks.language import model as models
from phonate.tasks.language.corpus import IGNORED, Corpus, LanguageDataset
from phonate.tasks.language.tokenizer import TextTokenizer
from phonate.training.task import Batch, Count, Task, Terms

_CHARACTERS = "bits_per_character"


class LanguageTask(Task):
    """Trains a causal language model as `recipe` says."""

    def __init__(self, recipe: Any) -> None:
        models.require("transformers", *(["peft"] if recipe.model.adapted else []))
        self.recipe = recipe
        self.corpus = Corpus(recipe.data)
        self._exported: dict[str, Any] | None = None

    @cached_property
    def tokenizer(self) -> TextTokenizer:
        """The model's own, or one that is learnt from the texts."""
        name = self.recipe.model.name
        if name is not None:
            return TextTokenizer.load(name)
        return self.corpus.learn_tokenizer(self.recipe.model.vocabulary)

    def loss_weights(self, step: int) -> Mapping[str, float]:
        """Bits per character are only looked at."""
        return {_CHARACTERS: 0.0}

    def model(self, device: torch.device) -> nn.Module:
        """The model with what is to be trained of it. Raises InputError where texts and model do not fit."""
        settings, length = self.recipe.model, self.recipe.data.max_length
        if settings.name is None:
            base = models.new_model(settings, self.tokenizer, length).to(device)
        else:
            base = models.load_base(settings, device)
            check_fit(base, self.tokenizer, length)
        made = models.prepare(base, settings)
        if self.recipe.data.packing and not models.keeps_apart(made, len(self.tokenizer)):
            raise InputError(
                f"data.packing: in {settings.name}, of type {_config(made).model_type}, documents of one sequence "
                "would see each other; set it to false"
            )
        return made

    def dataset(self, split: str) -> LanguageDataset:
        """Sequences of tokens."""
        return self.corpus.dataset(split, self.tokenizer)

    def loss(self, model: nn.Module, batch: Batch, phase: str) -> Terms:
        """See the module."""
        nll = negative_log_likelihood(model, batch).sum()
        return {
            "nll": (nll, (batch["labels"] != IGNORED).sum()),
            _CHARACTERS: (nll.detach() / math.log(2.0), batch["characters"].sum()),
        }

    def counts(self, batch: Batch, phase: str) -> dict[str, Count]:
        """Tokens and characters that are learnt."""
        return {
            "nll": float((batch["labels"] != IGNORED).sum()),
            _CHARACTERS: float(batch["characters"].sum()),
        }

    @property
    def validation_metrics(self) -> frozenset[str]:
        """The loss terms."""
        return frozenset({"nll", _CHARACTERS})

    def saved(self, model: nn.Module) -> dict[str, Tensor]:
        """Every weight (full), or only what is trained: adapters, or top layers."""
        return models.trained_tensors(model, everything=self.recipe.model.trains == "full")

    def restore(self, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
        """Put `saved` tensors back. Raises CheckpointError where they do not fit."""
        models.put_back(self.saved(model), tensors)

    def resume_conflict(self, exported: Mapping[str, Any]) -> str | None:
        """Texts that make another tokenizer can't go on with a model."""
        if exported.get("fingerprint") != self.tokenizer.fingerprint:
            return "was trained with another tokenizer; give it the texts it was begun with, or start a new run"
        return None

    def inference_metadata(self, model: nn.Module) -> Mapping[str, Any]:
        """The tokenizer and the configuration of a model that is saved whole; of one that is not, what tells its base
        from another."""
        if self._exported is None:
            exported: dict[str, Any] = {
                "fingerprint": self.tokenizer.fingerprint,
                "answered": self.corpus.answered,
            }
            if self.recipe.model.trains == "full":
                exported |= {"config": _config(model).to_dict(), "tokenizer": self.tokenizer.export()}
            else:
                exported["base"] = models.base_fingerprint(model)
            self._exported = exported
        return self._exported


def negative_log_likelihood(model: nn.Module, batch: Batch) -> Tensor:
    """-log p of each label in nats (B, L), in fp32; 0 where there is none."""
    scores_BLV = models.logits(model, batch["input_ids"], batch["position_ids"]).float()
    nll_BL: Tensor = F.cross_entropy(
        scores_BLV.transpose(1, 2), batch["labels"], ignore_index=IGNORED, reduction="none"
    )
    return nll_BL


def check_fit(model: nn.Module, tokenizer: TextTokenizer, max_length: int) -> None:
    """Raise InputError for a tokenizer with tokens that the model does not know, or sequences longer than it sees."""
    config = _config(model)
    rows = model.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
    if len(tokenizer) > rows:
        raise InputError(f"model.name: its tokenizer has {len(tokenizer)} tokens, its model {rows}")
    longest = getattr(config, "max_position_embeddings", None)
    if longest is not None and max_length > longest:
        raise InputError(f"data.max_length: {max_length}; this model was made for {longest} at most")


def _config(model: nn.Module) -> Any:
    return model.config


@torch.no_grad()
def scores(model: nn.Module, batch: Batch) -> tuple[float, int]:
    """Sum of -log p over the labels of `batch`, and how many there are."""
    labels = batch["labels"] != IGNORED
    return float(negative_log_likelihood(model, batch)[labels].double().sum()), int(labels.sum())
