"""The acoustic model of recognition: for each 40 ms or so, how likely each symbol is.

Convolutions alone: what it says of a moment depends on a known stretch around it, so a long recording can be read in
windows with the same result. Shapes: B batch, T mel frames, M mel bands, U = ceil(ceil(T / 2) / 2) frames, D width,
S symbols.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.nn import functional as F

from phonate.nn.convolution import ConvNeXt, Downsampling
from phonate.nn.norms import LayerNorm
from phonate.nn.sequences import Dropout, frame_mask

if TYPE_CHECKING:
    from phonate.tasks.recognition.settings import RecognitionModel

SUBSAMPLING = 4
"""Mel frames for which the model gives one."""
_STEM_WIDTH = 5


def reduced(frames: Any) -> Any:
    """Frames that the model makes of so many mel frames (an integer, or a tensor or array of them)."""
    return (frames + SUBSAMPLING - 1) // SUBSAMPLING


class CtcModel(nn.Module):
    """Two convolutions that halve the frame rate, ConvNeXt blocks, and a linear layer to the symbols."""

    def __init__(self, n_mels: int, symbols: int, width: int, layers: int, kernel: int, dropout: float) -> None:
        super().__init__()
        self.first = Downsampling(n_mels, width, 2, _STEM_WIDTH)
        self.second = Downsampling(width, width, 2, _STEM_WIDTH)
        self.norm = LayerNorm(width)
        self.blocks = ConvNeXt(width, layers, kernel, dropout=dropout)
        self.dropout = Dropout(dropout)
        self.output = nn.Linear(width, symbols)
        half = _STEM_WIDTH // 2
        self.context = half + 2 * half + SUBSAMPLING * layers * (kernel // 2)
        """Mel frames on each side of a moment that the model looks at."""

    def forward(self, mel_BTM: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (B, U, S) and how many frames of each are real. What lies behind an item's length changes nothing."""
        mask_BT = frame_mask(lengths_B, mel_BTM.shape[1])
        x_BTD, half_BT = self.first(mel_BTM, mask_BT)
        x_BUD, mask_BU = self.second(F.gelu(x_BTD, approximate="tanh"), half_BT)
        x_BUD = self.blocks(self.norm(x_BUD), mask_BU)
        return self.output(self.dropout(x_BUD)), reduced(lengths_B)


def build_model(settings: RecognitionModel, n_mels: int, symbols: int) -> CtcModel:
    """The model that the recipe's `model` part describes."""
    return CtcModel(n_mels, symbols, settings.width, settings.layers, settings.kernel, settings.dropout)
