"""Features of a frozen Whisper encoder, projected to the width of the model and added to its embeddings.

The released checkpoint was trained without them. The gate is zero at first, so that training starts from the model as
it is, to the bit, and lets features in as far as they help.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phonate.audio.decoding import FloatArray
from phonate.audio.whisper import WhisperEncoder


class WhisperProjector(nn.Module):
    """Layer norm, a linear layer, and the gate."""

    def __init__(self, width_in: int, width: int) -> None:
        """`width_in`: of the encoder's features; `width`: of the model."""
        super().__init__()
        self.norm = nn.LayerNorm(width_in)
        self.linear = nn.Linear(width_in, width)
        self.gate = nn.Parameter(torch.zeros(()))

    def forward(self, features: Tensor) -> Tensor:
        """Features (..., width_in) -> what is added to embeddings (..., width)."""
        projected: Tensor = self.gate * self.linear(self.norm(features))
        return projected


@dataclass(frozen=True)
class WhisperConditioning:
    """The encoder and the projector of a model that was trained with them."""

    encoder: WhisperEncoder
    projector: WhisperProjector


def heard_features(encoder: WhisperEncoder, waveform: FloatArray, sample_rate: int, frames: int) -> FloatArray:
    """Whisper's features of a recording, as many as it has frames of codes: (frames, width of the encoder).

    Whisper's 50 features a second are averaged over each frame of the codec, 25 a second.
    """
    features_TC = torch.from_numpy(encoder(waveform, sample_rate))
    averaged = F.adaptive_avg_pool1d(features_TC.T[None], frames)[0].T
    return np.ascontiguousarray(averaged.numpy())


def features_width(encoder: WhisperEncoder) -> int:
    """Width of the encoder's features."""
    return int(encoder(np.zeros(1600, dtype=np.float32), 16000).shape[1])
