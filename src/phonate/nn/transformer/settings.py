"""Settings of encoders, decoders and encoder-decoders, without torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PositiveFloat, PositiveInt, ValidationError, model_validator

from phonate.config.errors import InputError
from phonate.config.settings import Settings

ModelType = Literal["encoder", "decoder", "encoder_decoder"]
AttentionType = Literal["softmax", "linear", "causal_linear"]
PositionalEncoding = Literal["rope", "sinusoidal", "learnable", "none"]
Activation = Literal["gelu", "relu", "silu", "geglu", "reglu", "swiglu"]

_LARGEST_EXPANSION = 64.0


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


class LayerOptions(Settings):
    """Every option of an encoder or a decoder."""

    d_model: PositiveInt = 512
    """Width."""
    num_layers: PositiveInt = 6
    """Layers."""
    num_heads: PositiveInt = 8
    """Attention heads."""
    d_ff: Annotated[PositiveFloat, Field(le=_LARGEST_EXPANSION)] = 4.0
    """Expansion factor of the feed-forward network: it has d_ff x d_model hidden units."""
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    """Share of activations dropped in training."""
    attention_dropout: Annotated[float, Field(ge=0.0, lt=1.0)] | None = None
    """Share of softmax's attention weights dropped in training; 0 makes attention 2.5 times as fast on a CPU. Null:
    dropout."""
    attention_type: AttentionType = "softmax"
    """softmax; linear (FAVOR+, cost linear in the length); causal_linear (the same over past frames only). A decoder's
    softmax attention is causal too."""
    nb_features: PositiveInt | None = None
    """Random features of linear attention. Null: d_head x ln(d_head), where d_head is d_model / num_heads."""
    activation: Annotated[Activation, BeforeValidator(_lower)] = "gelu"
    """GELU, RELU or SILU, or the gated GEGLU, REGLU or SWIGLU; upper or lower case."""
    use_scalenorm: bool = False
    """ScaleNorm in place of layer norm before each branch."""
    use_rezero: bool = False
    """ReZero: a learnt factor, 0 at first, on each branch; no norm unless use_scalenorm is set too."""
    conv_kernel: PositiveInt | None = None
    """Frames, an odd number, of a convolution after self-attention in each layer, as in a Conformer; in a decoder they
    are earlier ones. Null: no convolution."""
    positional_encoding: Annotated[PositionalEncoding, BeforeValidator(_lower)] = "rope"
    """rope (rotary), sinusoidal, learnable or none."""
    max_seq_len: PositiveInt = 5000
    """The longest sequence, for learnable positions; the others have no limit."""
    checkpoint_segments: PositiveInt | Literal["auto"] | None = None
    """Gradient checkpointing: the layers are cut into so many segments, whose activations are computed again in the
    backward pass. auto: by the device's memory. Null: none."""
    feature_redraw_interval: PositiveInt | None = None
    """Optimizer steps between redraws of the random features. Null: training.feature_redraw_interval, or 1000."""
    auto_check_redraw: bool = True
    """Redraw during training without being told by training.feature_redraw_interval or a callback."""
    use_cross_attention: bool | None = None
    """Attention to the encoder's output: true in the decoder of an encoder_decoder (null: so), false elsewhere."""
    num_classes: PositiveInt | None = None
    """Outputs per frame or token. Null: as many as the labels have."""


class LayerSettings(LayerOptions):
    """An encoder or a decoder."""

    @model_validator(mode="after")
    def _numbers_fit(self) -> Self:
        if self.d_model % self.num_heads:
            raise ValueError(
                f"d_model {self.d_model} can't be divided among {self.num_heads} heads; change d_model or num_heads"
            )
        if self.conv_kernel is not None and self.conv_kernel % 2 == 0:
            raise ValueError(f"conv_kernel {self.conv_kernel} must be odd, so that a frame sees as far back as ahead")
        if self.positional_encoding == "rope" and self.head_dim % 2:
            raise ValueError(
                f"positional_encoding rope needs an even d_model / num_heads, not {self.head_dim}; change d_model, "
                "num_heads or positional_encoding"
            )
        return self

    @property
    def head_dim(self) -> int:
        """Dimensions of a head."""
        return self.d_model // self.num_heads

    @property
    def features(self) -> int | None:
        """Random features of a head; None for softmax."""
        if self.attention_type == "softmax":
            return None
        return self.nb_features or max(1, int(self.head_dim * math.log(self.head_dim)))

    @property
    def hidden(self) -> int:
        """Hidden units of the feed-forward network."""
        return max(1, round(self.d_ff * self.d_model))


