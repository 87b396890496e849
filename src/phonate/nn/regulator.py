"""From tokens to frames: the length regulator (Ren et al. 2019, FastSpeech, section 3.2).

Shapes: B batch, L tokens, T frames.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def whole_frames(frames_BL: Tensor) -> Tensor:
    """Durations as whole numbers (B, L): what is cut from one token is given to the next, so the whole keeps its
    length."""
    ends_BL = torch.round(torch.cumsum(frames_BL, dim=1))
    return (ends_BL - F.pad(ends_BL, (1, 0))[:, :-1]).long()


def token_of_frame(durations_BL: Tensor, frames: int) -> Tensor:
    """Number of the token that each frame belongs to (B, T); the last token's for frames after the end."""
    ends_BL = torch.cumsum(durations_BL, dim=1)
    # How many tokens have ended before each frame: counted, since no runtime but torch's has searchsorted.
    ended_BT = torch.zeros_like(torch.arange(frames, device=ends_BL.device)).expand(ends_BL.shape[0], -1)
    ended_BT = F.pad(ended_BT, (0, 1)).scatter_add(1, ends_BL.clamp_max(frames), torch.ones_like(ends_BL))
    return torch.cumsum(ended_BT, dim=1)[:, :-1].clamp_max(ends_BL.shape[1] - 1)
