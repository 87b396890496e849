"""Higgs Audio v2 from a folder or the hub: in transformers' form, or as it was first released."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from phonate.audio.whisper import WhisperEncoder
from phonate.config.errors import InputError
from phonate.config.packages import quiet_transformers
from phonate.data.dialogues.tokenizer import TextTokenizer
from phonate.nn.pretrained.loading import load_pretrained, pretrained_file, require
from phonate.nn.pretrained.settings import Dtype, Quantization
from phonate.tasks.cloning.network import conversion
from phonate.tasks.cloning.network.adapters import with_adapters
from phonate.tasks.cloning.network.network import CloningNetwork
from phonate.tasks.cloning.network.settings import NetworkSettings
from phonate.tasks.cloning.network.whisper_projector import WhisperProjector, features_width

TEXT_HEAD = "text_lm_head.weight"
_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"


def load_network(settings: NetworkSettings, device: torch.device) -> CloningNetwork:
    """The pretrained model with fresh adapters, and the Whisper projector if it is wanted.

    Raises:
        InputError: There is no such model, it does not fit, or a layer that is named in `settings` is not in it.
        MissingPackageError: transformers, peft or bitsandbytes is not installed.
    """
    require("transformers", "peft")
    base = load_base(settings.name, settings.dtype, settings.quantization, device, settings.text_head)
    whisper = settings.whisper.enabled
    projector = None
    if whisper:
        encoder = WhisperEncoder(settings.whisper.model, "model.whisper")
        projector = WhisperProjector(features_width(encoder), base.config.hidden_size).to(device)
    adapted = with_adapters(base, settings.lora, whisper)
    return CloningNetwork(adapted, projector)


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
    require("transformers")
    from transformers import GenerationConfig, HiggsAudioV2Config, HiggsAudioV2ForConditionalGeneration

    config: Any
    make_generation: Any = GenerationConfig  # untyped
    values = _document(name, "config.json")
    original = values.get("model_type") == conversion.ORIGINAL_TYPE
    keys = _keys(name)
    try:
        if original:
            with quiet_transformers():
                vocabulary = TextTokenizer.load(name).tokenizer.get_vocab()
            config = HiggsAudioV2Config(**conversion.converted_config(values, vocabulary))
            keys = {found for key in keys if (found := conversion.converted_key(key)) is not None}
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
        options["state_dict"] = _converted_weights(name)
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
        return ids | conversion.RELEASED_SAMPLING
    if (path := pretrained_file(name, "generation_config.json")) is None:
        return ids
    values = _parsed(name, path)
    return {key: value for key, value in values.items() if key not in ("_from_model_config", "transformers_version")}


def _converted_weights(name: str) -> dict[str, Tensor]:
    """All weights of the original release, memory-mapped."""
    from safetensors.torch import load_file

    weights: dict[str, Tensor] = {}
    for path in _shards(name):
        weights |= load_file(path)
    return conversion.converted_weights(weights)


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
        raise InputError(f"model.name: {name}: {path.name} can't be read ({error})") from error


def _shards(name: str) -> list[Path]:
    """The files with the weights of a model. Raises InputError if one is missing."""
    names = [_WEIGHTS]
    if (index := pretrained_file(name, _INDEX)) is not None:
        names = sorted(set(_parsed(name, index).get("weight_map", {}).values()))
    found = [(shard, pretrained_file(name, shard)) for shard in names]
    if missing := [shard for shard, path in found if path is None]:
        raise InputError(f"model.name: {name}: has no {missing[0]}; its weights must be in safetensors")
    return [path for _, path in found if path is not None]


def _document(name: str, file: str) -> dict[str, Any]:
    """A JSON file of a model. Raises InputError if there is none."""
    if (path := pretrained_file(name, file)) is None:
        raise InputError(f"model.name: {name}: the model can't be loaded (no {file} here, and none can be downloaded)")
    return _parsed(name, path)


def _parsed(name: str, path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # of JSON and of UTF-8
        raise InputError(f"model.name: {name}: {path.name} is no JSON ({error})") from error
    if not isinstance(values, dict):
        raise InputError(f"model.name: {name}: {path.name} holds no object")
    return values


def trainable_parameters(network: nn.Module) -> int:
    """How many numbers are trained."""
    return sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad)
