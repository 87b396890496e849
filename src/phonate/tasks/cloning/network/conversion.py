"""The original release of Higgs Audio v2 in the form of transformers: names of its weights, and its configuration.

The release has the layers at the top (`layers.0.mlp.up_proj.weight`), both heads under `audio_decoder_proj`, and may
hold embeddings and heads in two parts, of which one was frozen. Its configuration has that of the text model inside.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from phonate.config.errors import InputError

logger = logging.getLogger(__name__)

ORIGINAL_TYPE = "higgs_audio"
"""`model_type` of the release; transformers' is higgs_audio_v2."""

_PREFIXES = (
    ("audio_codebook_embeddings.", "model.embed_audio_tokens.embed_audio_tokens."),
    ("audio_decoder_proj.audio_lm_head.", "audio_lm_head."),
    ("audio_decoder_proj.text_lm_head.", "text_lm_head."),
    ("layers.", "model.layers."),
    ("embed_tokens.", "model.embed_tokens."),
    ("norm.", "model.norm."),
)
_COMPUTED = ("audio_codebook_weights", "rotary_emb.inv_freq", "rotary_emb.original_inv_freq")
"""Buffers that are no weights."""
_WHISPER = ("audio_tower.", "audio_encoder_proj.")
_PARTS = (
    ("embedding_frozen.weight", "embedding_trainable.weight"),
    ("linear_frozen.weight", "linear_trainable.weight"),
)
_TOKENS = {
    "audio_token_id": "<|AUDIO_OUT|>",
    "audio_bos_token_id": "<|audio_out_bos|>",
    "audio_delay_token_id": "<|reserved_special_token_6|>",
    "bos_token_id": "<|begin_of_text|>",
    "eos_token_id": "<|eot_id|>",
    "pad_token_id": "<|end_of_text|>",
}
_TEXT_VALUES = (
    "attention_bias",
    "attention_dropout",
    "head_dim",
    "hidden_act",
    "hidden_size",
    "initializer_range",
    "intermediate_size",
    "max_position_embeddings",
    "mlp_bias",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "rms_norm_eps",
    "vocab_size",
)
RELEASED_SAMPLING = {"ras_win_len": 7, "ras_win_max_num_repeat": 2}
"""What the release is sampled with: no code more than twice in seven frames."""


def converted_key(key: str) -> str | None:
    """transformers' name of a weight of the release; None for what is no weight of this model.

    Raises InputError for a name that the release does not have.
    """
    if key.endswith(_COMPUTED) or key.startswith(_WHISPER):
        return None
    for prefix, other in _PREFIXES:
        if key.startswith(prefix):
            return other + key.removeprefix(prefix)
    raise InputError(f"{key}: no weight of Higgs Audio v2 has this name")


def converted_weights(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights of the release under transformers' names, those in two parts joined. Raises InputError for an unknown
    one."""
    if any(key.startswith(_WHISPER) for key in weights):
        logger.warning("model.name: the Whisper encoder of the checkpoint is not used; see model.whisper")
    named = {name: tensor for key, tensor in weights.items() if (name := converted_key(key)) is not None}
    for frozen, trainable in _PARTS:
        for name in [name for name in named if name.endswith(frozen)]:
            owner = name.removesuffix(frozen)
            if owner + trainable not in named:
                raise InputError(f"{name}: its other part, {owner}{trainable}, is missing")
            named[f"{owner}weight"] = torch.cat([named.pop(name), named.pop(owner + trainable)])
    return named


def converted_config(original: Mapping[str, Any], token_ids: Mapping[str, int]) -> dict[str, Any]:
    """transformers' configuration for that of the release.

    Args:
        original: The release's config.json.
        token_ids: The tokenizer's vocabulary: the release looks its tokens up by name.

    Raises InputError for a network that transformers does not have, or a token that is missing.
    """
    _check_supported(original)
    text = original["text_config"]
    values = {name: text[name] for name in _TEXT_VALUES if name in text}
    values["rope_parameters"] = _rope(text)
    for name, token in _TOKENS.items():
        if token not in token_ids:
            raise InputError(f"the tokenizer has no token {token}")
        values[name] = token_ids[token]
    return values | {
        "num_codebooks": original["audio_num_codebooks"],
        "codebook_size": original["audio_codebook_size"] + 2,  # the release adds the codes before and after a stream
        "audio_stream_bos_id": original["audio_stream_bos_id"],
        "audio_stream_eos_id": original["audio_stream_eos_id"],
        "tie_word_embeddings": False,
    }


def _check_supported(original: Mapping[str, Any]) -> None:
    """Raise InputError for a kind of network that transformers' HiggsAudioV2Model is not."""
    text = original.get("text_config") or {}
    missing = [name for name in ("audio_num_codebooks", "audio_codebook_size") if name not in original]
    if missing or "hidden_size" not in text:
        raise InputError(f"its config.json has no {(missing or ['text_config.hidden_size'])[0]}")
    layers = list(range(text["num_hidden_layers"]))
    paths = original.get("audio_dual_ffn_layers")
    found = {
        "audio_adapter_type": str(original.get("audio_adapter_type", "")).startswith("dual_ffn"),
        "audio_dual_ffn_layers": paths is None or sorted(paths) == layers,
        "audio_ffn_intermediate_size": original.get("audio_ffn_intermediate_size") in (None, text["intermediate_size"]),
        "audio_decoder_proj_num_layers": not original.get("audio_decoder_proj_num_layers"),
        "use_audio_out_self_attention": not original.get("use_audio_out_self_attention"),
        "use_audio_out_embed_projector": not original.get("use_audio_out_embed_projector"),
        "use_rq_transformer": not original.get("use_rq_transformer"),
    }
    for name, supported in found.items():
        if not supported:
            raise InputError(f"its config.json has {name}={original.get(name)}, which Higgs Audio v2 does not have")


def _rope(text: Mapping[str, Any]) -> dict[str, Any]:
    """Rotary embedding, under its former names or its present ones."""
    if text.get("rope_parameters"):
        return dict(text["rope_parameters"])
    scaling = dict(text.get("rope_scaling") or {"rope_type": "default"})
    return {"rope_theta": text.get("rope_theta", 500000.0), **scaling}
