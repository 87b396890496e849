"""The model that clones voices: Higgs Audio v2 with adapters.

Its forward pass gives all that a loss needs, so that DistributedDataParallel and torch.compile see one call of one
module. Heads run at the positions that have labels and nowhere else.

Shapes: B rows of L tokens, N = B * L; A frames of K codebooks; M and P positions with text and audio labels; H width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from phonate.nn.pretrained.norms import rms_norm
from phonate.tasks.cloning.network.dual_ffn import Attention, Paths, block_causal_mask, query_dtype, run_layers
from phonate.tasks.cloning.network.whisper_projector import WhisperProjector


@dataclass(frozen=True)
class NetworkOutput:
    """What the network computes."""

    audio_logits: Tensor
    """(P, K, codebook size)"""
    text_logits: Tensor | None
    """(M, vocabulary); None for a model without a text head."""
    hidden: Tensor | None
    """(N, H) after the last norm; None where the last layer ran on the tokens with labels alone."""


class CloningNetwork(nn.Module):
    """Higgs Audio v2, run on rows in which several samples may be packed."""

    def __init__(
        self, model: nn.Module, whisper_projector: WhisperProjector | None = None, checkpointing: bool = False
    ) -> None:
        """
        Args:
            model: transformers' HiggsAudioV2ForConditionalGeneration, or peft's model of it.
            whisper_projector: For features of a Whisper encoder.
            checkpointing: Recompute activations in the backward pass: less memory, more time.
        """
        super().__init__()
        self.model = model
        self.whisper_projector = whisper_projector
        self.checkpointing = checkpointing

    @property
    def base(self) -> Any:
        """transformers' HiggsAudioV2ForConditionalGeneration, whose linear layers may have adapters."""
        model: Any = self.model
        return model.get_base_model() if hasattr(model, "get_base_model") else model

    @property
    def config(self) -> Any:
        """transformers' HiggsAudioV2Config."""
        return self.base.config

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        frames: Tensor,
        frame_positions: Tensor,
        other_positions: Tensor,
        text_positions: Tensor,
        audio_positions: Tensor,
        sequences: Tensor | None = None,
        places: Tensor | None = None,
        lengths: Sequence[int] | None = None,
        read_frames: Tensor | None = None,
        read_others: Tensor | None = None,
        heard_positions: Tensor | None = None,
        heard_features: Tensor | None = None,
    ) -> NetworkOutput:
        """Logits and hidden states. All positions are indices into the flattened N tokens.

        Args:
            input_ids: (B, L); those at `frame_positions` are not read.
            position_ids: (B, L), from 0 in each sequence: a token attends to its own sequence.
            frames: (A, K) codes under the delay pattern.
            frame_positions: (A,) where they stand; the tokens on the audio path.
            other_positions: (N - A,) all others, padding included.
            text_positions: (M,) where text logits are wanted.
            audio_positions: (P,) where audio logits are wanted.
            sequences: (S, T) as `sequence_layout` gives it: attention runs on sequences side by side. None: on rows,
                with a mask, which is slower.
            places: (N,) as `sequence_layout` gives it.
            lengths: (S,) tokens of each sequence, if they fill all rows one behind the other.
            read_frames: Those of `frame_positions` that are among `text_positions` or `audio_positions`: with these,
                the last layer runs where heads do, and there are no hidden states of other tokens.
            read_others: Those of `other_positions` that are.
            heard_positions: (E,) where features of Whisper are added; needs a Whisper projector.
            heard_features: (E, width of the encoder).
        """
        base = self.base
        embedded_BLH = self._embedded(input_ids, frames, frame_positions, heard_positions, heard_features)
        if sequences is None:
            attention = Attention(mask=block_causal_mask(position_ids, query_dtype(embedded_BLH)))
        else:
            attention = Attention(sequences=sequences, places=places, lengths=lengths)
        read = None if read_frames is None or read_others is None else Paths(read_frames, read_others)
        hidden_BLH = run_layers(
            base.model.layers,
            embedded_BLH,
            base.model.rotary_emb(embedded_BLH, position_ids),
            attention,
            Paths(frame_positions, other_positions),
            checkpointing=self.checkpointing,
            read=read,
        )
        hidden_NH = rms_norm(base.model.norm, hidden_BLH).view(-1, hidden_BLH.shape[-1])
        if read is not None:
            audio_positions, text_positions = _among(read, input_ids.numel(), audio_positions, text_positions)
        logits_PKV = base.audio_lm_head(hidden_NH.index_select(0, audio_positions))
        text_MV = None
        if base.text_lm_head is not None:
            text_MV = base.text_lm_head(hidden_NH.index_select(0, text_positions))
        codebooks = (self.config.num_codebooks, self.config.codebook_size)
        return NetworkOutput(logits_PKV.unflatten(-1, codebooks), text_MV, hidden_NH if read is None else None)

    def _embedded(
        self,
        input_ids: Tensor,
        frames: Tensor,
        frame_positions: Tensor,
        heard_positions: Tensor | None,
        heard_features: Tensor | None,
    ) -> Tensor:
        """Embeddings (B, L, H) of tokens, of frames in their places, and of what Whisper hears."""
        base = self.base
        embedded_NH = base.model.embed_tokens(input_ids).flatten(0, 1)
        embedded_NH = embedded_NH.index_copy(0, frame_positions, _embed_frames(base.model.embed_audio_tokens, frames))
        if self.whisper_projector is not None and heard_features is not None:
            heard_EH = self.whisper_projector(heard_features).to(embedded_NH.dtype)
            embedded_NH = embedded_NH.index_add(0, heard_positions, heard_EH)
        embedded_BLH: Tensor = embedded_NH.view(*input_ids.shape, -1)
        return embedded_BLH


def _among(read: Paths, count: int, *positions: Tensor) -> list[Tensor]:
    """`positions` among `count` tokens as positions among those that are read."""
    tokens = torch.cat([read.audio, read.text])
    rows = tokens.new_zeros(count).index_copy_(0, tokens, torch.arange(len(tokens), device=tokens.device))
    return [rows[one] for one in positions]


def _embed_frames(embeddings: Any, frames: Tensor) -> Tensor:
    """(A, H) as transformers' HiggsAudioV2Embeddings gives it, without the embeddings of single codes in memory."""
    table = embeddings.embed_audio_tokens
    if type(table) is not nn.Embedding:  # adapted, or trained whole beside the adapters
        found: Tensor = embeddings(frames)
        return found
    return functional.embedding_bag(frames + embeddings.audio_tokens_offsets, table.weight, mode="sum")
