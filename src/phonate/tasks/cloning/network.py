"""The Higgs Audio v2 network with adapters, as it is trained.

Shapes: B rows of L tokens, N = B * L, H width of the model; S sequences of at most T tokens; R tokens that are read;
A frames of K codebooks; M and P positions with text and audio labels.

The released checkpoint was trained without adapters. Their gate is zero at first, so that training starts from the
model as it is, to the bit, and lets features in as far as they help.

A layer has two feed-forward networks and two pairs of norms, one for text tokens and one for audio frames, and one
attention for both. transformers picks the tokens of a path with boolean masks, six times in each layer, which waits for
the device and breaks the graph of torch.compile each time. Where the tokens are is known before the batch is sent, so
that these functions run transformers' own modules on rows picked by index. In the same way attention, alone of all,
runs on the packed sequences side by side instead of on long rows in which most pairs of tokens are masked; in 16 bits
on a GPU, on them where they stand. (torch's FlexAttention could, too, but is fast only when it is compiled.)

The forward pass gives all that a loss needs, so that DistributedDataParallel and torch.compile see one call of one
module. Heads run at the positions that have labels and nowhere else.
"""

from __future__ import annotations

import hashlib
import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from phonate.audio.decoding import FloatArray, read_audio
from phonate.audio.whisper import WhisperEncoder
from phonate.config.errors import InputError
from phonate.data.dialogues import Audio
from phonate.nn.norms import LayerNorm
from phonate.nn.pretrained import add_adapters, check_targets, gated_silu, project, rms_norm
from phonate.nn.products import causal_attention
from phonate.nn.sequences import on_processor
from phonate.tasks.cloning.settings import CloningLoRA, Mode

# ------------------------------------------------------- Which layers of Higgs Audio v2 get an adapter

_ATTENTION = tuple(f"self_attn.{name}_proj" for name in "qkvo")
_TEXT = tuple(f"mlp.{name}_proj" for name in ("gate", "up", "down"))
_AUDIO = tuple(f"audio_mlp.{name}_proj" for name in ("gate", "up", "down"))
_AUDIO_HEAD = "audio_lm_head"
_PROJECTOR = "audio_encoder_proj.linear"

TARGETS: dict[Mode, tuple[str, ...]] = {
    "comprehensive": (*_ATTENTION, *_TEXT, *_AUDIO, _AUDIO_HEAD),
    "audio_focused": ("self_attn.q_proj", "self_attn.v_proj", *_AUDIO, _AUDIO_HEAD),
    "attention_only": _ATTENTION,
}
"""The layers of each mode, by the ends of their names in transformers."""

OTHER_NAMES = {
    "audio_head.projector.linear": _AUDIO_HEAD,
    "audio_decoder_proj.audio_lm_head": _AUDIO_HEAD,
    "audio_decoder_proj.text_lm_head": "text_lm_head",
    "audio_codebook_embeddings": "embed_audio_tokens.embed_audio_tokens",
}
"""Names of the original release, and those that are used for its layers elsewhere -> transformers' names."""


def with_adapters(model: nn.Module, settings: CloningLoRA, whisper: bool) -> nn.Module:
    """`model` with fresh adapters, its own weights frozen.

    Args:
        model: transformers' HiggsAudioV2ForConditionalGeneration.
        settings: The adapters.
        whisper: Whether there is a Whisper projector.

    Raises InputError for a target or a module to save that is not in the model, naming the nearest ones.
    """
    named = settings.modules_to_save
    if named is not None:
        settings = settings.model_copy(update={"modules_to_save": tuple(OTHER_NAMES.get(name, name) for name in named)})
    adapted = add_adapters(model, settings, resolved_targets(model, settings, whisper))
    for module in adapted.modules():
        if hasattr(module, "cast_input_dtype_enabled"):
            module.register_forward_pre_hook(_leave_casts_to_autocast)
    return adapted


def resolved_targets(model: nn.Module, settings: CloningLoRA, whisper: bool) -> list[str]:
    """The layers that get an adapter, by the ends of their names in `model`. Arguments, errors: as `with_adapters`."""
    names = settings.targets if settings.mode == "custom" else TARGETS[settings.mode]
    assert names is not None
    if _PROJECTOR in names and not whisper:
        raise InputError(
            f"model.lora.targets: {_PROJECTOR} is the projector of Whisper's features, which is off; set "
            "model.whisper.enabled to true, or leave it out"
        )
    targets = list(dict.fromkeys(OTHER_NAMES.get(name, name) for name in names if name != _PROJECTOR))
    check_targets(model, targets)
    if not targets:
        raise InputError(f"model.lora.targets: {_PROJECTOR} is trained whole and needs no adapter; name other layers")
    return targets


