"""A transformer over tokens.

Shapes: B samples, N source sequences, S source tokens, T target tokens, P prefix tokens, V vocabulary, C classes, D
model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phonate.config.errors import InputError
from phonate.nn.sequences import Dropout, frame_mask
from phonate.nn.transformer import StackState, build_decoder, build_encoder
from phonate.tasks.sequence.settings import SequenceModelSettings


class SequenceModel(nn.Module):
    """Embeddings, an encoder, a decoder or both, and an output layer for tokens or classes.

    Args:
        settings: The transformer's settings.
        vocabulary: V.
        classes: C, for encoder-only models.
    """

    def __init__(self, settings: SequenceModelSettings, vocabulary: int, classes: int) -> None:
        super().__init__()
        part = settings.output_settings
        width = part.d_model
        self.embedding = _embedding(vocabulary, width)
        self.encoder = None if settings.encoder is None else build_encoder(settings.encoder)
        self.decoder = None if settings.decoder is None else build_decoder(settings.decoder, self.encoder is not None)
        apart = self.encoder is not None and self.decoder is not None and not settings.tie_embeddings
        self.target_embedding = _embedding(vocabulary, width) if apart else None
        tied = self.decoder is not None and settings.tie_embeddings
        self.output = None if tied else nn.Linear(width, classes if self.decoder is None else vocabulary)
        self.dropout = Dropout(part.dropout)

    def forward(self, batch: Mapping[str, Any]) -> tuple[Tensor, Tensor | None]:
        """A batch of `SequenceDataset` -> logits and, for encoder-only models, an embedding (B, D) of each sample.

        Logits are (B, T, V), of the token after each of `input`. Those of encoder-only models are (B, C), averaged over
        the windows of a sample.
        """
        memory: tuple[Tensor, Tensor] | tuple[None, None] = (None, None)
        if self.encoder is not None:
            memory = self.encode(batch["source"], batch["source_lengths"])
        if self.decoder is not None:
            tokens_BT = batch["input"]
            mask_BT = frame_mask(batch["lengths"], tokens_BT.shape[1])
            return self._logits(self.decoder(self._embedded(tokens_BT), mask_BT, *memory)), None
        memory_NSD, mask_NS = memory
        assert memory_NSD is not None
        assert mask_NS is not None
        pooled_ND = _mean(memory_NSD, mask_NS)
        count = len(batch["label"]) if "label" in batch else int(batch["item"].max()) + 1
        # the mean over the windows of each item: (N, D) -> (B, D)
        item_N = batch["item"]
        total_BD = pooled_ND.new_zeros(count, pooled_ND.shape[1]).index_add(0, item_N, pooled_ND)
        windows_B = torch.bincount(item_N, minlength=count).clamp_min(1)
        pooled_BD = total_BD / windows_B[:, None]
        # as the output layer is linear, averaging embeddings averages the logits
        return self._logits(pooled_BD), pooled_BD

    def encode(self, source_NS: Tensor, lengths_N: Tensor) -> tuple[Tensor, Tensor]:
        """The encoder's output (N, S, D) and its mask (N, S), True for real tokens."""
        assert self.encoder is not None
        mask_NS = frame_mask(lengths_N, source_NS.shape[1])
        return self.encoder(self.dropout(_scaled(self.embedding, source_NS)), mask_NS), mask_NS

    # -------------------------------------------------- incremental decoding (`search.NextToken`)

    def begin(
        self, prefix_BP: Tensor, memory_BSD: Tensor | None = None, mask_BS: Tensor | None = None
    ) -> tuple[Tensor, StackState]:
        """Logits (B, V) of the token after a prefix (B, P), and the state after the prefix. The memory and its mask are
        those of `encode`."""
        assert self.decoder is not None
        state = self.decoder.initial_state(len(prefix_BP), memory_BSD, mask_BS)
        out_BPD = self.decoder.step(self._embedded(prefix_BP), state)
        return self._logits(out_BPD[:, -1]), state

    def next(self, tokens_N: Tensor, state: StackState) -> tuple[Tensor, StackState]:
        """Logits (N, V) of the tokens after the given ones (N,), and the updated state."""
        assert self.decoder is not None
        out_N1D = self.decoder.step(self._embedded(tokens_N[:, None]), state)
        return self._logits(out_N1D[:, 0]), state

    def select(self, state: StackState, rows_M: Tensor) -> StackState:
        """The state of these rows, which may repeat."""
        return state.select(rows_M)

    def _logits(self, x_BTD: Tensor) -> Tensor:
        """(..., D) -> (..., V), or (..., C)."""
        out: Tensor = F.linear(x_BTD, self.embedding.weight) if self.output is None else self.output(x_BTD)
        return out

    def _embedded(self, tokens_BT: Tensor) -> Tensor:
        """(B, T) -> (B, T, D)."""
        embedding = self.embedding if self.target_embedding is None else self.target_embedding
        out: Tensor = self.dropout(_scaled(embedding, tokens_BT))
        return out


def build_model(settings: SequenceModelSettings, vocabulary: int, classes: int) -> SequenceModel:
    """A new model. Raises InputError if `num_classes` contradicts the data."""
    part = settings.output_settings
    needed = vocabulary if settings.decoder is not None else classes
    if part.num_classes not in (None, needed):
        name = "decoder" if settings.decoder is not None else "encoder"
        what = "tokens in the vocabulary" if settings.decoder is not None else "labels in the training rows"
        raise InputError(f"model.{name}.num_classes is {part.num_classes}, but there are {needed} {what}; leave it out")
    return SequenceModel(settings, vocabulary, classes)


def _embedding(vocabulary: int, width: int) -> nn.Embedding:
    embedding = nn.Embedding(vocabulary, width)
    nn.init.normal_(embedding.weight, std=width**-0.5)
    return embedding


def _scaled(embedding: nn.Embedding, tokens: Tensor) -> Tensor:
    """Embeddings times sqrt(D) (Vaswani et al. 2017, section 3.4)."""
    out: Tensor = embedding(tokens) * embedding.embedding_dim**0.5
    return out


def _mean(x_NSD: Tensor, mask_NS: Tensor) -> Tensor:
    """The mean over real tokens: (N, S, D) -> (N, D)."""
    real_NS1 = mask_NS[:, :, None]
    return x_NSD.masked_fill(~real_NS1, 0).sum(1) / real_NS1.sum(1).clamp_min(1)
