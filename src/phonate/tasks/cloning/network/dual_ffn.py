"""The layers of Higgs Audio v2, each token on its path: text or audio.

A layer has two feed-forward networks and two pairs of norms, one for text tokens and one for audio frames, and one
attention for both. transformers picks the tokens of a path with boolean masks, six times in each layer, which waits for
the device and breaks the graph of torch.compile each time. Where the tokens are is known before the batch is sent, so
that these functions run transformers' own modules on rows picked by index. In the same way attention, alone of all,
runs on the packed sequences side by side instead of on long rows in which most pairs of tokens are masked.

Shapes: B rows of L tokens, N = B * L, H width of the model; S sequences of at most T tokens; R tokens that are read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from phonate.nn.pretrained.gated import gated_silu
from phonate.nn.pretrained.norms import rms_norm
from phonate.nn.pretrained.projections import project


@dataclass(frozen=True)
class Paths:
    """Tokens on each path, as indices into the flattened N tokens. No token is in both."""

    audio: Tensor
    """(A,)"""
    text: Tensor
    """Of all tokens (N - A,)."""


@dataclass(frozen=True)
class Attention:
    """Who attends to whom: by a mask, or by sequences. With neither, the tokens of a row are one sequence."""

    mask: Tensor | None = None
    """(B, 1, L, keys) as `block_causal_mask` gives it."""
    sequences: Tensor | None = None
    """(S, T) as `sequence_layout` gives it."""
    places: Tensor | None = None
    """(N,) as `sequence_layout` gives it."""
    lengths: Sequence[int] | None = None
    """(S,) tokens of each sequence, on the host, if they fill all rows one behind the other."""


def sequence_layout(starts: Sequence[int], lengths: Sequence[int], count: int) -> tuple[Tensor, Tensor]:
    """Where attention finds the tokens of each sequence, and where its results go.

    Args:
        starts: (S,) first token of each sequence, as an index into the flattened N tokens.
        lengths: (S,) tokens of each sequence.
        count: N; what is in no sequence is padding.

    Returns:
        (S, T): the tokens of each sequence; behind its end any others, which nothing before them attends to.
        (N,): the place of each token in the flattened (S * T); for padding any.
    """
    longest = max(lengths)
    # what stands for nothing is spread over all indices: on a GPU, gradients of one row would wait for each other
    sequences = torch.arange(len(starts) * longest).remainder(count).view(len(starts), longest)
    places = torch.arange(count).remainder(sequences.numel())
    for number, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        sequences[number, :length] = torch.arange(start, start + length)
        places[start : start + length] = number * longest + torch.arange(length)
    return sequences, places


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
    attention: Attention,
    paths: Paths,
    cache: Any = None,
    checkpointing: bool = False,
    read: Paths | None = None,
) -> Tensor:
    """`hidden_BLH` after all layers, or what of it is `read`.

    Args:
        layers: Of transformers' HiggsAudioV2Model, adapters or not.
        hidden_BLH: Embeddings of tokens and frames.
        position_embeddings: What the model's `rotary_emb` gives.
        attention: Which tokens are a sequence.
        paths: Which tokens are audio frames.
        cache: Keys and values of earlier tokens, with transformers' `update`.
        checkpointing: Recompute each layer in the backward pass instead of keeping its activations.
        read: The tokens whose result is read, R of them: behind its attention, the last layer runs on these alone.

    Returns:
        (B, L, H); or with `read` (R, H), those on the audio path first.
    """
    last = len(layers) - 1
    for number, layer in enumerate(layers):
        read_here = read if number == last else None
        arguments = (layer, hidden_BLH, position_embeddings, attention, paths, cache, read_here)
        if checkpointing and torch.is_grad_enabled():
            hidden_BLH = checkpoint(run_layer, *arguments, use_reentrant=False)
        else:
            hidden_BLH = run_layer(*arguments)
    return hidden_BLH


def run_layer(
    layer: Any,
    hidden_BLH: Tensor,
    position_embeddings: tuple[Tensor, Tensor],
    attention: Attention,
    paths: Paths,
    cache: Any = None,
    read: Paths | None = None,
) -> Tensor:
    """`hidden_BLH` after one layer; with a mask, equal to transformers' HiggsAudioV2DecoderLayer to the bit. Arguments
    and result as of `run_layers`."""
    audio_norm, text_norm = partial(rms_norm, layer.audio_input_layernorm), partial(rms_norm, layer.input_layernorm)
    normed_BLH = _on_paths(hidden_BLH, paths, audio_norm, text_norm)
    tokens = None if read is None else torch.cat([read.audio, read.text])
    if attention.sequences is not None:
        attended = _attend_to_sequences(layer.self_attn, normed_BLH, position_embeddings, attention, tokens)
    else:
        attended, _ = layer.self_attn(
            hidden_states=normed_BLH,
            position_embeddings=position_embeddings,
            attention_mask=attention.mask,
            past_key_values=cache,
        )
        attended = attended if tokens is None else attended.flatten(0, 1).index_select(0, tokens)

    def audio_update(x: Tensor) -> Tensor:
        return _feed_forward(layer.audio_mlp, rms_norm(layer.audio_post_attention_layernorm, x))

    def text_update(x: Tensor) -> Tensor:
        return _feed_forward(layer.mlp, rms_norm(layer.post_attention_layernorm, x))

    if read is None or tokens is None:
        hidden_BLH = hidden_BLH + attended
        return hidden_BLH + _on_paths(hidden_BLH, paths, audio_update, text_update)
    hidden_RH = hidden_BLH.flatten(0, 1).index_select(0, tokens) + attended
    audio_AH, text_TH = torch.split(hidden_RH, [len(read.audio), len(read.text)])
    return hidden_RH + torch.cat([audio_update(audio_AH), text_update(text_TH)])


def _attend_to_sequences(
    layer: Any,
    hidden_BLH: Tensor,
    position_embeddings: tuple[Tensor, Tensor],
    attention: Attention,
    tokens: Tensor | None,
) -> Tensor:
    """Causal self-attention (B, L, H) of each packed sequence, or (R, H) of the `tokens` (R,): what transformers'
    attention gives, whose layers are used, without a mask."""
    from transformers.models.higgs_audio_v2.modeling_higgs_audio_v2 import apply_rotary_pos_emb

    queries, keys, values = (
        projected.view(*hidden_BLH.shape[:-1], -1, layer.head_dim)
        for projected in project(hidden_BLH.flatten(0, 1), (layer.q_proj, layer.k_proj, layer.v_proj))
    )
    queries, keys = apply_rotary_pos_emb(queries, keys, *position_embeddings, unsqueeze_dim=2)
    flat = [one.flatten(0, 1) for one in (queries, keys, values)]
    # a GPU would wait for the start of each small kernel; a CPU would compute on the padding
    in_turn = attention.lengths is not None and hidden_BLH.device.type == "cpu"
    found_NH = (_in_turn if in_turn else _side_by_side)(layer, flat, attention)
    (attended,) = project(found_NH if tokens is None else found_NH.index_select(0, tokens), (layer.o_proj,))
    return attended.view_as(hidden_BLH) if tokens is None else attended


def _in_turn(layer: Any, tokens: Sequence[Tensor], attention: Attention) -> Tensor:
    """(N, H): the sequences one after the other. `tokens`: queries, keys and values (N, heads, head size)."""
    assert attention.lengths is not None
    lengths = list(attention.lengths)
    parts = zip(*(torch.split(one.transpose(0, 1)[None], lengths, dim=2) for one in tokens), strict=True)
    return torch.cat([_causal(layer, *part).transpose(1, 2)[0].flatten(1) for part in parts])


def _side_by_side(layer: Any, tokens: Sequence[Tensor], attention: Attention) -> Tensor:
    """(N, H): the sequences together, padded to the longest. `tokens`: queries, keys and values (N, heads, head
    size)."""
    assert attention.sequences is not None
    assert attention.places is not None
    shape = attention.sequences.shape
    picked = (one.index_select(0, attention.sequences.flatten()).view(*shape, *one.shape[1:]) for one in tokens)
    found = _causal(layer, *(one.transpose(1, 2) for one in picked))
    return found.transpose(1, 2).flatten(0, 1).flatten(1).index_select(0, attention.places)


def _causal(layer: Any, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """(S, heads, T, head size) of sequences of the same length."""
    return functional.scaled_dot_product_attention(
        queries,
        keys,
        values,
        dropout_p=layer.attention_dropout if layer.training else 0.0,
        is_causal=True,
        scale=layer.scaling,
        enable_gqa=layer.num_key_value_groups > 1,
    )


def _feed_forward(network: Any, tokens_NH: Tensor) -> Tensor:
    """What transformers' HiggsAudioV2MLP, whose layers are used, gives for tokens (N, H)."""
    gates, values = project(tokens_NH, (network.gate_proj, network.up_proj))
    silu = network.config.hidden_act == "silu"
    gated_NI = gated_silu(gates, values) if silu else network.act_fn(gates) * values
    (found_NH,) = project(gated_NI, (network.down_proj,))
    return found_NH


def _on_paths(
    hidden_BLH: Tensor,
    paths: Paths,
    on_audio: Callable[[Tensor], Tensor],
    on_text: Callable[[Tensor], Tensor],
) -> Tensor:
    """(B, L, H): `on_audio` of the tokens on the audio path, and `on_text` of the others."""
    flat_NH = hidden_BLH.flatten(0, 1)
    audio_AH = on_audio(flat_NH.index_select(0, paths.audio))
    text_RH = on_text(flat_NH.index_select(0, paths.text))
    found_NH = torch.empty_like(flat_NH, dtype=text_RH.dtype)
    found_NH.index_copy_(0, paths.audio, audio_AH).index_copy_(0, paths.text, text_RH)
    return found_NH.view_as(hidden_BLH)
