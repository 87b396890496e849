"""Positional encodings: sinusoids or learnt vectors added to the input, or rotations of queries and keys.

Shapes: B batch, H heads, T frames, E dimensions of a head, D = H x E.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


def sinusoids(frames: int, d_model: int) -> Tensor:
    """(frames, d_model) sinusoidal table (Vaswani et al. 2017, section 3.5); sines in the even columns."""
    position_T1 = torch.arange(frames, dtype=torch.float32)[:, None]
    rate = torch.exp(torch.arange(0, d_model, 2, dtype=torch.float32) * (-math.log(10000.0) / d_model))
    table_TD = torch.zeros(frames, d_model)
    table_TD[:, 0::2] = torch.sin(position_T1 * rate)
    table_TD[:, 1::2] = torch.cos(position_T1 * rate[: d_model // 2])
    return table_TD


class SinusoidalPositions(nn.Module):
    """Adds sinusoids to (B, T, D). Sequences longer than `max_frames` raise ValueError, unless the table `grows`."""

    table_TD: Tensor

    def __init__(self, d_model: int, max_frames: int, grows: bool = False) -> None:
        super().__init__()
        self.grows = grows
        # not in the state dict: it follows from the settings
        self.register_buffer("table_TD", sinusoids(max_frames, d_model), persistent=False)

    def forward(self, x_BTD: Tensor, start: int = 0) -> Tensor:
        """(B, T, D) with positions start .. start + T - 1 added."""
        end = start + x_BTD.shape[1]
        if not torch.onnx.is_in_onnx_export() and end > self.table_TD.shape[0]:
            if not self.grows:
                raise ValueError(f"{end} frames are more than the model's max_seq_len {self.table_TD.shape[0]}")
            self.table_TD = sinusoids(2 * end, self.table_TD.shape[1]).to(self.table_TD.device)
        return x_BTD + self.table_TD[start:end].to(x_BTD.dtype)


class LearntPositions(nn.Module):
    """Adds a learnt vector for each position to (B, T, D). Longer sequences than `max_frames` raise ValueError."""

    def __init__(self, d_model: int, max_frames: int) -> None:
        super().__init__()
        self.table_TD = nn.Parameter(torch.empty(max_frames, d_model))
        nn.init.normal_(self.table_TD, std=0.02)

    def forward(self, x_BTD: Tensor, start: int = 0) -> Tensor:
        """(B, T, D) with positions start .. start + T - 1 added."""
        end = start + x_BTD.shape[1]
        if end > self.table_TD.shape[0]:
            raise ValueError(
                f"{end} frames are more than the {self.table_TD.shape[0]} learnt positions of the model (max_seq_len)"
            )
        return x_BTD + self.table_TD[start:end].to(x_BTD.dtype)


class RotaryPositions(nn.Module):
    """Rotary embedding (Su et al. 2021): attention depends on the distance of two frames, not on their positions.

    So a model trained on short crops can be run on windows of any length.
    """

    rate_E: Tensor

    def __init__(self, head_dim: int, base: float = 10000.0) -> None:
        super().__init__()
        if head_dim % 2:
            raise ValueError(f"rotary positions need an even head dimension, not {head_dim}")
        rate = base ** (-torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
        self.register_buffer("rate_E", rate, persistent=False)

    def forward(self, frames: int, start: int = 0) -> tuple[Tensor, Tensor]:
        """Cosines and sines, each (frames, head_dim / 2), of positions from `start` on, for `rotate`."""
        position_T = torch.arange(start, start + frames, device=self.rate_E.device, dtype=torch.float32)
        angle_TE = position_T[:, None] * self.rate_E
        return torch.cos(angle_TE), torch.sin(angle_TE)


def rotate(x_BHTE: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate each pair (x[e], x[e + E/2]) of queries or keys (B, H, T, E) by the angle of its frame."""
    cosine_TE, sine_TE = (part.to(x_BHTE.dtype) for part in rotation)
    first, second = x_BHTE.chunk(2, dim=-1)
    turned = (
        torch.addcmul(first * cosine_TE, second, sine_TE, value=-1),
        torch.addcmul(first * sine_TE, second, cosine_TE),
    )
    return torch.cat(turned, dim=-1)


Positions = SinusoidalPositions | LearntPositions | RotaryPositions
