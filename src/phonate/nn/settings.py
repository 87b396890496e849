"""Settings of encoders, decoders and encoder-decoders, and of pretrained models. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, PositiveFloat, PositiveInt, ValidationError, model_validator

from phonate.config.errors import InputError, all_packages, require_modules
from phonate.config.settings import Settings

ModelType = Literal["encoder", "decoder", "encoder_decoder"]
AttentionType = Literal["softmax", "linear", "causal_linear"]
PositionalEncoding = Literal["rope", "sinusoidal", "learnable", "none"]
Activation = Literal["gelu", "relu", "silu", "geglu", "reglu", "swiglu"]

_LARGEST_EXPANSION = 64.0


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


class LayerOptions(Settings):
    """The options of an encoder or a decoder."""

    d_model: PositiveInt = 512
    """Model width."""
    num_layers: PositiveInt = 6
    """Number of layers."""
    num_heads: PositiveInt = 8
    """Number of attention heads."""
    d_ff: Annotated[PositiveFloat, Field(le=_LARGEST_EXPANSION)] = 4.0
    """Expansion factor of the feed-forward network, which has d_ff x d_model hidden units."""
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    """Dropout probability of activations."""
    attention_dropout: Annotated[float, Field(ge=0.0, lt=1.0)] | None = None
    """Dropout probability of softmax attention weights; with 0, attention is 2.5 times as fast on a CPU. Null: dropout.
    """
    attention_type: AttentionType = "softmax"
    """softmax; linear (FAVOR+, linear in the length); causal_linear (linear, over past frames only). In a decoder,
    softmax attention is causal too."""
    nb_features: PositiveInt | None = None
    """Number of random features of linear attention. Null: d_head x ln(d_head), where d_head is d_model / num_heads."""
    activation: Annotated[Activation, BeforeValidator(_lower)] = "gelu"
    """GELU, RELU or SILU, or the gated GEGLU, REGLU or SWIGLU; case-insensitive."""
    use_scalenorm: bool = False
    """Use ScaleNorm instead of layer norm before each branch."""
    use_rezero: bool = False
    """ReZero: a learnt factor of each branch, initially 0. There is no norm unless use_scalenorm is set too."""
    conv_kernel: PositiveInt | None = None
    """Kernel size (odd) of a convolution after self-attention in each layer, as in a Conformer; in causal stacks it
    covers earlier frames only. Null: no convolution."""
    positional_encoding: Annotated[PositionalEncoding, BeforeValidator(_lower)] = "rope"
    """rope (rotary), sinusoidal, learnable or none."""
    max_seq_len: PositiveInt = 5000
    """Maximum sequence length with learnable positions; the other encodings have no limit."""
    checkpoint_segments: PositiveInt | Literal["auto"] | None = None
    """Gradient checkpointing: number of segments of layers whose activations are recomputed in the backward pass. auto:
    chosen by the device's memory. Null: no checkpointing."""
    feature_redraw_interval: PositiveInt | None = None
    """Optimizer steps between redraws of the random features. Null: training.feature_redraw_interval, or 1000."""
    auto_check_redraw: bool = True
    """Redraw the random features even if training.feature_redraw_interval is not set."""
    use_cross_attention: bool | None = None
    """Attention to the encoder's output; only in the decoder of an encoder_decoder. Null: true there, false elsewhere.
    """
    num_classes: PositiveInt | None = None
    """Number of outputs per frame or token. Null: the number required by the labels."""


class LayerSettings(LayerOptions):
    """An encoder or a decoder."""

    @model_validator(mode="after")
    def _numbers_fit(self) -> Self:
        if self.d_model % self.num_heads:
            raise ValueError(
                f"d_model {self.d_model} must be divisible by num_heads {self.num_heads}; change one of them"
            )
        if self.conv_kernel is not None and self.conv_kernel % 2 == 0:
            raise ValueError(f"conv_kernel {self.conv_kernel} must be odd")
        if self.positional_encoding == "rope" and self.head_dim % 2:
            raise ValueError(
                f"positional_encoding rope needs an even d_model / num_heads, not {self.head_dim}; change d_model, "
                "num_heads or positional_encoding"
            )
        return self

    @property
    def head_dim(self) -> int:
        """Head dimension."""
        return self.d_model // self.num_heads

    @property
    def features(self) -> int | None:
        """Number of random features per head; None for softmax."""
        if self.attention_type == "softmax":
            return None
        return self.nb_features or max(1, int(self.head_dim * math.log(self.head_dim)))

    @property
    def hidden(self) -> int:
        """Hidden units of the feed-forward network."""
        return max(1, round(self.d_ff * self.d_model))


class SharedSettings(LayerOptions):
    """Common options of the encoder and the decoder, which their own options override."""

    batch_size: PositiveInt | None = None
    """Default of training.batch_size; must equal it if both are set."""
    device: str | None = None
    """Default of training.device; must equal it if both are set."""


