"""Masks over padded batches, and the length regulator.

Shapes: B batch, L tokens, T frames.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

# ---------------------------------- Masks over padded batches: True for real frames, False for padding


def frame_mask(lengths_B: Tensor, frames: int) -> Tensor:
    """(B, frames) boolean mask with True for the first `lengths_B[b]` frames of each row."""
    positions_T = torch.arange(frames, device=lengths_B.device)
    return positions_T[None, :] < lengths_B[:, None]


# -------------- From tokens to frames: the length regulator (Ren et al. 2019, FastSpeech, section 3.2)


def rounded_durations(frames_BL: Tensor) -> Tensor:
    """Durations (B, L) as integers. Rounding errors carry over to the next token, so the total is kept."""
    ends_BL = torch.round(torch.cumsum(frames_BL, dim=1))
    return (ends_BL - F.pad(ends_BL, (1, 0))[:, :-1]).long()


def token_indices(durations_BL: Tensor, frames: int, lengths_B: Tensor | None = None) -> Tensor:
    """Index of the token that each frame belongs to: (B, L) -> (B, frames). Frames after the end get the last token,
    which `lengths_B` says of items of different lengths."""
    ends_BL = torch.cumsum(durations_BL, dim=1)
    # the number of tokens that end before each frame; counted, because other runtimes have no searchsorted
    ended_BT = torch.zeros_like(torch.arange(frames, device=ends_BL.device)).expand(ends_BL.shape[0], -1)
    ended_BT = F.pad(ended_BT, (0, 1)).scatter_add(1, ends_BL.clamp_max(frames), torch.ones_like(ends_BL))
    ended_BT = torch.cumsum(ended_BT, dim=1)[:, :-1].clamp_max(ends_BL.shape[1] - 1)
    return ended_BT if lengths_B is None else torch.minimum(ended_BT, lengths_B[:, None] - 1)
