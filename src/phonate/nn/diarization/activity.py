"""Converts reference activity to the frame rate and number of speakers of a model's output.

Shapes: B items, T feature frames, U = ceil(T / stride) output frames, S speakers of the reference, K of the model.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def subsampled(activity_BTS: Tensor, mask_BT: Tensor, stride: int) -> tuple[Tensor, Tensor]:
    """Binary activity (B, U, S), and the mask (B, U), True for output frames with a real feature frame.

    A speaker is active in an output frame if active in at least half of its real feature frames. The values of
    `activity_BTS` in padding are ignored.
    """
    missing = -activity_BTS.shape[1] % stride
    real_BTS = activity_BTS.float().masked_fill(~mask_BT[:, :, None], 0)
    batch, frames, speakers = real_BTS.shape
    groups = (frames + missing) // stride
    sums_BUS = F.pad(real_BTS, (0, 0, 0, missing)).view(batch, groups, stride, speakers).sum(2)
    counts_BU = F.pad(mask_BT.float(), (0, missing)).view(batch, groups, stride).sum(2)
    mask_BU = counts_BU > 0
    active_BUS = (2 * sums_BUS >= counts_BU[:, :, None]) & mask_BU[:, :, None]
    return active_BUS.to(torch.float32), mask_BU


def most_active(activity_BUS: Tensor, speakers: int) -> tuple[Tensor, Tensor]:
    """Activity (B, U, K) of the K = `speakers` most active speakers, in their original order, and their columns (B, K).

    If there are fewer, columns of zeros are appended, with index -1.
    """
    batch, _, given = activity_BUS.shape
    if given <= speakers:
        index_K = torch.arange(speakers, device=activity_BUS.device)
        columns_BK = index_K.masked_fill(index_K >= given, -1).expand(batch, speakers)
        return F.pad(activity_BUS, (0, speakers - given)), columns_BK
    order_BS = activity_BUS.sum(1).argsort(dim=-1, descending=True, stable=True)
    columns_BK = order_BS[:, :speakers].sort(-1).values
    kept_BUK = activity_BUS.gather(2, columns_BK[:, None, :].expand(-1, activity_BUS.shape[1], -1))
    return kept_BUK, columns_BK
