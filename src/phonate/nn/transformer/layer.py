"""One layer of an encoder or a decoder. Shapes: B batch, T frames, S positions of the memory, D model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from torch import Tensor, nn

from phonate.nn.transformer.attention import AttentionState, CrossAttention, Memory, SelfAttention
from phonate.nn.transformer.blocks import Rotation
from phonate.nn.transformer.convolution import ConvolutionModule, ConvolutionState
from phonate.nn.transformer.feed_forward import Activation, feed_forward
from phonate.nn.transformer.norms import Norm, ReZero, build_norm


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