def _leave_casts_to_autocast(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """A forward pre-hook of layers with adapters. Without it, under autocast, peft copies the input of each adapter to
    fp32, and autocast copies that to 16 bits again and keeps it for the backward pass: as published, a sixth of what is
    kept for a token."""
    adapted: Any = module
    adapted.cast_input_dtype_enabled = not torch.is_autocast_enabled(inputs[0].device.type)


# ---------------------------------------------------------------- Features of a frozen Whisper encoder


class WhisperProjector(nn.Module):
    """Layer norm, a linear layer, and the gate."""

    def __init__(self, width_in: int, width: int) -> None:
        """`width_in`: of the encoder's features; `width`: of the model."""
        super().__init__()
        self.norm = LayerNorm(width_in)
        self.linear = nn.Linear(width_in, width)
        self.gate = nn.Parameter(torch.zeros(()))

    def forward(self, features: Tensor) -> Tensor:
        """Features (..., width_in) -> what is added to embeddings (..., width)."""
        projected: Tensor = self.gate * self.linear(self.norm(features))
        return projected


@dataclass(frozen=True)
class WhisperConditioning:
    """The encoder and the projector of a model that was trained with them."""

    encoder: WhisperEncoder
    projector: WhisperProjector


def whisper_features(encoder: WhisperEncoder, waveform: FloatArray, sample_rate: int, frames: int) -> FloatArray:
    """Whisper's features of a recording, as many as it has frames of codes: (frames, width of the encoder).

    Whisper's 50 features a second are averaged over each frame of the codec, 25 a second.
    """
    features_TC = torch.from_numpy(encoder(waveform, sample_rate))
    averaged = F.adaptive_avg_pool1d(features_TC.T[None], frames)[0].T
    return np.ascontiguousarray(averaged.numpy())


def features_width(encoder: WhisperEncoder) -> int:
    """Width of the encoder's features."""
    return int(encoder(np.zeros(1600, dtype=np.float32), 16000).shape[1])


# --------------------------------- The layers of Higgs Audio v2, each token on its path: text or audio


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
    cu_seqlens: Tensor | None = None
    """(S + 1,) int32: where each sequence begins, and the last one ends, if they fill all rows one behind the other."""
    lengths: Sequence[int] | None = None
    """(S,) the tokens of each, where they are to be computed one after the other."""


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
    visible_BLL = (sequence_BL[:, :, None] == sequence_BL[:, None, :]) & causal_LL
    width = -(-length // _MASK_ALIGNMENT) * _MASK_ALIGNMENT
    mask = torch.zeros(rows, 1, length, width, dtype=dtype, device=position_ids.device)[..., :length]
    return mask.masked_fill_(~visible_BLL[:, None], -torch.inf)


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
        run: Any = layer.run if hasattr(layer, "run") else partial(run_layer, layer)
        arguments = (hidden_BLH, position_embeddings, attention, paths, cache, read_here)
        if checkpointing and torch.is_grad_enabled():
            hidden_BLH = checkpoint(run, *arguments, use_reentrant=False)
        else:
            hidden_BLH = run(*arguments)
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
    cosines, sines = (one.flatten(0, 1) for one in position_embeddings)
    projected = project(hidden_BLH.flatten(0, 1), (layer.q_proj, layer.k_proj, layer.v_proj))
    heads = [one.view(len(one), -1, layer.head_dim) for one in projected]
    context_NH = _attend(layer, heads, (cosines, sines), attention)
    (attended,) = project(context_NH if tokens is None else context_NH.index_select(0, tokens), (layer.o_proj,))
    return attended.view_as(hidden_BLH) if tokens is None else attended


def _attend(layer: Any, tokens: Sequence[Tensor], rotation: tuple[Tensor, Tensor], attention: Attention) -> Tensor:
    """(N, H). `tokens`: queries, keys and values (N, heads, head size), to be turned by the cosines and sines (N, head
    size) of `rotation`."""
    from transformers.models.higgs_audio_v2.modeling_higgs_audio_v2 import apply_rotary_pos_emb

    queries, keys, values = tokens
    if attention.cu_seqlens is not None and not (layer.training and layer.attention_dropout):
        attended = causal_attention(queries, keys, values, rotation, attention.cu_seqlens, layer.scaling)
        if attended is not None:
            return attended.flatten(1)
    tokens = (*apply_rotary_pos_emb(queries, keys, *rotation, unsqueeze_dim=1), values)
    if attention.cu_seqlens is not None and _takes_varlen(layer, tokens[0]):
        return _unpadded(layer, tokens, attention)
    if attention.lengths is not None:
        return _in_turn(layer, tokens, attention.lengths)
    return _side_by_side(layer, tokens, attention)


def _takes_varlen(layer: Any, queries: Tensor) -> bool:
    """Whether flash attention's kernels for sequences of different lengths take these queries. They have no dropout."""
    dropout = layer.training and layer.attention_dropout
    sixteen_bits = query_dtype(queries) in (torch.bfloat16, torch.float16)
    fits = queries.shape[-1] % 8 == 0 and queries.shape[-1] <= _LARGEST_HEAD
    return queries.device.type == "cuda" and sixteen_bits and fits and not dropout


_LARGEST_HEAD = 256
"""Of flash attention."""


@cache
def attends_unpadded(device: torch.device) -> bool:
    """Whether packed sequences can be attended to where they stand: on a CPU, and where a GPU and this torch have flash
    attention's kernels. Asked outside the network, whose graph can't be compiled through it."""
    if device.type != "cuda":
        return device.type == "cpu"
    if torch.version.hip is not None or not torch.backends.cuda.is_flash_attention_available():
        return False
    from torch.nn.attention import varlen  # brings torch's compiler, which takes a second or two

    in_groups = "enable_gqa" in inspect.signature(varlen.varlen_attn).parameters  # not before torch 2.12
    return in_groups and torch.cuda.get_device_capability(device) >= (8, 0)


def _unpadded(layer: Any, tokens: Sequence[Tensor], attention: Attention) -> Tensor:
    """(N, H): the sequences together, without padding. `tokens`: queries, keys and values (N, heads, head size)."""
    from torch.nn.attention import varlen  # as above

    assert attention.cu_seqlens is not None
    assert attention.sequences is not None
    queries, keys, values = (one.to(query_dtype(one)) for one in tokens)
    longest = attention.sequences.shape[1]
    context: Any = varlen.varlen_attn(
        queries,
        keys,
        values,
        attention.cu_seqlens,
        attention.cu_seqlens,
        longest,
        longest,
        scale=layer.scaling,
        window_size=(-1, 0),  # causal
        enable_gqa=layer.num_key_value_groups > 1,
    )
    attended: Tensor = context.flatten(1)
    return attended


def _in_turn(layer: Any, tokens: Sequence[Tensor], lengths: Sequence[int]) -> Tensor:
    """(N, H): the sequences one after the other. `tokens`: queries, keys and values (N, heads, head size)."""
    parts = zip(*(torch.split(one.transpose(0, 1)[None], list(lengths), 2) for one in tokens), strict=True)
    return torch.cat([_causal(layer, *part)[0].transpose(0, 1).flatten(1) for part in parts])


def _side_by_side(layer: Any, tokens: Sequence[Tensor], attention: Attention) -> Tensor:
    """(N, H): the sequences together, padded to the longest. `tokens`: queries, keys and values (N, heads, head
    size)."""
    assert attention.sequences is not None
    assert attention.places is not None
    shape = attention.sequences.shape
    picked = (one.index_select(0, attention.sequences.flatten()).view(*shape, *one.shape[1:]) for one in tokens)
    context = _causal(layer, *(one.transpose(1, 2) for one in picked))
    return context.transpose(1, 2).flatten(0, 1).flatten(1).index_select(0, attention.places)


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
    (output_NH,) = project(gated_NI, (network.down_proj,))
    return output_NH


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
    output_NH = torch.empty_like(flat_NH, dtype=text_RH.dtype)
    output_NH.index_copy_(0, paths.audio, audio_AH).index_copy_(0, paths.text, text_RH)
    return output_NH.view_as(hidden_BLH)


# ------------------------------------ Whisper's features of references, computed once and kept on disk


class WhisperCache:
    """Features of references, in files. (They can't be computed in a loader's process: a forked copy of the encoder's
    library never answers.)"""

    def __init__(self, model: str, cache: Path) -> None:
        """`model`: a size of Whisper, or a folder; `cache`: where to keep features."""
        self.model = model
        self.cache = cache

    @cached_property
    def _encoder(self) -> WhisperEncoder:
        return WhisperEncoder(self.model, "model.whisper", threads=1)

    def __call__(self, audio: Audio, frames: int) -> Path:
        """A .npy file with the features (frames, C) of an audio that has so many frames of codes.

        Raises DataError if the recording can't be read, InputError without the Whisper model.
        """
        waveform, rate = read_audio(audio.path, offset=audio.start, duration=audio.duration)
        digest = hashlib.sha256(waveform.tobytes())
        digest.update(f"{rate} {frames}".encode())
        path = self.cache / self._encoder.fingerprint.replace("/", "-") / f"{digest.hexdigest()[:32]}.npy"
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            beside = path.with_name(f"{path.stem}.{os.getpid()}.new")
            with beside.open("wb") as file:
                np.save(file, whisper_features(self._encoder, waveform, rate, frames))
            beside.replace(path)
        return path


# ------------------------------------------ The model that clones voices: Higgs Audio v2 with adapters


@dataclass(frozen=True)
class NetworkOutput:
    """What the network computes."""

    audio_logits: Tensor
    """(P, K, codebook size)"""
    text_logits: Tensor | None
    """(M, vocabulary); None for a model without a text head, and where the network computed the loss itself."""
    text_loss: Tensor | None
    """The sum of the cross entropy of text tokens, in nats; None where no labels were given."""
    hidden: Tensor | None
    """(N, H) after the last norm; None where the last layer ran on the tokens with labels alone."""


BLOCK_LOGITS = 2**24
"""Text logits that are held at once: 64 MiB in fp32. The published model has 128,256 for each token."""


def text_loss(
    head: Callable[[Tensor], Tensor], hidden_MH: Tensor, labels_M: Tensor, vocabulary: int, smoothing: float = 0.0
) -> Tensor:
    """Sum of the cross entropy of text tokens, in nats.

    Logits are computed block by block, and again in the backward pass, so that memory does not grow with M.
    """

    def of_block(hidden_BH: Tensor, labels_B: Tensor) -> Tensor:
        return F.cross_entropy(head(hidden_BH).float(), labels_B, reduction="sum", label_smoothing=smoothing)

    rows = max(1, BLOCK_LOGITS // vocabulary)
    if len(labels_M) <= rows:
        return of_block(hidden_MH, labels_M)
    blocks = zip(torch.split(hidden_MH, rows), torch.split(labels_M, rows), strict=True)
    return torch.stack([checkpoint(of_block, *block, use_reentrant=False) for block in blocks]).sum()


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
        cu_seqlens: Tensor | None = None,
        read_frames: Tensor | None = None,
        read_others: Tensor | None = None,
        whisper_positions: Tensor | None = None,
        whisper_features: Tensor | None = None,
        text_labels: Tensor | None = None,
        label_smoothing: float = 0.0,
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
            cu_seqlens: (S + 1,) int32: where each sequence begins, and the last one ends, if they fill all rows one
                behind the other. With these, attention needs no padding on a CPU, and in 16 bits on a GPU that
                `attends_unpadded`.
            read_frames: Those of `frame_positions` that are among `text_positions` or `audio_positions`: with these,
                the last layer runs where heads do, and there are no hidden states of other tokens.
            read_others: Those of `other_positions` that are.
            whisper_positions: (E,) where features of Whisper are added; needs a Whisper projector.
            whisper_features: (E, width of the encoder).
            text_labels: (M,) tokens: the loss of text is computed instead of text logits.
            label_smoothing: Of that loss.
        """
        base = self.base
        embedded_BLH = self._embedded(input_ids, frames, frame_positions, whisper_positions, whisper_features)
        if sequences is None:
            attention = Attention(mask=block_causal_mask(position_ids, query_dtype(embedded_BLH)))
        else:
            # a GPU would wait for the start of each small kernel, and a compiler compile for each length
            lengths = None if cu_seqlens is None or not on_processor(cu_seqlens) else cu_seqlens.diff().tolist()
            attention = Attention(None, sequences, places, cu_seqlens, lengths)
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
        (logits_PV,) = project(hidden_NH.index_select(0, audio_positions), (base.audio_lm_head,))
        text_MV = of_text = None
        if base.text_lm_head is not None:
            text_MH = hidden_NH.index_select(0, text_positions)
            if text_labels is None:
                text_MV = base.text_lm_head(text_MH)
            else:
                vocabulary = self.config.vocab_size
                of_text = text_loss(base.text_lm_head, text_MH, text_labels, vocabulary, label_smoothing)
        codebooks = (self.config.num_codebooks, self.config.codebook_size)
        hidden = hidden_NH if read is None else None
        return NetworkOutput(logits_PV.view(-1, *codebooks), text_MV, of_text, hidden)

    def _embedded(
        self,
        input_ids: Tensor,
        frames: Tensor,
        frame_positions: Tensor,
        whisper_positions: Tensor | None,
        whisper_features: Tensor | None,
    ) -> Tensor:
        """Embeddings (B, L, H) of tokens, of frames in their places, and of what Whisper hears."""
        base = self.base
        embedded_NH = base.model.embed_tokens(input_ids).flatten(0, 1)
        embedded_NH = embedded_NH.index_copy(0, frame_positions, _embed_frames(base.model.embed_audio_tokens, frames))
        if self.whisper_projector is not None and whisper_features is not None:
            whisper_EH = self.whisper_projector(whisper_features).to(embedded_NH.dtype)
            embedded_NH = embedded_NH.index_add(0, whisper_positions, whisper_EH)
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
        embedded: Tensor = embeddings(frames)
        return embedded
    return functional.embedding_bag(frames + embeddings.audio_tokens_offsets, table.weight, mode="sum")
