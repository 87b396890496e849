"""From tokens to frames: the length regulator (Ren et al. 2019, FastSpeech, section 3.2).

Shapes: B batch, L tokens, T frames.
"""

from __future__ import annotations

import torch
from torch import Tensor


def whole_frames(frames_BL: Tensor) -> Tensor:
    """Durations as whole numbers (B, L): what is cut from one token is given to the next, so the whole keeps its
    length."""
    ends_BL = torch.round(torch.cumsum(frames_BL, dim=1))
    return torch.diff(ends_BL, dim=1, prepend=torch.zeros_like(ends_BL[:, :1])).long()


def token_of_frame(durations_BL: Tensor, frames: int) -> Tensor:
    """Number of the token that each frame belongs to (B, T); the last token's for frames after the end."""
    ends_BL = torch.cumsum(durations_BL, dim=1)
    frame_T = torch.arange(frames, device=ends_BL.device)
    token_BT = torch.searchsorted(ends_BL, frame_T.expand(len(ends_BL), -1).contiguous(), right=True)
    return token_BT.clamp_max(ends_BL.shape[1] - 1)
