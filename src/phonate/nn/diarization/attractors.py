"""Encoder-decoder attractors: a vector for each speaker, computed from all frames, with its existence logit.

Horiguchi et al. 2020, "End-to-end speaker diarization for an unknown number of speakers with encoder-decoder based
attractors".

Shapes: B items, U output frames, D model, N attractors.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence


class EncoderDecoderAttractors(nn.Module):
    """An LSTM encoder over the frames, and an LSTM decoder that emits one attractor per step.

    In training, the encoder reads the frames in random order, drawn from torch's global generator, so that attractors
    do not depend on the time of speech.
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.encoder = nn.LSTM(d_model, d_model, batch_first=True)
        self.decoder = nn.LSTM(d_model, d_model, batch_first=True)
        self.existence = nn.Linear(d_model, 1)

    def forward(self, x_BUD: Tensor, mask_BU: Tensor, attractors: int) -> tuple[Tensor, Tensor]:
        """Attractors (B, N, D), and their existence logits (B, N).

        Args:
            x_BUD: Frames.
            mask_BU: True for real frames, which come first.
            attractors: N.
        """
        if self.training:
            x_BUD = shuffled(x_BUD, mask_BU)
        lengths = mask_BU.sum(1).clamp_min(1).cpu()  # required on the host
        packed = pack_padded_sequence(x_BUD, lengths, batch_first=True, enforce_sorted=False)
        _, state = self.encoder(packed)
        nothing_BND = x_BUD.new_zeros(len(x_BUD), attractors, x_BUD.shape[2])
        attractors_BND, _ = self.decoder(nothing_BND, state)
        return attractors_BND, self.existence(attractors_BND)[..., 0]


def shuffled(x_BUD: Tensor, mask_BU: Tensor) -> Tensor:
    """The real frames of each item in random order, followed by padding."""
    keys_BU = torch.rand(mask_BU.shape, device=x_BUD.device).masked_fill(~mask_BU, 2.0)
    return x_BUD.gather(1, keys_BU.argsort(1)[:, :, None].expand_as(x_BUD))
