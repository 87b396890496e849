"""Settings of the model that clones voices: its adapters, and the optional Whisper encoder. Free of torch."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from phonate.config.settings import Settings
from phonate.nn.pretrained.settings import Dtype, LoRASettings, Quantization

Mode = Literal["comprehensive", "audio_focused", "attention_only", "custom"]


class CloningLoRA(LoRASettings):
    """Low-rank adapters beside the layers of Higgs Audio v2."""

    refused_keys: ClassVar = {
        "enable_lora_for_audio_head": "model.lora.mode says it: comprehensive and audio_focused adapt the audio head, "
        "attention_only does not; for other choices set mode to custom and list the layers in targets, such as "
        "[self_attn.q_proj, audio_lm_head]",
        "enable_lora_for_audio_projector": "the released model has no projector of audio features; "
        "model.whisper.enabled adds one, which is trained whole and needs no adapter",
    }

    mode: Mode = "comprehensive"
    """Layers that get an adapter. comprehensive: attention, both feed-forward networks and the audio head.
    audio_focused: queries, values, the feed-forward network of audio and the audio head. attention_only: attention.
    custom: `targets`."""
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    """Dropout on the inputs of an adapter."""
    targets: tuple[str, ...] | None = None
    """Ends of the names of the layers that get an adapter, for `mode: custom`, such as [self_attn.q_proj,
    audio_lm_head]. Names of the original release (audio_decoder_proj.audio_lm_head) and audio_head.projector.linear
    are understood as well."""

    @model_validator(mode="after")
    def _targets_are_custom(self) -> Self:
        if self.mode == "custom" and not self.targets:
            raise ValueError("mode custom needs targets, the names of the layers that get an adapter")
        if self.mode != "custom" and self.targets is not None:
            raise ValueError(f"targets belong to mode custom; this is mode {self.mode}")
        return self


class WhisperProjector(Settings):
    """Features of a frozen Whisper encoder (Radford et al. 2022, https://arxiv.org/abs/2212.04356) of the reference,
    beside its codes. The released model was trained without them, so that the projector starts from nothing; its output
    is multiplied by a trained gate, which is zero at first."""

    enabled: bool = False
    """Condition on Whisper's features."""
    model: str = "base"
    """The encoder: a size such as base or large-v3, or a folder with a model of faster-whisper."""


class NetworkSettings(Settings):
    """The network: the pretrained model, and what is trained beside it."""

    name: str = "bosonai/higgs-audio-v2-generation-3B-base"
    """A folder with a model of Higgs Audio v2, in transformers' form or as it was released, or its name on the hub."""
    lora: CloningLoRA = CloningLoRA()
    """Adapters."""
    dtype: Dtype = "auto"
    """What the frozen weights are held in; auto: as in their files. Trained weights are always fp32."""
    quantization: Quantization | None = None
    """Hold the frozen linear layers in 4 bits (Dettmers et al. 2023, https://arxiv.org/abs/2305.14314; needs
    phonate[qlora])."""
    text_head: bool = True
    """Whether the model must have a text head, as the loss on text needs. One that the files have is always kept."""
    gradient_checkpointing: Literal["auto"] | bool = "auto"
    """Recompute activations in the backward pass: less memory, more time. auto: where memory would not suffice
    otherwise."""
    whisper: WhisperProjector = WhisperProjector()
    """Features of a Whisper encoder beside the reference's codes."""
