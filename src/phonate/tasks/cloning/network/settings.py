"""Settings of the model that clones voices: its adapters, and the optional Whisper encoder. Free of torch."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from phonate.config.settings import Settings
from phonate.nn.pretrained.settings import LoRASettings

Mode = Literal["comprehensive", "audio_focused", "attention_only", "custom"]


class CloningLoRA(LoRASettings):
    """Low-rank adapters beside the layers of Higgs Audio v2."""

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
