"""The convolution module of a layer (Gulati et al. 2020, "Conformer", section 2.2, with layer norm instead of batch
norm).

Shapes: B batch, T frames, D model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phonate.nn.convolution import zero_padding


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
