"""ConvNeXt blocks over frames (Liu et al. 2022; in one dimension as in Siuzdak 2023, "Vocos", section 3.3).

Shapes: B batch, T frames, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from phonate.nn.convolution import PastFrames, convolution, limited, zero_padding


class ConvNeXtBlock(nn.Module):
    """Depthwise convolution, layer norm, a feed-forward network and a residual connection: (B, T, D) -> (B, T, D)."""

    def __init__(
        self,
        width: int,
        kernel: int = 7,
        expansion: int = 3,
        scale: float = 1.0,
        dropout: float = 0.0,
        causal: bool = False,
    ) -> None:
        """`scale`: initial factor of the branch, which is trained; deep networks need a small one. `causal`: no frame
        depends on later ones."""
        super().__init__()
        self.depthwise = convolution(width, width, kernel, 0 if causal else None, groups=width)
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
        return self._add(x_BTD, self.depthwise(zero_padding(x_BTD, mask_BT).transpose(1, 2)))

    def step(self, x_BTD: Tensor, past: PastFrames) -> Tensor:
        """`forward` of a causal block for the next frames (B, T, D); updates `past` in place."""
        return self._add(x_BTD, limited(self.depthwise).step(x_BTD.transpose(1, 2), past))

    def _add(self, x_BTD: Tensor, mixed_BDT: Tensor) -> Tensor:
        out_BTD: Tensor = x_BTD + self.scale * self.feed_forward(self.norm(mixed_BDT.transpose(1, 2)))
        return out_BTD


class ConvNeXt(nn.Module):
    """`layers` blocks and a final layer norm: (B, T, D) -> (B, T, D). A `causal` one can run incrementally."""

    def __init__(
        self,
        width: int,
        layers: int,
        kernel: int = 7,
        expansion: int = 3,
        dropout: float = 0.0,
        causal: bool = False,
    ) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            ConvNeXtBlock(width, kernel, expansion, 1.0 / max(1, layers), dropout, causal) for _ in range(layers)
        )
        self.last_norm = nn.LayerNorm(width)

    def forward(self, x_BTD: Tensor, mask_BT: Tensor | None = None) -> Tensor:
        """(B, T, D) -> (B, T, D). `mask_BT` (B, T) is True for real frames."""
        for block in self.blocks:
            x_BTD = block(x_BTD, mask_BT)
        out: Tensor = self.last_norm(x_BTD)
        return out

    def initial_state(self, batch: int) -> list[PastFrames]:
        """The state before the first `step` of a causal one."""
        return [limited(block.depthwise).initial_state(batch) for block in self._typed()]

    def step(self, x_BTD: Tensor, state: list[PastFrames]) -> Tensor:
        """`forward` for the next frames (B, T, D); updates `state` in place."""
        for block, past in zip(self._typed(), state, strict=True):
            x_BTD = block.step(x_BTD, past)
        out: Tensor = self.last_norm(x_BTD)
        return out

    def _typed(self) -> list[ConvNeXtBlock]:
        return [block for block in self.blocks if isinstance(block, ConvNeXtBlock)]