_PARTS: Mapping[Any, tuple[str, ...]] = {
    "encoder": ("encoder",),
    "decoder": ("decoder",),
    "encoder_decoder": ("encoder", "decoder"),
}
SYNONYMS = {f"model.global_config.{name}": f"training.{name}" for name in ("batch_size", "device")}
"""`TaskInfo.synonyms` of the tasks with such models."""


class TransformerSettings(Settings):
    """An encoder, a decoder, or both."""

    inherits: ClassVar = {"encoder": "global_config", "decoder": "global_config"}

    model_type: ModelType = "encoder"
    """encoder, decoder (causal), or encoder_decoder."""
    name: str | None = None
    """A name for the model, shown in its summary."""
    global_config: SharedSettings = SharedSettings()
    """Common options of the encoder and the decoder, which their own options override."""
    encoder: LayerSettings | None = None
    """The encoder."""
    decoder: LayerSettings | None = None
    """The decoder."""

    @model_validator(mode="before")
    @classmethod
    def _inherit(cls, values: Any) -> Any:
        """Apply `global_config` to the parts of the model, unless they set an option themselves."""
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
            raise ValueError("decoder.attention_type: a decoder must be causal; use causal_linear or softmax")
        cross = self.encoder is not None
        if self.decoder.use_cross_attention not in (None, cross):
            raise ValueError(
                f"decoder.use_cross_attention must be {str(cross).lower()} for model_type {self.model_type}; remove it"
            )
        if self.encoder is not None and self.encoder.num_classes not in (None, self.decoder.num_classes):
            raise ValueError("encoder.num_classes: the decoder produces the outputs; set decoder.num_classes")
        if self.encoder is not None and self.encoder.d_model != self.decoder.d_model:
            raise ValueError(
                f"encoder.d_model {self.encoder.d_model} and decoder.d_model {self.decoder.d_model} must be equal, "
                "as the decoder attends to the encoder's output"
            )
        return self

    def require_agreement(self, batch_size: int, device: str | None) -> None:
        """Raise InputError if `global_config` has another batch size or device than the recipe's `training`."""
        for name, trained in (("batch_size", batch_size), ("device", device)):
            own = getattr(self.global_config, name)
            if own is not None and own != trained:
                shown = "not set" if trained is None else trained
                raise InputError(f"model.global_config.{name} is {own} but training.{name} is {shown}; remove one")

    @property
    def random_features(self) -> bool:
        """Whether any of its attention is linear."""
        return any(part is not None and part.features is not None for part in (self.encoder, self.decoder))

    @property
    def output_settings(self) -> LayerSettings:
        """The part that produces the model's output: the decoder if there is one, otherwise the encoder."""
        part = self.decoder or self.encoder
        assert part is not None, "_inherit makes the parts of every model_type"
        return part


def _valid_shared(given: Any) -> dict[str, Any]:
    """The layer options in `global_config`; none if they are invalid, which validation of the field itself reports."""
    if isinstance(given, SharedSettings):
        given = given.model_dump(exclude_unset=True)
    if not isinstance(given, Mapping):
        return {}
    try:
        SharedSettings.model_validate(dict(given))
    except ValidationError:
        return {}
    return {name: value for name, value in given.items() if name in LayerOptions.model_fields}


Dtype = Literal["auto", "fp32", "fp16", "bf16"]
Quantization = Literal["nf4", "fp4"]


class LoRASettings(Settings):
    """Low-rank adapters (Hu et al. 2021, https://arxiv.org/abs/2106.09685)."""

    rank: PositiveInt = 16
    """Rank of the adapters."""
    alpha: PositiveFloat = 32.0
    """An adapter's output is multiplied by alpha / rank."""
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.05
    """Dropout on the inputs of an adapter."""
    targets: tuple[str, ...] | None = None
    """Ends of the names of the linear layers that get an adapter, such as [q_proj, v_proj] or [self_attn.o_proj].
    Null: all linear layers but the head."""
    rslora: bool = False
    """Multiply by alpha / sqrt(rank) instead (Kalajdzievski 2023, https://arxiv.org/abs/2312.03732)."""
    dora: bool = False
    """Train the magnitude of each weight vector apart from its direction (DoRA; Liu et al. 2024,
    https://arxiv.org/abs/2402.09353)."""
    bias: Literal["none", "all", "lora_only"] = "none"
    """Biases that are trained as well: those of every layer, or of the layers that have an adapter."""
    modules_to_save: tuple[str, ...] | None = None
    """Ends of the names of modules that are trained whole, in fp32, and get no adapter, such as [lm_head]. Each names
    one module."""


def require_packages(*packages: str, extra: str = "language") -> None:
    """Raise MissingPackageError if one of `packages`, with which pretrained language models compute, is missing.
    `extra`: of phonate, with which they come."""
    with all_packages():
        for name in packages:
            install = f"'phonate[{'qlora' if name == 'bitsandbytes' else extra}]'"
            require_modules("a pretrained model", name, install=install)
