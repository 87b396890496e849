"""Likeness of voices by what the network makes of them: hidden states of the reference's and of the target's frames.

Shapes: S samples, A frames, H width of the network.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from phonate.nn.losses._base import SumCount
from phonate.nn.losses.contrastive import ContrastiveLoss


def contrastive_loss(
    hidden_NH: Tensor, frame_positions_A: Tensor, pools_A: Tensor, speakers_S: Tensor, temperature: float
) -> SumCount:
    """InfoNCE between references and targets (van den Oord et al. 2018, https://arxiv.org/abs/1807.03748), with the
    voices of other speakers in the batch as negatives.

    Hidden states of the frames of a voice are averaged, normalised like a layer's input, and centred over the batch:
    before, the part that all voices share outweighs what tells them apart.

    Args:
        hidden_NH: Last hidden states at all positions (B * L, H).
        frame_positions_A: Where the frames stand.
        pools_A: 2 s for frames of the reference of sample s, 2 s + 1 for those of its target, -1 for neither.
        speakers_S: Numbers of the samples' speakers; voices of one speaker are never negatives of each other.
        temperature: Cosines are divided by it.

    Returns:
        Sum and count over the 2 S voices; 0 with a single speaker.
    """
    with torch.autocast(hidden_NH.device.type, enabled=False):
        voices_VH = _pooled(hidden_NH[frame_positions_A].float(), pools_A, 2 * len(speakers_S))
        voices_VH = F.layer_norm(voices_VH, voices_VH.shape[-1:])
        voices_VH = voices_VH - voices_VH.mean(0)
        labels_V = speakers_S.repeat_interleave(2)
        found: SumCount = ContrastiveLoss(temperature)(voices_VH, labels_V)
        return found


def _pooled(frames_AH: Tensor, pools_A: Tensor, voices: int) -> Tensor:
    """Means over the frames of each voice (voices, H). Frames of pool -1 go into one more, which is dropped."""
    pools_A = pools_A % (voices + 1)
    sums = frames_AH.new_zeros(voices + 1, frames_AH.shape[-1]).index_add(0, pools_A, frames_AH)
    counts = frames_AH.new_zeros(voices + 1).index_add(0, pools_A, torch.ones_like(frames_AH[:, 0]))
    return (sums / counts.clamp_min(1)[:, None])[:-1]
