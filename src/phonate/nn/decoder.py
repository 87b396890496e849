"""Transformer decoder: each frame attends to earlier ones and to a memory, such as an encoded text.

Vaswani et al. 2017, section 3.1, with layer norm before each branch (Xiong et al. 2020).

Shapes: B batch, T frames, S positions of the memory, D model, H heads, E = D / H dimensions of a head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phonate.nn.checkpointing import Segments, run_layers
from phonate.nn.encoder import Activation, feed_forward


class KeyValueCache:
    """Keys and values of the frames so far, in a buffer that doubles when it is full."""

    def __init__(self) -> None:
        self.frames = 0
        self._buffer: Tensor | None = None

    def add(self, new_2BHTE: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys and values (2, B, H, T, E) of the next frames; returns those (B, H, T, E) of all frames."""
        end = self.frames + new_2BHTE.shape[3]
        if self._buffer is None or end > self._buffer.shape[3]:
            buffer = new_2BHTE.new_empty(*new_2BHTE.shape[:3], max(64, 2 * end), new_2BHTE.shape[4])
            if self._buffer is not None:
                buffer[:, :, :, : self.frames] = self._buffer[:, :, :, : self.frames]
            self._buffer = buffer
        self._buffer[:, :, :, self.frames : end] = new_2BHTE
        self.frames = end
        key_BHTE, value_BHTE = self._buffer[:, :, :, :end].unbind(0)
        return key_BHTE, value_BHTE


class CausalSelfAttention(nn.Module):
    """Multi-head attention of each frame to itself and earlier ones.

    Padding at the end needs no mask: no real frame attends to it.
    """

    def __init__(self, d_model: int, n_heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        if d_model % n_heads:
            raise ValueError(f"d_model {d_model} can't be divided among {n_heads} heads")
        self.n_heads = n_heads
        self.dropout = dropout
        self.causal = True
        self.query_key_value = nn.Linear(d_model, 3 * d_model)
        self.output = nn.Linear(d_model, d_model)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D), all frames at once."""
        query_BHTE, key_BHTE, value_BHTE = self._packed(x_BTD).unbind(0)
        return self._attend(query_BHTE, key_BHTE, value_BHTE, self.causal)

    def step(self, x_B1D: Tensor, cache: KeyValueCache) -> Tensor:
        """`forward` for the next frame (B, 1, D), which is appended to `cache`."""
        packed = self._packed(x_B1D)
        key_BHTE, value_BHTE = cache.add(packed[1:])
        return self._attend(packed[0], key_BHTE, value_BHTE, causal=False)

    def _packed(self, x_BTD: Tensor) -> Tensor:
        batch, frames, width = x_BTD.shape
        packed: Tensor = self.query_key_value(x_BTD).view(batch, frames, 3, self.n_heads, width // self.n_heads)
        return packed.permute(2, 0, 3, 1, 4)

    def _attend(self, query_BHTE: Tensor, key_BHTE: Tensor, value_BHTE: Tensor, causal: bool) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        out_BHTE = F.scaled_dot_product_attention(query_BHTE, key_BHTE, value_BHTE, dropout_p=dropout, is_causal=causal)
        out: Tensor = self.output(out_BHTE.transpose(1, 2).flatten(2))
        return out


class CrossAttention(nn.Module):
    """Multi-head attention of frames to a memory.

    Queries and keys are initialised with the same weights, so that frames first attend to their own position in the
    memory (Ping et al. 2018, Deep Voice 3, section 3.5): speech runs in the order of its text.
    """

    def __init__(self, d_model: int, n_heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.dropout = dropout
        self.query = nn.Linear(d_model, d_model)
        self.key_value = nn.Linear(d_model, 2 * d_model)
        self.output = nn.Linear(d_model, d_model)
        with torch.no_grad():
            self.key_value.weight[:d_model] = self.query.weight

    def keys(self, memory_BSD: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values, each (B, H, S, E), of a memory."""
        packed_BSD = self.key_value(memory_BSD).unflatten(-1, (2, self.n_heads, -1))
        key_BHSE, value_BHSE = packed_BSD.permute(2, 0, 3, 1, 4).unbind(0)
        return key_BHSE, value_BHSE

    def forward(self, x_BTD: Tensor, keys: tuple[Tensor, Tensor], mask_BS: Tensor | None = None) -> Tensor:
        """(B, T, D) -> (B, T, D). `mask_BS` is True for positions that are attended to; None: all."""
        query_BHTE = self.query(x_BTD).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
        out_BHTE = F.scaled_dot_product_attention(
            query_BHTE,
            *keys,
            attn_mask=None if mask_BS is None else mask_BS[:, None, None, :],
            dropout_p=self.dropout if self.training else 0.0,
        )
        out: Tensor = self.output(out_BHTE.transpose(1, 2).flatten(2))
        return out


