"""Transformer encoders and decoders: a layer with its norms, feed-forward network and convolution module, and stacks of
layers, built from settings.

Shapes: B batch, T frames, S positions of the memory, D model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phonate.nn.attention import AttentionState, CrossAttention, Memory, SelfAttention
from phonate.nn.convolution import depthwise, zero_padding
from phonate.nn.feed_forward import FeedForward
from phonate.nn.linear_attention import RandomFeatures, Rotation
from phonate.nn.norms import LayerNorm, branched
from phonate.nn.sequences import (
    Dropout,
    LearntPositions,
    Positions,
    RotaryPositions,
    Segments,
    SinusoidalPositions,
    run_layers,
)
from phonate.nn.settings import LayerSettings, TransformerSettings

# ------------ Normalisation of the branches of a layer: norms before or after them, and ReZero factors

Norm = Literal["pre", "post", "scale", "none"]
"""Layer norm before each branch (Xiong et al. 2020), or after the residual sum (Vaswani et al. 2017); ScaleNorm before
each branch; none."""

_SMALLEST_NORM = 1e-5


class ScaleNorm(nn.Module):
    """Scales (..., D) to a learnt length, initially sqrt(D) (Nguyen and Salazar 2019)."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.length = nn.Parameter(torch.tensor(d_model**0.5))

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        scaled: Tensor = x * (self.length / x.norm(dim=-1, keepdim=True).clamp_min(_SMALLEST_NORM)).to(x.dtype)
        return scaled


