"""Convolutions over padded batches of frames.

Shapes: B batch, T frames, F features of a frame.
"""

from __future__ import annotations

import itertools

from torch import Tensor, nn


def zero_padding(x_BTF: Tensor, mask_BT: Tensor | None) -> Tensor:
    """`x_BTF` (B, T, F) with zeros in its padding, so that a convolution does not carry padding into real frames."""
    return x_BTF if mask_BT is None else x_BTF * mask_BT[:, :, None].to(x_BTF.dtype)


class Downsampling(nn.Module):
    """A strided convolution over time: (B, T, F) -> (B, ceil(T / stride), out)."""

    def __init__(self, features: int, out_features: int, stride: int, width: int = 5) -> None:
        super().__init__()
        self.stride = stride
        self.convolution = nn.Conv1d(features, out_features, width, stride=stride, padding=width // 2)

    def forward(self, x_BTF: Tensor, mask_BT: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Frames (B, T', out), and their mask (B, T')."""
        out_BTF = self.convolution(zero_padding(x_BTF, mask_BT).transpose(1, 2)).transpose(1, 2)
        return out_BTF, None if mask_BT is None else mask_BT[:, :: self.stride]


class PostNet(nn.Module):
    """Residual convolutions that refine a predicted spectrogram (Shen et al. 2018, Tacotron 2, section 2.2)."""

    def __init__(self, features: int, hidden: int, layers: int, width: int = 5, dropout: float = 0.1) -> None:
        super().__init__()
        sizes = [features, *[hidden] * (layers - 1), features]
        self.convolutions = nn.ModuleList(
            nn.Conv1d(into, out, width, padding=width // 2) for into, out in itertools.pairwise(sizes)
        )
        self.activation = nn.Tanh()
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_BTF: Tensor, mask_BT: Tensor | None = None) -> Tensor:
        """(B, T, F) -> (B, T, F): the input plus the output of the convolutions."""
        change_BTF = x_BTF
        for number, convolution in enumerate(self.convolutions, start=1):
            change_BTF = convolution(zero_padding(change_BTF, mask_BT).transpose(1, 2)).transpose(1, 2)
            if number < len(self.convolutions):
                change_BTF = self.dropout(self.activation(change_BTF))
        return x_BTF + change_BTF
