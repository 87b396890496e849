"""The network of a recipe: read from files, checked against tokenizer and data, and the memory that a step of it takes.

Models are in transformers' form, or as Higgs Audio v2 was first released: with the layers at the top
(`layers.0.mlp.up_proj.weight`), both heads under `audio_decoder_proj`, embeddings and heads perhaps in two parts, of
which one was frozen, and the configuration of the text model inside that of the whole.

What a layer keeps for the backward pass depends on the kind of adapters, their dropout, the precision and the kernels,
so that it is measured: on one layer and a few tokens, when the network is built. Everything else is counted.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MethodType
from typing import Any, Literal

import torch
from torch import Tensor

from phonate.audio.whisper import WhisperEncoder
from phonate.compute.device import usage_of
from phonate.config.errors import InputError, json_mistake, quiet_transformers, unreadable
from phonate.data.dialogue_tokens import TextTokenizer
from phonate.nn.pretrained import load_pretrained, pretrained_file, require
from phonate.nn.settings import Dtype, Quantization
from phonate.tasks.cloning.network import (
    BLOCK_LOGITS,
    Attention,
    CloningNetwork,
    Paths,
    WhisperProjector,
    features_width,
    run_layer,
    with_adapters,
)
from phonate.tasks.cloning.sequences import BOS, CODEBOOK_SIZE, CODEBOOKS, EOS, CloningTokenizer
from phonate.tasks.cloning.settings import CloningModel

logger = logging.getLogger(__name__)

# ---------------------------------- The original release of Higgs Audio v2 in the form of transformers

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
    checks = {
        "audio_adapter_type": str(original.get("audio_adapter_type", "")).startswith("dual_ffn"),
        "audio_dual_ffn_layers": paths is None or sorted(paths) == layers,
        "audio_ffn_intermediate_size": original.get("audio_ffn_intermediate_size") in (None, text["intermediate_size"]),
        "audio_decoder_proj_num_layers": not original.get("audio_decoder_proj_num_layers"),
        "use_audio_out_self_attention": not original.get("use_audio_out_self_attention"),
        "use_audio_out_embed_projector": not original.get("use_audio_out_embed_projector"),
        "use_rq_transformer": not original.get("use_rq_transformer"),
    }
    for name, supported in checks.items():
        if not supported:
            raise InputError(f"its config.json has {name}={original.get(name)}, which Higgs Audio v2 does not have")


def _rope(text: Mapping[str, Any]) -> dict[str, Any]:
    """Rotary embedding, under its former names or its present ones."""
    if text.get("rope_parameters"):
        return dict(text["rope_parameters"])
    scaling = dict(text.get("rope_scaling") or {"rope_type": "default"})
    return {"rope_theta": text.get("rope_theta", 500000.0), **scaling}


# ------------------------------------------------------ Reading a model from its files, in either form

TEXT_HEAD = "text_lm_head.weight"
_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"


def load_network(settings: CloningModel, device: torch.device) -> CloningNetwork:
    """The pretrained model on `device`: to be trained whole, or with fresh adapters and perhaps a Whisper projector.

    Raises:
        InputError: There is no such model, it does not fit, or a layer that is named in `settings` is not in it.
        MissingPackageError: transformers, peft or bitsandbytes is not installed.
    """
    if settings.strategy == "full":
        return CloningNetwork(load_base(settings.name, "fp32", None, device, settings.text_head))
    require("transformers", "peft", extra="cloning")
    base = load_base(settings.name, settings.dtype, settings.quantization, device, settings.text_head)
    whisper = settings.whisper.enabled
    projector = None
    if whisper:
        encoder = WhisperEncoder(settings.whisper.model, "model.whisper")
        projector = WhisperProjector(features_width(encoder), base.config.hidden_size).to(device)
    adapted = with_adapters(base, settings.lora, whisper)
    return CloningNetwork(adapted, projector)


def run_by_themselves(network: Any) -> list[torch.nn.Module]:
    """The layers of `network`, each with `run_layer` as its method `run`, which is then called."""
    layers: list[Any] = list(network.base.model.layers)
    for layer in layers:
        layer.run = MethodType(run_layer, layer)
    return layers


def load_base(
    name: str,
    dtype: Dtype = "auto",
    quantization: Quantization | Literal["int8"] | None = None,
    device: torch.device | None = None,
    text_head: bool = False,
) -> Any:
    """transformers' HiggsAudioV2ForConditionalGeneration, with its text head if its files have one.

    Args:
        name: A folder, or a name on the hub.
        dtype: What the weights are held in; "auto": as in their files.
        quantization: Hold linear layers in 4 or 8 bits instead.
        device: Where the weights are put; None: the CPU.
        text_head: Whether a model without a text head is refused.

    Raises InputError as `load_pretrained`, for a model of another kind, and for one that can't hold the codes that
    begin and end an audio.
    """
    require("transformers", extra="cloning")
    from transformers import GenerationConfig, HiggsAudioV2Config, HiggsAudioV2ForConditionalGeneration

    config: Any
    make_generation: Any = GenerationConfig  # untyped
    values = _document(name, "config.json")
    original = values.get("model_type") == ORIGINAL_TYPE
    keys = _keys(name)
    try:
        if original:
            with quiet_transformers():
                vocabulary = TextTokenizer.load(name).tokenizer.get_vocab()
            config = HiggsAudioV2Config(**converted_config(values, vocabulary))
            keys = {own_key for key in keys if (own_key := converted_key(key)) is not None}
        else:
            config = _own_config(values)
        check_config(config)
    except InputError as error:
        raise InputError(f"model.name: {name}: {error}") from error
    has_head = any(key.startswith(TEXT_HEAD.removesuffix("weight")) for key in keys)
    if text_head and not has_head:
        raise InputError(
            f"model.name: {name}: its files have no {TEXT_HEAD}, which a loss on text needs; set model.text_head to "
            "false, or use the model as it was released"
        )
    options: dict[str, Any] = {"use_text_head": has_head, "attn_implementation": "sdpa", "config": config}
    options["unquantized"] = ("audio_lm_head", "text_lm_head")
    if original:
        from safetensors.torch import load_file

        weights: dict[str, Tensor] = {}
        for path in _shards(name):
            weights |= load_file(path)  # memory-mapped
        options["state_dict"] = converted_weights(weights)
    model: Any = load_pretrained(name, dtype, quantization, device, HiggsAudioV2ForConditionalGeneration, **options)
    model.config._name_or_path = name
    model.generation_config = make_generation(**_generation(name, config, original))
    return model


def check_config(config: Any) -> None:
    """Raise InputError for a model whose codebooks have no room for the codes that begin and end an audio."""
    codes = (config.audio_stream_bos_id, config.audio_stream_eos_id)
    if not all(0 <= code < config.codebook_size for code in codes):
        raise InputError(
            f"codebook_size {config.codebook_size} in its config.json has no room for the codes {codes[0]} and "
            f"{codes[1]} that begin and end an audio; that of the released model is 1026"
        )


def _own_config(values: dict[str, Any]) -> Any:
    """transformers' configuration. Raises InputError for that of another model, or wrong values."""
    from transformers import HiggsAudioV2Config

    if values.get("model_type") != "higgs_audio_v2":
        raise InputError(f"is of type {values.get('model_type')}; a model of Higgs Audio v2 is expected")
    read: Any = HiggsAudioV2Config
    try:
        return read.from_dict(values)
    except Exception as error:  # each kind of mistake raises its own errors
        raise InputError(f"its config.json is wrong ({' '.join(str(error).split())})") from error