class ReZero(nn.Module):
    """A learnt factor of a branch, initially 0, so that a new layer is the identity (Bachlechner et al. 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        return x * self.gain.to(x.dtype)


def build_norm(norm: Norm, d_model: int) -> nn.Module:
    """The norm of one branch."""
    if norm == "none":
        return nn.Identity()
    return ScaleNorm(d_model) if norm == "scale" else LayerNorm(d_model)


# ---------------------------------------------------------- Feed-forward networks of a layer. D: model

Activation = Literal["relu", "gelu", "silu", "glu", "geglu", "reglu", "swiglu"]


class Gated(nn.Module):
    """The first half of the units (..., 2 D) times the activation of the second half: (..., D) (Shazeer 2020)."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """(..., 2 D) -> (..., D)."""
        value, gate = x.chunk(2, dim=-1)
        gated: Tensor = value * self.activation(gate)
        return gated


def _activations() -> dict[Activation, nn.Module]:
    return {
        "relu": nn.ReLU(),
        "silu": nn.SiLU(),
        "glu": nn.GLU(),
        "geglu": Gated(nn.GELU(approximate="tanh")),
        "reglu": Gated(nn.ReLU()),
        "swiglu": Gated(nn.SiLU()),
    }


def feed_forward(d_model: int, d_ff: int, dropout: float, activation: Activation = "relu") -> nn.Sequential:
    """Feed-forward network: (..., D) -> (..., D).

    With an activation ending in `glu`, the first layer has 2 x `d_ff` units, half of which gate the others (Dauphin et
    al. 2017; Shazeer 2020).
    """
    if activation == "gelu":
        return FeedForward(d_model, d_ff, dropout)
    return nn.Sequential(
        nn.Linear(d_model, 2 * d_ff if activation.endswith("glu") else d_ff),
        _activations()[activation],
        Dropout(dropout),
        nn.Linear(d_ff, d_model),
    )


# ------------------------------------------------------------------- The convolution module of a layer


@dataclass
class ConvolutionState:
    """The last kernel - 1 frames of a stream, which the next ones are convolved with."""

    past_BTD: Tensor

    def select(self, rows_B: Tensor) -> Self:
        """A copy with these rows of the batch, which may repeat."""
        return type(self)(self.past_BTD[rows_B])


class ConvolutionModule(nn.Module):
    """A gated depthwise convolution over neighbouring frames: (B, T, D) -> (B, T, D).

    Args:
        d_model: D.
        kernel: Kernel size in frames, an odd number.
        causal: Whether the kernel covers only the current and earlier frames.
    """

    def __init__(self, d_model: int, kernel: int, causal: bool) -> None:
        super().__init__()
        if kernel % 2 == 0:
            raise ValueError(f"kernel {kernel}: must be odd")
        self.kernel = kernel
        self.reach = (kernel - 1, 0) if causal else (kernel // 2, kernel // 2)
        self.gated = nn.Linear(d_model, 2 * d_model)
        self.depthwise = nn.Conv1d(d_model, d_model, kernel, groups=d_model)
        self.norm = LayerNorm(d_model)
        self.output = nn.Linear(d_model, d_model)

    def forward(self, x_BTD: Tensor, mask_BT: Tensor | None = None) -> Tensor:
        """(B, T, D) -> (B, T, D). `mask_BT` is True for real frames; padding does not affect them."""
        gated_BTD = zero_padding(F.glu(self.gated(x_BTD), dim=-1), mask_BT)
        return self._mixed(depthwise(gated_BTD, self.depthwise.weight, self.depthwise.bias, *self.reach))

    def initial_state(self, batch: int) -> ConvolutionState:
        """The state before the first frames of a stream, for `batch` rows."""
        weight = self.depthwise.weight
        return ConvolutionState(weight.new_zeros(batch, self.kernel - 1, weight.shape[0]))

    def step(self, x_BTD: Tensor, state: ConvolutionState) -> Tensor:
        """`forward` for the next frames (B, T, D) of a causal module; updates `state` in place."""
        gated_BTD = torch.cat([state.past_BTD, F.glu(self.gated(x_BTD), dim=-1)], dim=1)
        state.past_BTD = gated_BTD[:, gated_BTD.shape[1] - self.kernel + 1 :]
        return self._mixed(self.depthwise(gated_BTD.transpose(1, 2)).transpose(1, 2))

    def _mixed(self, mixed_BTD: Tensor) -> Tensor:
        out: Tensor = self.output(F.silu(self.norm(mixed_BTD)))
        return out


# ---------------------------------------------------------------- One layer of an encoder or a decoder


@dataclass(frozen=True)
class LayerShape:
    """The hyperparameters of a layer.

    Attributes:
        d_model: D.
        n_heads: Attention heads.
        d_ff: Hidden units of the feed-forward network.
        dropout: Dropout probability of activations.
        norm: See `norms.Norm`.
        activation: Activation of the feed-forward network.
        features: Number of random features of linear attention; None: softmax.
        causal: Whether frames attend only to themselves and earlier frames.
        memory: Whether the layer has cross-attention to a memory.
        rezero: Whether each branch has a learnt factor, initially 0.
        kernel: Kernel size of a convolution after self-attention; None: no convolution.
        attention_dropout: Dropout probability of softmax attention weights; None: `dropout`.
        window: Frames that causal softmax self-attention covers, the frame itself among them; None: all earlier ones.
    """

    d_model: int
    n_heads: int
    d_ff: int
    dropout: float = 0.1
    norm: Norm = "post"
    activation: Activation = "relu"
    features: int | None = None
    causal: bool = False
    memory: bool = False
    rezero: bool = False
    kernel: int | None = None
    attention_dropout: float | None = None
    window: int | None = None


@dataclass
class LayerState:
    """The state of incremental decoding of a layer."""

    past: AttentionState
    """State of self-attention."""
    memory: Memory | None
    """The projected memory; None for layers without cross-attention."""
    convolution: ConvolutionState | None = None
    """State of the convolution; None for layers without one."""

    def select(self, rows_B: Tensor) -> Self:
        """A copy with these rows of the batch, which may repeat."""
        memory = None if self.memory is None else self.memory.select(rows_B)
        convolution = None if self.convolution is None else self.convolution.select(rows_B)
        return type(self)(self.past.select(rows_B), memory, convolution)


class Layer(nn.Module):
    """Residual branches: self-attention, optionally a convolution and cross-attention, and a feed-forward network."""

    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        d_model = shape.d_model
        self.post_norm = shape.norm == "post"
        rate = shape.dropout if shape.attention_dropout is None else shape.attention_dropout
        self.attention = SelfAttention(d_model, shape.n_heads, rate, shape.features, shape.causal, shape.window)
        self.cross_attention = CrossAttention(d_model, shape.n_heads, rate, shape.features) if shape.memory else None
        self.convolution = ConvolutionModule(d_model, shape.kernel, shape.causal) if shape.kernel else None
        self.feed_forward = feed_forward(d_model, shape.d_ff, shape.dropout, shape.activation)
        self.attention_norm = build_norm(shape.norm, d_model)
        self.cross_norm = build_norm(shape.norm, d_model) if shape.memory else None
        self.convolution_norm = build_norm(shape.norm, d_model) if shape.kernel else None
        self.feed_forward_norm = build_norm(shape.norm, d_model)
        self.attention_gain = ReZero() if shape.rezero else nn.Identity()
        self.cross_gain = ReZero() if shape.rezero and shape.memory else nn.Identity()
        self.convolution_gain = ReZero() if shape.rezero and shape.kernel else nn.Identity()
        self.feed_forward_gain = ReZero() if shape.rezero else nn.Identity()
        self.dropout = Dropout(shape.dropout)

    def forward(
        self,
        x_BTD: Tensor,
        mask_BT: Tensor | None = None,
        rotation: Rotation | None = None,
        memory_BSD: Tensor | None = None,
        memory_mask_BS: Tensor | None = None,
        memory_rotation: Rotation | None = None,
    ) -> Tensor:
        """(B, T, D) -> (B, T, D). Masks are True for real frames; None: no padding."""
        branch_BTD, x_BTD = self._branched(self.attention_norm, x_BTD)
        attended_BTD = self.attention(branch_BTD, mask_BT, rotation)
        x_BTD = self._add(x_BTD, attended_BTD, self.attention_norm, self.attention_gain)
        if self.convolution is not None and self.convolution_norm is not None:
            branch_BTD, x_BTD = self._branched(self.convolution_norm, x_BTD)
            mixed_BTD = self.convolution(branch_BTD, mask_BT)
            x_BTD = self._add(x_BTD, mixed_BTD, self.convolution_norm, self.convolution_gain)
        memory = self.remember(memory_BSD, memory_mask_BS, memory_rotation)
        return self._rest(x_BTD, memory, rotation)

    def remember(self, memory_BSD: Tensor | None, mask_BS: Tensor | None, rotation: Rotation | None) -> Memory | None:
        """Project a memory (B, S, D) for cross-attention; None for layers without it."""
        if (self.cross_attention is None) != (memory_BSD is None):
            raise ValueError("layers with cross-attention need a memory; other layers must not be given one")
        if self.cross_attention is None or memory_BSD is None:
            return None
        return self.cross_attention.remember(memory_BSD, mask_BS, rotation)

    def step(self, x_BTD: Tensor, state: LayerState, rotation: Rotation | None = None) -> Tensor:
        """`forward` for the next frames (B, T, D); updates `state` in place."""
        branch_BTD, x_BTD = self._branched(self.attention_norm, x_BTD)
        attended_BTD = self.attention.step(branch_BTD, state.past, rotation)
        x_BTD = self._add(x_BTD, attended_BTD, self.attention_norm, self.attention_gain)
        if self.convolution is not None and self.convolution_norm is not None and state.convolution is not None:
            branch_BTD, x_BTD = self._branched(self.convolution_norm, x_BTD)
            mixed_BTD = self.convolution.step(branch_BTD, state.convolution)
            x_BTD = self._add(x_BTD, mixed_BTD, self.convolution_norm, self.convolution_gain)
        return self._rest(x_BTD, state.memory, rotation)

    def initial_state(self, batch: int, memory: Memory | None) -> LayerState:
        """The state of a causal layer before the first `step`. `memory`: the result of `remember`."""
        convolution = None if self.convolution is None else self.convolution.initial_state(batch)
        return LayerState(self.attention.initial_state(batch), memory, convolution)

    def _rest(self, x_BTD: Tensor, memory: Memory | None, rotation: Rotation | None) -> Tensor:
        if self.cross_attention is not None and self.cross_norm is not None and memory is not None:
            branch_BTD, x_BTD = self._branched(self.cross_norm, x_BTD)
            attended_BTD = self.cross_attention(branch_BTD, memory, rotation)
            x_BTD = self._add(x_BTD, attended_BTD, self.cross_norm, self.cross_gain)
        branch_BTD, x_BTD = self._branched(self.feed_forward_norm, x_BTD)
        plain = not self.post_norm and isinstance(self.feed_forward_gain, nn.Identity) and self.dropout.p == 0.0
        if plain and isinstance(self.feed_forward, FeedForward):
            return self.feed_forward.added(x_BTD, branch_BTD)
        return self._add(x_BTD, self.feed_forward(branch_BTD), self.feed_forward_norm, self.feed_forward_gain)

    def _branched(self, norm: nn.Module, x_BTD: Tensor) -> tuple[Tensor, Tensor]:
        """The input of a branch, and the frames to which its output is added."""
        return (x_BTD, x_BTD) if self.post_norm else branched(norm, x_BTD)

    def _add(self, x_BTD: Tensor, branch_BTD: Tensor, norm: nn.Module, gain: nn.Module) -> Tensor:
        """The residual sum of the frames and the output of a branch."""
        x_BTD = x_BTD + gain(self.dropout(branch_BTD) if self.training else branch_BTD)
        out: Tensor = norm(x_BTD) if self.post_norm else x_BTD
        return out


# ----------------------------------------------- Transformer encoders and decoders as stacks of layers


@dataclass
class StackState:
    """The state of incremental decoding of a causal stack."""

    layers: list[LayerState]
    frames: int = 0
    """Number of frames so far."""

    def select(self, rows_B: Tensor) -> Self:
        """A copy with these rows of the batch, which may repeat, as in beam search."""
        return type(self)([layer.select(rows_B) for layer in self.layers], self.frames)


class Stack(nn.Module):
    """`n_layers` equal layers, followed by a norm unless the layers are post-norm.

    An encoder by default; with `shape.causal` and `shape.memory` a decoder. Causal stacks can run incrementally.

    Args:
        shape: Hyperparameters of the layers.
        n_layers: Number of layers.
        positions: Positional encoding, added to the input or applied as rotations in each layer; None: none.
        segments: See `phonate.nn.sequences`.
    """

    def __init__(
        self, shape: LayerShape, n_layers: int, positions: Positions | None = None, segments: Segments = None
    ) -> None:
        super().__init__()
        self.causal = shape.causal
        self.window = shape.window
        self.segments = segments
        self.positions = positions
        self.layers = nn.ModuleList(Layer(shape) for _ in range(n_layers))
        self.last_norm = nn.Identity() if shape.norm == "post" else build_norm(shape.norm, shape.d_model)

    def forward(
        self,
        x_BTD: Tensor,
        mask_BT: Tensor | None = None,
        memory_BSD: Tensor | None = None,
        memory_mask_BS: Tensor | None = None,
    ) -> Tensor:
        """(B, T, D) -> (B, T, D).

        Args:
            x_BTD: Frames.
            mask_BT: True for real frames; None: all. A causal stack doesn't need it for padding at the end, to which no
                real frame attends.
            memory_BSD: The memory, for a stack with cross-attention.
            memory_mask_BS: True for real positions of the memory; None: all.
        """
        x_BTD, rotation = self._placed(x_BTD, 0)
        memory = (memory_BSD, memory_mask_BS, self._memory_rotation(memory_BSD))
        out: Tensor = self.last_norm(run_layers(self.layers, x_BTD, mask_BT, rotation, *memory, segments=self.segments))
        return out

    def initial_state(
        self, batch: int, memory_BSD: Tensor | None = None, memory_mask_BS: Tensor | None = None
    ) -> StackState:
        """The state of a causal stack before the first `step`, for `batch` rows."""
        rotation = self._memory_rotation(memory_BSD)
        return StackState(
            [
                layer.initial_state(batch, layer.remember(memory_BSD, memory_mask_BS, rotation))
                for layer in self._typed()
            ]
        )

    def step(self, x_BTD: Tensor, state: StackState) -> Tensor:
        """The next frames (B, T, D) -> (B, T, D), equal to those of `forward`; updates `state` in place."""
        x_BTD, rotation = self._next(x_BTD, state.frames)
        for layer, layer_state in zip(self._typed(), state.layers, strict=True):
            x_BTD = layer.step(x_BTD, layer_state, rotation)
        state.frames += x_BTD.shape[1]
        out: Tensor = self.last_norm(x_BTD)
        return out

    def _next(self, x_BTD: Tensor, start: int) -> tuple[Tensor, Rotation | None]:
        """As `_placed`. With a window, only distances within it matter, so that positions stay small in a stream."""
        if self.window is None or not isinstance(self.positions, RotaryPositions):
            return self._placed(x_BTD, start)
        return x_BTD, self.positions(self.window - 1 + x_BTD.shape[1])

    def _placed(self, x_BTD: Tensor, start: int) -> tuple[Tensor, Rotation | None]:
        """The frames with added positional encoding from position `start` on, and the rotation of queries and keys."""
        if self.positions is None:
            return x_BTD, None
        if isinstance(self.positions, RotaryPositions):
            return x_BTD, self.positions(x_BTD.shape[1], start)
        return self.positions(x_BTD, start), None

    def _memory_rotation(self, memory_BSD: Tensor | None) -> Rotation | None:
        if memory_BSD is None or not isinstance(self.positions, RotaryPositions):
            return None
        rotation: Rotation = self.positions(memory_BSD.shape[1])
        return rotation

    def _typed(self) -> list[Layer]:
        return [layer for layer in self.layers if isinstance(layer, Layer)]


# ------------------------------------------------------------------- Builds transformers from settings

_FIRST_POSITIONS = 4096
"""Sinusoidal positions computed in advance; longer sequences extend them."""


def build_encoder(settings: LayerSettings) -> Stack:
    """An encoder over (B, T, D), with its positional encoding. It is causal if `attention_type` is causal_linear."""
    return _stack(settings, settings.attention_type == "causal_linear", memory=False)


def build_decoder(settings: LayerSettings, memory: bool) -> Stack:
    """A causal decoder over (B, T, D), with its positional encoding. `memory`: whether it has cross-attention."""
    return _stack(settings, causal=True, memory=memory)


def build_transformer(settings: TransformerSettings, input_dim: int) -> FrameTransformer:
    """The model described by the settings, over frames of `input_dim` features."""
    return FrameTransformer(settings, input_dim)


class FrameTransformer(nn.Module):
    """Frames of features -> frames of width D: a projection, then an encoder, a decoder, or both.

    A decoder alone is a causal stack over the frames. With an encoder, the decoder runs over the same frames and
    attends to the encoder's output.

    Args:
        settings: The model's settings.
        input_dim: F.
    """

    def __init__(self, settings: TransformerSettings, input_dim: int) -> None:
        super().__init__()
        encoder, decoder = settings.encoder, settings.decoder
        self.width = settings.output_settings.d_model
        self.input = nn.Linear(input_dim, self.width)
        self.encoder = None if encoder is None else build_encoder(encoder)
        self.decoder = None if decoder is None else build_decoder(decoder, encoder is not None)

    @property
    def causal(self) -> bool:
        """Whether no output depends on later frames, so that the model can run incrementally."""
        return self._causal_stack is not None

    @property
    def _causal_stack(self) -> Stack | None:
        if self.encoder is None:
            return self.decoder
        return self.encoder if self.encoder.causal and self.decoder is None else None

    def forward(self, x_BTF: Tensor, mask_BT: Tensor | None = None) -> Tensor:
        """(B, T, F) -> (B, T, D). `mask_BT` is True for real frames; None: there is no padding.

        The output in padding is undefined.
        """
        x_BTD = self.input(x_BTF)
        memory_BTD = None if self.encoder is None else self.encoder(x_BTD, mask_BT)
        if self.decoder is None:
            assert memory_BTD is not None
            out: Tensor = memory_BTD
        else:
            out = self.decoder(x_BTD, mask_BT, memory_BTD, None if memory_BTD is None else mask_BT)
        return out

    def initial_state(self, batch: int = 1) -> StackState:
        """The state before the first `step`, for `batch` streams. Raises ValueError if the model is not causal."""
        return self._streaming_stack().initial_state(batch)

    def step(self, x_BCF: Tensor, state: StackState) -> tuple[Tensor, StackState]:
        """The next frames (B, C, F) -> (B, C, D), equal to those of `forward`, and the state after them.

        `state` must not be used again. Its size is constant with causal_linear, and grows by each frame with softmax.
        """
        return self._streaming_stack().step(self.input(x_BCF), state), state

    def _streaming_stack(self) -> Stack:
        stack = self._causal_stack
        if stack is None:
            raise ValueError(
                "this model uses later frames, so it can't run incrementally; "
                "use model_type decoder, or an encoder with attention_type causal_linear"
            )
        return stack


def _stack(settings: LayerSettings, causal: bool, memory: bool) -> Stack:
    shape = LayerShape(
        settings.d_model,
        settings.num_heads,
        settings.hidden,
        settings.dropout,
        norm="scale" if settings.use_scalenorm else "none" if settings.use_rezero else "pre",
        activation=settings.activation,
        features=settings.features,
        causal=causal,
        memory=memory,
        rezero=settings.use_rezero,
        kernel=settings.conv_kernel,
        attention_dropout=settings.attention_dropout,
    )
    stack = Stack(shape, settings.num_layers, _positions(settings), settings.checkpoint_segments)
    for module in stack.modules():
        if isinstance(module, RandomFeatures):
            module.redraw_interval = settings.feature_redraw_interval
            module.auto_redraw = settings.auto_check_redraw
    return stack


def _positions(settings: LayerSettings) -> Positions | None:
    match settings.positional_encoding:
        case "rope":
            return RotaryPositions(settings.head_dim)
        case "sinusoidal":
            return SinusoidalPositions(settings.d_model, _FIRST_POSITIONS, grows=True)
        case "learnable":
            return LearntPositions(settings.d_model, settings.max_seq_len)
        case "none":
            return None
