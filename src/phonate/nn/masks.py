"""Masks over padded batches: True for real frames, False for padding."""

from __future__ import annotations

import torch
from torch import Tensor


def frame_mask(lengths_B: Tensor, frames: int) -> Tensor:
    """(B, frames) boolean mask with True for the first `lengths_B[b]` frames of each row."""
    positions_T = torch.arange(frames, device=lengths_B.device)
    return positions_T[None, :] < lengths_B[:, None]