@dataclass
class LayerState:
    """What a layer keeps from one step to the next."""

    cache: KeyValueCache
    keys: tuple[Tensor, Tensor]
    """Keys and values of the memory."""


class DecoderLayer(nn.Module):
    """Causal self-attention, attention to the memory and a feed-forward network, each with a residual connection."""

    def __init__(self, d_model: int, n_heads: int, d_ff: int, dropout: float, activation: Activation) -> None:
        super().__init__()
        self.attention = CausalSelfAttention(d_model, n_heads, dropout)
        self.cross_attention = CrossAttention(d_model, n_heads, dropout)
        self.feed_forward = feed_forward(d_model, d_ff, dropout, activation)
        self.attention_norm = nn.LayerNorm(d_model)
        self.cross_norm = nn.LayerNorm(d_model)
        self.feed_forward_norm = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_BTD: Tensor, memory_BSD: Tensor, mask_BS: Tensor | None = None) -> Tensor:
        """(B, T, D) -> (B, T, D). `mask_BS` is True for real positions of the memory."""
        x_BTD = x_BTD + self.dropout(self.attention(self.attention_norm(x_BTD)))
        return self._rest(x_BTD, self.cross_attention.keys(memory_BSD), mask_BS)

    def step(self, x_B1D: Tensor, state: LayerState) -> Tensor:
        """`forward` for the next frame: (B, 1, D) -> (B, 1, D)."""
        x_B1D = x_B1D + self.dropout(self.attention.step(self.attention_norm(x_B1D), state.cache))
        return self._rest(x_B1D, state.keys, None)

    def _rest(self, x_BTD: Tensor, keys: tuple[Tensor, Tensor], mask_BS: Tensor | None) -> Tensor:
        x_BTD = x_BTD + self.dropout(self.cross_attention(self.cross_norm(x_BTD), keys, mask_BS))
        out: Tensor = x_BTD + self.dropout(self.feed_forward(self.feed_forward_norm(x_BTD)))
        return out


class Decoder(nn.Module):
    """`n_layers` decoder layers and a final layer norm. `segments`: see `phonate.nn.checkpointing`."""

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        n_layers: int,
        d_ff: int,
        dropout: float = 0.1,
        activation: Activation = "relu",
        segments: Segments = None,
    ) -> None:
        super().__init__()
        self.segments = segments
        self.layers = nn.ModuleList(DecoderLayer(d_model, n_heads, d_ff, dropout, activation) for _ in range(n_layers))
        self.last_norm = nn.LayerNorm(d_model)

    def forward(self, x_BTD: Tensor, memory_BSD: Tensor, mask_BS: Tensor | None = None) -> Tensor:
        """(B, T, D) -> (B, T, D): all frames at once, as in training."""
        out: Tensor = self.last_norm(run_layers(self.layers, x_BTD, memory_BSD, mask_BS, segments=self.segments))
        return out

    def initial_state(self, memory_BSD: Tensor) -> list[LayerState]:
        """The state of each layer for the first `step`, of a memory (B, S, D) without padding."""
        return [LayerState(KeyValueCache(), layer.cross_attention.keys(memory_BSD)) for layer in self._typed()]

    def step(self, x_B1D: Tensor, states: list[LayerState]) -> Tensor:
        """(B, 1, D) -> (B, 1, D): the next frame, equal to that of `forward`."""
        for layer, state in zip(self._typed(), states, strict=True):
            x_B1D = layer.step(x_B1D, state)
        out: Tensor = self.last_norm(x_B1D)
        return out

    def _typed(self) -> list[DecoderLayer]:
        return [layer for layer in self.layers if isinstance(layer, DecoderLayer)]
