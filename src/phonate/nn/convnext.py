"""ConvNeXt blocks over frames (Liu et al. 2022; in one dimension as in Siuzdak 2023, "Vocos", section 3.3).

Shapes: B batch, T frames, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from phonate.nn.convolution import zero_padding


class ConvNeXtBlock(nn.Module):
    """Depthwise convolution, layer norm, a feed-forward network and a residual connection: (B, T, D) -> (B, T, D)."""

    def __init__(
        self, width: int, kernel: int = 7, expansion: int = 3, scale: float = 1.0, dropout: float = 0.0
    ) -> None:
        """`scale`: initial factor of the branch, which is trained; deep networks need a small one."""
        super().__init__()
        self.depthwise = nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=width)
        self.norm = nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, expansion * width),
            nn.GELU(approximate="tanh"),
            nn.Dropout(dropout),
            nn.Linear(expansion * width, width),
        )
        self.scale = nn.Parameter(torch.full((width,), scale))

    def forward(self, x_BTD: Tensor, mask_BT: Tensor | None = None) -> Tensor:
        """(B, T, D) -> (B, T, D). `mask_BT` (B, T) is True for real frames; padding does not affect them."""
        mixed_BTD = self.depthwise(zero_padding(x_BTD, mask_BT).transpose(1, 2)).transpose(1, 2)
        out_BTD: Tensor = x_BTD + self.scale * self.feed_forward(self.norm(mixed_BTD))
        return out_BTD


class ConvNeXt(nn.Module):
    """`layers` blocks and a final layer norm: (B, T, D) -> (B, T, D)."""

    def __init__(self, width: int, layers: int, kernel: int = 7, expansion: int = 3, dropout: float = 0.0) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            ConvNeXtBlock(width, kernel, expansion, 1.0 / max(1, layers), dropout) for _ in range(layers)
        )
        self.last_norm = nn.LayerNorm(width)

    def forward(self, x_BTD: Tensor, mask_BT: Tensor | None = None) -> Tensor:
        """(B, T, D) -> (B, T, D). `mask_BT` (B, T) is True for real frames."""
        for block in self.blocks:
            x_BTD = block(x_BTD, mask_BT)
        out: Tensor = self.last_norm(x_BTD)
        return out