class SharedSettings(LayerOptions):
    """Options for the encoder and the decoder alike; what either of them sets itself comes first."""

    batch_size: PositiveInt | None = None
    """As training.batch_size; a different number is a mistake. Null: whatever that is."""
    device: str | None = None
    """As training.device; a different one is a mistake. Null: whatever that is."""


_PARTS: Mapping[Any, tuple[str, ...]] = {
    "encoder": ("encoder",),
    "decoder": ("decoder",),
    "encoder_decoder": ("encoder", "decoder"),
}


class TransformerSettings(Settings):
    """An encoder, a decoder, or both."""

    model_type: ModelType = "encoder"
    """encoder, decoder (causal), or encoder_decoder."""
    name: str | None = None
    """A name for the model, shown in its summary."""
    global_config: SharedSettings = SharedSettings()
    """Options for the encoder and the decoder alike; what either of them sets itself comes first."""
    encoder: LayerSettings | None = None
    """The encoder."""
    decoder: LayerSettings | None = None
    """The decoder."""

    @model_validator(mode="before")
    @classmethod
    def _inherit(cls, values: Any) -> Any:
        """Give the parts of the model what `global_config` sets and they do not."""
        if not isinstance(values, dict):
            return values
        shared = _valid_shared(values.get("global_config"))
        parts = {}
        for part in _PARTS.get(values.get("model_type", "encoder"), ()):
            own = values.get(part)
            if isinstance(own, LayerSettings):
                own = own.model_dump(exclude_unset=True)
            if own is None or isinstance(own, Mapping):
                parts[part] = {**shared, **(own or {})}
        return {**values, **parts}

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        for part in ("encoder", "decoder"):
            if part not in _PARTS[self.model_type] and getattr(self, part) is not None:
                raise ValueError(f"model_type {self.model_type} has no {part}; remove the section {part}")
        if self.encoder is not None and self.encoder.use_cross_attention:
            raise ValueError("encoder.use_cross_attention: only the decoder of an encoder_decoder can have it")
        if self.decoder is None:
            return self
        if self.decoder.attention_type == "linear":
            raise ValueError("decoder.attention_type: a decoder sees the past alone; use causal_linear or softmax")
        wanted = self.encoder is not None
        if self.decoder.use_cross_attention not in (None, wanted):
            raise ValueError(
                f"decoder.use_cross_attention is {str(wanted).lower()} for model_type {self.model_type}; remove it"
            )
        if self.encoder is not None and self.encoder.num_classes not in (None, self.decoder.num_classes):
            raise ValueError("encoder.num_classes: the outputs are the decoder's; set it there")
        if self.encoder is not None and self.encoder.d_model != self.decoder.d_model:
            raise ValueError(
                f"encoder.d_model {self.encoder.d_model} and decoder.d_model {self.decoder.d_model} must be equal, "
                "for the decoder attends to the encoder's output"
            )
        return self

    def require_agreement(self, batch_size: int, device: str | None) -> None:
        """Raise InputError where `global_config` has another batch size or device than the recipe's `training`."""
        for name, trained in (("batch_size", batch_size), ("device", device)):
            own = getattr(self.global_config, name)
            if own is not None and own != trained:
                raise InputError(f"model.global_config.{name} is {own} but training.{name} is {trained}; drop one")

    @property
    def output_settings(self) -> LayerSettings:
        """The part whose output is the model's: the decoder where there is one."""
        part = self.decoder or self.encoder
        assert part is not None, "_inherit makes the parts of every model_type"
        return part


def _valid_shared(given: Any) -> dict[str, Any]:
    """The layer options among `global_config`; none where they are wrong, which its own field reports."""
    if isinstance(given, SharedSettings):
        given = given.model_dump(exclude_unset=True)
    if not isinstance(given, Mapping):
        return {}
    try:
        SharedSettings.model_validate(dict(given))
    except ValidationError:
        return {}
    return {name: value for name, value in given.items() if name in LayerOptions.model_fields}
