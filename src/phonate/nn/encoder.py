"""Transformer encoder. Shapes: B batch, T frames, D model."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from phonate.nn.attention import SelfAttention
from phonate.nn.checkpointing import Segments, run_layers

NormPlace = Literal["pre", "post"]
Activation = Literal["relu", "gelu", "glu"]


def feed_forward(d_model: int, d_ff: int, dropout: float, activation: Activation = "relu") -> nn.Sequential:
    """Feed-forward network: (..., D) -> (..., D).

    With `glu`, `d_ff` hidden units are gated by as many others (Dauphin et al. 2017; Shazeer 2020).
    """
    activations = {"relu": nn.ReLU(), "gelu": nn.GELU(approximate="tanh"), "glu": nn.GLU()}
    return nn.Sequential(
        nn.Linear(d_model, 2 * d_ff if activation == "glu" else d_ff),
        activations[activation],
        nn.Dropout(dropout),
        nn.Linear(d_ff, d_model),
    )


class EncoderLayer(nn.Module):
    """Self-attention and a feed-forward network, each with a residual connection and layer norm.

    `post` normalises after the residual sum (Vaswani et al. 2017); `pre` normalises the input of each
    branch (Xiong et al. 2020), which trains without a long warm-up.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        d_ff: int,
        dropout: float = 0.1,
        norm: NormPlace = "post",
        activation: Activation = "relu",
    ) -> None:
        super().__init__()
        self.pre_norm = norm == "pre"
        self.attention = SelfAttention(d_model, n_heads, dropout)
        self.feed_forward = feed_forward(d_model, d_ff, dropout, activation)
        self.attention_norm = nn.LayerNorm(d_model)
        self.feed_forward_norm = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x_BTD: Tensor, mask_BT: Tensor | None = None, rotation: tuple[Tensor, Tensor] | None = None
    ) -> Tensor:
        """(B, T, D) -> (B, T, D). Arguments as for `SelfAttention`."""
        if self.pre_norm:
            x_BTD = x_BTD + self.dropout(self.attention(self.attention_norm(x_BTD), mask_BT, rotation))
            out: Tensor = x_BTD + self.dropout(self.feed_forward(self.feed_forward_norm(x_BTD)))
            return out
        x_BTD = self.attention_norm(x_BTD + self.dropout(self.attention(x_BTD, mask_BT, rotation)))
        out = self.feed_forward_norm(x_BTD + self.dropout(self.feed_forward(x_BTD)))
        return out


class Encoder(nn.Module):
    """`n_layers` encoder layers, with a final layer norm for `pre` norm.

    `segments`: see `phonate.nn.checkpointing`.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        n_layers: int,
        d_ff: int,
        dropout: float = 0.1,
        norm: NormPlace = "post",
        activation: Activation = "relu",
        segments: Segments = None,
    ) -> None:
        super().__init__()
        self.segments = segments
        self.layers = nn.ModuleList(
            EncoderLayer(d_model, n_heads, d_ff, dropout, norm, activation) for _ in range(n_layers)
        )
        self.last_norm = nn.LayerNorm(d_model) if norm == "pre" else nn.Identity()

    def forward(
        self, x_BTD: Tensor, mask_BT: Tensor | None = None, rotation: tuple[Tensor, Tensor] | None = None
    ) -> Tensor:
        """(B, T, D) -> (B, T, D). Arguments as for `SelfAttention`."""
        out: Tensor = self.last_norm(run_layers(self.layers, x_BTD, mask_BT, rotation, segments=self.segments))
        return out
