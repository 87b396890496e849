"""The layers of Higgs Audio v2, each token on its path: text or audio.

A layer has two feed-forward networks and two pairs of norms, one for text tokens and one for audio frames, and one
attention for both. transformers picks the tokens of a path with boolean masks, six times in each layer, which waits for
the device and breaks the graph of torch.compile each time. Where the tokens are is known before the batch is sent, so
that these functions run transformers' own modules on rows picked by index.

Shapes: B rows of L tokens, H width of the model, N = B * L.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class Paths:
    """Which tokens take which path, as indices into the flattened N tokens. Each token is in exactly one."""

    audio: Tensor
    """(A,)"""
    text: Tensor
    """(N - A,)"""


_MASK_ALIGNMENT = 16
"""CUDA's kernels copy a mask, in every layer, unless its rows begin at multiples of this."""


def block_causal_mask(position_ids: Tensor, dtype: torch.dtype) -> Tensor:
    """What is added to the scores of attention (B, 1, L, L): 0 where a token may look, which is at itself and at those
    before it in its own sequence, -inf elsewhere.

    A row holds several sequences; one begins wherever `position_ids` (B, L) do not go up by 1. `dtype` is that of the
    queries: a mask of another type would be converted, and kept, in every layer.
    """
    begins_BL = torch.ones_like(position_ids, dtype=torch.bool)
    begins_BL[:, 1:] = position_ids[:, 1:] != position_ids[:, :-1] + 1
    sequence_BL = begins_BL.cumsum(1)
    rows, length = position_ids.shape
    causal_LL = torch.ones(length, length, dtype=torch.bool, device=position_ids.device).tril()
    seen_BLL = (sequence_BL[:, :, None] == sequence_BL[:, None, :]) & causal_LL
    width = -(-length // _MASK_ALIGNMENT) * _MASK_ALIGNMENT
    mask = torch.zeros(rows, 1, length, width, dtype=dtype, device=position_ids.device)[..., :length]
    return mask.masked_fill_(~seen_BLL[:, None], -torch.inf)


def query_dtype(hidden: Tensor) -> torch.dtype:
    """The type that attention computes in: autocast's, or that of the hidden states."""
    kind = hidden.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype


def run_layers(
    layers: nn.ModuleList,
    hidden_BLH: Tensor,
    position_embeddings: tuple[Tensor, Tensor],
    mask: Tensor | None,
    paths: Paths,
    cache: Any = None,
    checkpointing: bool = False,
) -> Tensor:
    """`hidden_BLH` after all layers.

    Args:
        layers: Of transformers' HiggsAudioV2Model, adapters or not.
        hidden_BLH: Embeddings of tokens and frames.
        position_embeddings: What the model's `rotary_emb` gives.
        mask: (B, 1, L, keys) as `block_causal_mask` gives it; None: all tokens of a row are one sequence.
        paths: Which tokens are audio frames.
        cache: Keys and values of earlier tokens, with transformers' `update`.
        checkpointing: Recompute each layer in the backward pass instead of keeping its activations.
    """
    for layer in layers:
        arguments = (layer, hidden_BLH, position_embeddings, mask, paths.audio, paths.text, cache)
        if checkpointing and torch.is_grad_enabled():
            hidden_BLH = checkpoint(run_layer, *arguments, use_reentrant=False)
        else:
            hidden_BLH = run_layer(*arguments)
    return hidden_BLH


def run_layer(
    layer: Any,
    hidden_BLH: Tensor,
    position_embeddings: tuple[Tensor, Tensor],
    mask: Tensor | None,
    audio: Tensor,
    text: Tensor,
    cache: Any = None,
) -> Tensor:
    """`hidden_BLH` after one layer; equal to transformers' HiggsAudioV2DecoderLayer to the bit. Arguments as
    `run_layers`, the two paths by themselves."""
    normed_BLH = _on_paths(hidden_BLH, audio, text, layer.audio_input_layernorm, layer.input_layernorm)
    attended_BLH, _ = layer.self_attn(
        hidden_states=normed_BLH,
        position_embeddings=position_embeddings,
        attention_mask=mask,
        past_key_values=cache,
    )
    hidden_BLH = hidden_BLH + attended_BLH

    def audio_update(x: Tensor) -> Tensor:
        updated: Tensor = layer.audio_mlp(layer.audio_post_attention_layernorm(x))
        return updated

    def text_update(x: Tensor) -> Tensor:
        updated: Tensor = layer.mlp(layer.post_attention_layernorm(x))
        return updated

    return hidden_BLH + _on_paths(hidden_BLH, audio, text, audio_update, text_update)


def _on_paths(
    hidden_BLH: Tensor,
    audio: Tensor,
    text: Tensor,
    on_audio: Callable[[Tensor], Tensor],
    on_text: Callable[[Tensor], Tensor],
) -> Tensor:
    """(B, L, H): `on_audio` of the rows `audio` of the flattened hidden states, and `on_text` of the rows `text`."""
    flat_NH = hidden_BLH.flatten(0, 1)
    audio_AH = on_audio(flat_NH.index_select(0, audio))
    text_TH = on_text(flat_NH.index_select(0, text))
    found_NH = torch.empty_like(flat_NH, dtype=text_TH.dtype)
    found_NH.index_copy_(0, audio, audio_AH).index_copy_(0, text, text_TH)
    return found_NH.view_as(hidden_BLH)
