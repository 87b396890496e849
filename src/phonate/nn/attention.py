"""Softmax attention over padded batches.

Shapes: B batch, T frames, D model, H heads, E = D / H dimensions of a head.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from phonate.nn.positions import rotate


class SelfAttention(nn.Module):
    """Multi-head self-attention (Vaswani et al. 2017, section 3.2)."""

    def __init__(self, d_model: int, n_heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        if d_model % n_heads:
            raise ValueError(f"d_model {d_model} can't be divided among {n_heads} heads")
        self.n_heads = n_heads
        self.dropout = dropout
        self.query_key_value = nn.Linear(d_model, 3 * d_model)
        self.output = nn.Linear(d_model, d_model)

    def forward(
        self, x_BTD: Tensor, mask_BT: Tensor | None = None, rotation: tuple[Tensor, Tensor] | None = None
    ) -> Tensor:
        """(B, T, D) -> (B, T, D).

        Args:
            x_BTD: Frames.
            mask_BT: True for frames that are attended to; None: all.
            rotation: Cosines and sines from `RotaryPositions`; None: no rotation.
        """
        batch, frames, width = x_BTD.shape
        packed = self.query_key_value(x_BTD).view(batch, frames, 3, self.n_heads, width // self.n_heads)
        query_BHTE, key_BHTE, value_BHTE = packed.permute(2, 0, 3, 1, 4).unbind(0)
        if rotation is not None:
            query_BHTE, key_BHTE = rotate(query_BHTE, rotation), rotate(key_BHTE, rotation)
        # in the boolean mask of scaled_dot_product_attention, too, True takes part
        attended_BHTE = F.scaled_dot_product_attention(
            query_BHTE,
            key_BHTE,
            value_BHTE,
            attn_mask=None if mask_BT is None else mask_BT[:, None, None, :],
            dropout_p=self.dropout if self.training else 0.0,
        )
        out: Tensor = self.output(attended_BHTE.transpose(1, 2).reshape(batch, frames, width))
        return out
