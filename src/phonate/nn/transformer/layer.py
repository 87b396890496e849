"""One layer of an encoder or a decoder, with its norms, feed-forward network and convolution module.

Shapes: B batch, T frames, D model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phonate.nn.convolution import zero_padding
from phonate.nn.transformer.attention import AttentionState, CrossAttention, Memory, SelfAttention
from phonate.nn.transformer.features import Rotation

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
    return ScaleNorm(d_model) if norm == "scale" else nn.LayerNorm(d_model)


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
        "gelu": nn.GELU(approximate="tanh"),
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
    return nn.Sequential(
        nn.Linear(d_model, 2 * d_ff if activation.endswith("glu") else d_ff),
        _activations()[activation],
        nn.Dropout(dropout),
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
        self.norm = nn.LayerNorm(d_model)
        self.output = nn.Linear(d_model, d_model)

    def forward(self, x_BTD: Tensor, mask_BT: Tensor | None = None) -> Tensor:
        """(B, T, D) -> (B, T, D). `mask_BT` is True for real frames; padding does not affect them."""
        gated_BTD = zero_padding(F.glu(self.gated(x_BTD), dim=-1), mask_BT)
        return self._convolved(F.pad(gated_BTD, (0, 0, *self.reach)))

    def initial_state(self, batch: int) -> ConvolutionState:
        """The state before the first frames of a stream, for `batch` rows."""
        weight = self.depthwise.weight
        return ConvolutionState(weight.new_zeros(batch, self.kernel - 1, weight.shape[0]))

    def step(self, x_BTD: Tensor, state: ConvolutionState) -> Tensor:
        """`forward` for the next frames (B, T, D) of a causal module; updates `state` in place."""
        gated_BTD = torch.cat([state.past_BTD, F.glu(self.gated(x_BTD), dim=-1)], dim=1)
        state.past_BTD = gated_BTD[:, gated_BTD.shape[1] - self.kernel + 1 :]
        return self._convolved(gated_BTD)

    def _convolved(self, gated_BTD: Tensor) -> Tensor:
        mixed_BTD = self.depthwise(gated_BTD.transpose(1, 2)).transpose(1, 2)
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
        self.dropout = nn.Dropout(shape.dropout)

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
        attended_BTD = self.attention(self._before(self.attention_norm, x_BTD), mask_BT, rotation)
        x_BTD = self._add(x_BTD, attended_BTD, self.attention_norm, self.attention_gain)
        if self.convolution is not None and self.convolution_norm is not None:
            mixed_BTD = self.convolution(self._before(self.convolution_norm, x_BTD), mask_BT)
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
        attended_BTD = self.attention.step(self._before(self.attention_norm, x_BTD), state.past, rotation)
        x_BTD = self._add(x_BTD, attended_BTD, self.attention_norm, self.attention_gain)
        if self.convolution is not None and self.convolution_norm is not None and state.convolution is not None:
            mixed_BTD = self.convolution.step(self._before(self.convolution_norm, x_BTD), state.convolution)
            x_BTD = self._add(x_BTD, mixed_BTD, self.convolution_norm, self.convolution_gain)
        return self._rest(x_BTD, state.memory, rotation)

    def initial_state(self, batch: int, memory: Memory | None) -> LayerState:
        """The state of a causal layer before the first `step`. `memory`: the result of `remember`."""
        convolution = None if self.convolution is None else self.convolution.initial_state(batch)
        return LayerState(self.attention.initial_state(batch), memory, convolution)

    def _rest(self, x_BTD: Tensor, memory: Memory | None, rotation: Rotation | None) -> Tensor:
        if self.cross_attention is not None and self.cross_norm is not None and memory is not None:
            attended_BTD = self.cross_attention(self._before(self.cross_norm, x_BTD), memory, rotation)
            x_BTD = self._add(x_BTD, attended_BTD, self.cross_norm, self.cross_gain)
        out_BTD = self.feed_forward(self._before(self.feed_forward_norm, x_BTD))
        return self._add(x_BTD, out_BTD, self.feed_forward_norm, self.feed_forward_gain)

    def _before(self, norm: nn.Module, x_BTD: Tensor) -> Tensor:
        """The input of a branch."""
        out: Tensor = x_BTD if self.post_norm else norm(x_BTD)
        return out

    def _add(self, x_BTD: Tensor, branch_BTD: Tensor, norm: nn.Module, gain: nn.Module) -> Tensor:
        """The residual sum of the frames and the output of a branch."""
        x_BTD = x_BTD + gain(self.dropout(branch_BTD) if self.training else branch_BTD)
        out: Tensor = norm(x_BTD) if self.post_norm else x_BTD
        return out