def _generation(name: str, config: Any, original: bool) -> dict[str, Any]:
    """Values of generation_config.json. transformers drops those that it does not know, such as ras_win_len, from a
    file that says it was derived from a model's configuration."""
    ids = {key: getattr(config, key) for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    if original:
        return ids | RELEASED_SAMPLING
    if (path := pretrained_file(name, "generation_config.json")) is None:
        return ids
    values = _parsed(name, path)
    return {key: value for key, value in values.items() if key not in ("_from_model_config", "transformers_version")}


def _keys(name: str) -> set[str]:
    """Names of all weights in the files of a model."""
    from safetensors import SafetensorError, safe_open

    if (index := pretrained_file(name, _INDEX)) is not None:
        return set(_parsed(name, index).get("weight_map", {}))
    (path,) = _shards(name)
    try:
        with safe_open(path, framework="pt") as opened:
            return set(opened.keys())
    except (SafetensorError, OSError) as error:
        raise InputError(f"model.name: {name}: {path.name} can't be read ({unreadable(error)})") from error


def _shards(name: str) -> list[Path]:
    """The files with the weights of a model. Raises InputError if one is missing."""
    names = [_WEIGHTS]
    if (index := pretrained_file(name, _INDEX)) is not None:
        names = sorted(set(_parsed(name, index).get("weight_map", {}).values()))
    files = [(shard, pretrained_file(name, shard)) for shard in names]
    if missing := [shard for shard, path in files if path is None]:
        raise InputError(f"model.name: {name}: has no {missing[0]}; its weights must be in safetensors")
    return [path for _, path in files if path is not None]


def _document(name: str, file: str) -> dict[str, Any]:
    """A JSON file of a model. Raises InputError if there is none."""
    if (path := pretrained_file(name, file)) is None:
        raise InputError(f"model.name: {name}: the model can't be loaded (no {file} here, and none can be downloaded)")
    return _parsed(name, path)


def _parsed(name: str, path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # of JSON and of UTF-8
        raise InputError(f"model.name: {name}: {path.name} is no JSON ({json_mistake(error)})") from error
    if not isinstance(values, dict):
        raise InputError(f"model.name: {name}: {path.name} holds no object")
    return values


# ----------------------------- The network of a recipe, and whether it fits the tokenizer and the data


def check_fit(network: CloningNetwork, tokenizer: CloningTokenizer, max_length: int) -> None:
    """Raise InputError for a network with other codebooks or tokens than samples are written with, or one that takes
    no sequences of `max_length`."""
    config, special = network.config, tokenizer.specials
    expected = {
        "num_codebooks": CODEBOOKS,
        "codebook_size": CODEBOOK_SIZE + 2,
        "audio_stream_bos_id": BOS,
        "audio_stream_eos_id": EOS,
        "audio_token_id": special.frame,
        "audio_delay_token_id": special.delay,
        "audio_bos_token_id": special.audio_start,
    }
    for name, value in expected.items():
        if getattr(config, name) != value:
            raise InputError(
                f"model.name: its config.json has {name} {getattr(config, name)}; codec and tokenizer need {value}"
            )
    if len(tokenizer) > config.vocab_size:
        raise InputError(f"model.name: its tokenizer has {len(tokenizer)} tokens, its model {config.vocab_size}")
    longest = config.max_position_embeddings
    if longest is not None and max_length > longest:
        raise InputError(f"data.max_length: {max_length}; this model takes {longest} at most")


# ---- How much memory a training step takes, and whether activations must be recomputed to make it fit

OPTIMIZER_BYTES = 12.0
"""Per trained number, beside its value: the gradient and AdamW's two moments, in fp32."""
LOGIT_BYTES = 16.0
"""Per logit, at most: the logit, its fp32 copy, log-probabilities and gradient."""
USABLE = 0.85
"""Share of the free memory that is planned with; the rest is for fragmentation and what is not counted."""
_PROBES = (64, 192)
"""Tokens of the two measurements, whose difference leaves out what does not grow with the tokens."""


@dataclass(frozen=True)
class Load:
    """The largest micro-batch."""

    tokens: int
    """B * L."""
    audio_positions: int
    """Positions with audio logits."""
    text_positions: int
    """Positions with text logits."""


@dataclass(frozen=True)
class StepMemory:
    """Bytes that a training step takes beside the weights."""

    optimizer: float
    """Gradients and moments of what is trained."""
    layers: int
    layer_token: float
    """What one layer keeps for each token."""
    hidden_token: float
    """A token's hidden state, all that a checkpointed layer keeps."""
    audio_position: float
    """Logits of one position and what the loss makes of them."""
    text_position: float
    text_block: int
    """Positions whose text logits are held at once."""

    def needed(self, load: Load, checkpointing: bool) -> float:
        """Bytes at the peak, which is at the beginning of the backward pass.

        One layer's activations come on top: its gradients, or with checkpointing what is recomputed.
        """
        layer_bytes = self.hidden_token if checkpointing else self.layer_token
        working = (2.0 if checkpointing else 1.0) * self.layer_token
        text_positions = min(load.text_positions, self.text_block)
        logits = load.audio_positions * self.audio_position + text_positions * self.text_position
        return self.optimizer + load.tokens * (self.layers * layer_bytes + working) + logits


def measure(network: CloningNetwork, autocast: torch.dtype | None = None) -> StepMemory:
    """What a step of `network` takes when it computes in `autocast` (None: in the precision of its weights)."""
    base = network.base
    weight = base.model.embed_tokens.weight
    few, many = (_bytes_of_a_layer(network, tokens, autocast) for tokens in _PROBES)
    trained = sum(one.numel() for one in network.parameters() if one.requires_grad)
    text_width = 0 if base.text_lm_head is None else network.config.vocab_size
    return StepMemory(
        optimizer=OPTIMIZER_BYTES * trained,
        layers=len(base.model.layers),
        layer_token=(many - few) / (_PROBES[1] - _PROBES[0]),
        hidden_token=float(network.config.hidden_size * weight.element_size()),
        audio_position=LOGIT_BYTES * network.config.num_codebooks * network.config.codebook_size,
        text_position=LOGIT_BYTES * text_width,
        text_block=BLOCK_LOGITS // network.config.vocab_size,
    )


def choose_checkpointing(
    network: CloningNetwork, setting: Literal["auto"] | bool, load: Load, autocast: torch.dtype | None = None
) -> str:
    """Turn gradient checkpointing of `network` on or off, log why in one line, and return that line.

    Args:
        network: On the device that it is trained on.
        wanted: "auto": on if the largest micro-batch would not fit otherwise.
        load: That micro-batch.
        autocast: The precision of training, if it is not that of the weights.
    """
    step = measure(network, autocast)
    device = network.base.model.embed_tokens.weight.device
    usage = usage_of(device)()
    without, with_it = step.needed(load, checkpointing=False), step.needed(load, checkpointing=True)
    free = USABLE * (usage.total - usage.used)
    network.checkpointing = without > free if setting == "auto" else setting
    line = (
        f"gradient checkpointing {'on' if network.checkpointing else 'off'}"
        f"{'' if setting == 'auto' else ' as set'}: a micro-batch of {load.tokens} tokens takes about "
        f"{without / 1e9:.1f} GB without it, {with_it / 1e9:.1f} GB with it; {free / 1e9:.1f} GB are available on "
        f"{device}"
    )
    if (with_it if network.checkpointing else without) > free:
        logger.warning("%s. That is too little: lower training.batch_size or data.max_length", line)
    else:
        logger.info("%s", line)
    return line


def _bytes_of_a_layer(network: CloningNetwork, tokens: int, autocast: torch.dtype | None) -> float:
    """Bytes that the first layer keeps for the backward pass of one sequence, half of it audio."""
    base: Any = network.base
    weight = base.model.embed_tokens.weight
    hidden_1LH = torch.randn(
        1, tokens, network.config.hidden_size, dtype=weight.dtype, device=weight.device, requires_grad=True
    )
    positions_1L = torch.arange(tokens, device=weight.device)[None]
    rotary = base.model.rotary_emb(hidden_1LH, positions_1L)
    audio, text = positions_1L[0, : tokens // 2], positions_1L[0, tokens // 2 :]
    storages: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    training = network.training
    network.train()
    with torch.enable_grad(), torch.autocast(weight.device.type, dtype=autocast, enabled=autocast is not None):
        ends = torch.tensor([0, tokens], dtype=torch.int32, device=weight.device)
        attention = Attention(sequences=positions_1L, places=positions_1L[0], cu_seqlens=ends)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            output = run_layer(base.model.layers[0], hidden_1LH, rotary, attention, Paths(audio, text))
    network.train(training)
    for shared in (*network.parameters(), *rotary, positions_1L):
        storages.pop(shared.untyped_storage().data_ptr(), None)
    del output  # until here it held what was kept, so that no storage was counted twice or reused
    return float(sum(storages.values()))
