"""Which layers of Higgs Audio v2 get an adapter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from phonate.config.errors import InputError
from phonate.nn.pretrained.adapters import add_adapters, check_targets
from phonate.tasks.cloning.network.settings import CloningLoRA, Mode

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
    wanted = settings.targets if settings.mode == "custom" else TARGETS[settings.mode]
    assert wanted is not None
    targets = _in_transformers_names(wanted, whisper)
    check_targets(model, targets)
    if not targets:
        raise InputError(f"model.lora.targets: {_PROJECTOR} is trained whole and needs no adapter; name other layers")
    return targets


def _in_transformers_names(names: Sequence[str], whisper: bool) -> list[str]:
    """`names` without the Whisper projector, which is new and so trained whole. Raises InputError if there is none."""
    found = []
    for name in names:
        if name == _PROJECTOR:
            if not whisper:
                raise InputError(
                    f"model.lora.targets: {_PROJECTOR} is the projector of Whisper's features, which is off; set "
                    "model.whisper.enabled to true, or leave it out"
                )
        else:
            found.append(OTHER_NAMES.get(name, name))
    return list(dict.fromkeys(found))


def _leave_casts_to_autocast(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """A forward pre-hook of layers with adapters. Without it, under autocast, peft copies the input of each adapter to
    fp32, and autocast copies that to 16 bits again and keeps it for the backward pass: as published, a sixth of what is
    kept for a token."""
    adapted: Any = module
    adapted.cast_input_dtype_enabled = not torch.is_autocast_enabled(inputs[0].device.type)
