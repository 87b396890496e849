"""Language models as a task: predict the next token of what is to be learnt, given all tokens before it.

Terms: `nll`, the negative log likelihood of each learnt token in nats, and `bits_per_character`, which has weight 0 and
compares models with different tokenizers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phonate.config.errors import InputError
from phonate.data.dialogue_tokens import TextTokenizer
from phonate.nn.pretrained import base_fingerprint, copy_tensors, prepare_import, saved_tensors
from phonate.tasks.language import model as models
from phonate.tasks.language.data import LanguageCorpus, LanguageDataset
from phonate.tasks.language.settings import LanguageRecipe, traits
from phonate.training.task import Batch, Metric, Task, Terms

_BITS = "bits_per_character"


class LanguageTask(Task):
    """Trains a causal language model as `recipe` says."""

    random_features = False
    earlier_keys: ClassVar = {"tokenizer": "fingerprint", "base_weights": "base"}

    def __init__(self, recipe: LanguageRecipe) -> None:
        self._metrics = traits(recipe).metrics
        prepare_import()
        self.recipe = recipe
        self.corpus = LanguageCorpus(recipe.data)
        self._base: str | None = None
        """The fingerprint of the frozen weights, once the model is built."""
        self._exported: dict[str, Any] | None = None

    @cached_property
    def tokenizer(self) -> TextTokenizer:
        """The pretrained model's own, or one trained on the texts."""
        name = self.recipe.model.name
        if name is not None:
            return TextTokenizer.load(name)
        return self.corpus.train_tokenizer(self.recipe.model.vocabulary)

    def loss_weights(self, step: int) -> Mapping[str, float]:
        """`bits_per_character` is reported, not trained on."""
        return {_BITS: 0.0}

    @property
    def _saves_all(self) -> bool:
        return bool(self.recipe.model.trains == "full")

    def model(self, device: torch.device) -> nn.Module:
        """The model on `device`, frozen where it is not trained. Raises InputError if texts and model do not fit."""
        settings, length = self.recipe.model, self.recipe.data.max_length
        if settings.name is None:
            base = models.new_model(settings, self.tokenizer, length).to(device)
        else:
            base = models.load_base(settings, device)
            check_fit(base, self.tokenizer, length)
        network = models.prepare(base, settings)
        if self.recipe.data.packing and not models.isolates_packed(network, len(self.tokenizer)):
            raise InputError(
                f"data.packing: {settings.name}, of type {_config(network).model_type}, can't keep packed documents "
                "apart; set it to false"
            )
        if not self._saves_all:
            self._base = base_fingerprint(network)
        return network

    def dataset(self, split: str) -> LanguageDataset:
        """Token sequences of "train" or "validation"."""
        _ = self.corpus.dialogues  # what is wrong with the data is told before anything is downloaded
        return self.corpus.dataset(split, self.tokenizer)

    def loss(self, model: nn.Module, batch: Batch, phase: str) -> Terms:
        """The terms that the module's docstring describes."""
        nll = negative_log_likelihood(model, batch).sum()
        return {
            "nll": (nll, "tokens"),
            _BITS: (nll.detach() / math.log(2.0), "characters"),
        }

    @property
    def metrics(self) -> Sequence[Metric] | None:
        """The loss terms."""
        return self._metrics

    def blocks(self, model: nn.Module) -> Sequence[nn.Module]:
        """The layers."""
        return [*models.layers_of(model)]

    def saved(self, model: nn.Module) -> dict[str, Tensor]:
        """Every weight (full), or only what is trained: adapters, or top layers."""
        return saved_tensors(model, trained_only=not self._saves_all)

    def restore(self, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
        """Put `saved` tensors back. Raises CheckpointError if they do not fit."""
        copy_tensors(self.saved(model), tensors)

    def identity(self) -> dict[str, Any]:
        """The tokenizer, and the frozen weights that adapters or layers belong to."""
        return {"tokenizer": self.tokenizer.fingerprint, "base_weights": self._base}

    def inference_metadata(self, model: nn.Module) -> Mapping[str, Any]:
        """Tokenizer and configuration of a model that is saved whole, else the fingerprint of its base."""
        if self._exported is None:
            exported: dict[str, Any] = {
                "fingerprint": self.tokenizer.fingerprint,
                "answered": self.corpus.chat,
            }
            if self._saves_all:
                exported |= {"config": _config(model).to_dict(), "tokenizer": self.tokenizer.export()}
            else:
                exported["base"] = self._base
            self._exported = exported
        return self._exported


def negative_log_likelihood(model: nn.Module, batch: Batch) -> Tensor:
    """-log p of each label in nats (B, L), in fp32; 0 where there is none, for which no logits are computed either."""
    labels, where = batch["labels"], batch["labelled"]
    scores_NV = models.logits_at(model, batch["input_ids"], batch["position_ids"], where).float()
    nll_N = F.cross_entropy(scores_NV, labels.flatten()[where], reduction="none")
    return nll_N.new_zeros(labels.numel()).scatter(0, where, nll_N).view(labels.shape)


def check_fit(model: nn.Module, tokenizer: TextTokenizer, max_length: int) -> None:
    """Raise InputError for a tokenizer with more tokens than the model, or longer sequences than the model takes."""
    config = _config(model)
    rows = model.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
    if len(tokenizer) > rows:
        raise InputError(f"model.name: its tokenizer has {len(tokenizer)} tokens, its model {rows}")
    longest = getattr(config, "max_position_embeddings", None)
    if longest is not None and max_length > longest:
        raise InputError(f"data.max_length: {max_length}; this model takes {longest} at most")


def _config(model: nn.Module) -> Any:
    return model.config


@torch.no_grad()
def scores(model: nn.Module, batch: Batch) -> tuple[float, int]:
    """Sum of -log p over the labels of `batch`, and how many there are."""
    return float(negative_log_likelihood(model, batch).double().sum()), len(batch["labelled"])
