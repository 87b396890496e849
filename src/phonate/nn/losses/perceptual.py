"""A-weighted L1 distance of mel frames."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from phonate.audio.mel_scale import band_edges
from phonate.config.errors import InputError
from phonate.nn.losses._base import Loss, SumCount, expanded, same_shape


class PerceptualLoss(Loss):
    """Absolute difference of mel frames (..., F), with bands weighted by the A-weighting curve (IEC 61672-1).

    The mean of the weights is 1, so the scale is that of `l1`. The count is the number of elements.

    Args:
        fmin: Lower edge of the mel bands of the features, in Hz.
        fmax: Upper edge, in Hz.
    """

    reads = "audio"

    def __init__(self, fmin: float = 0.0, fmax: float = 8000.0) -> None:
        super().__init__()
        self.fmin = fmin
        self.fmax = fmax

    def measure(self, outputs: Tensor, targets: Tensor, mask: Tensor | None) -> SumCount:
        """See `Loss.measure`."""
        same_shape(outputs, targets)
        if outputs.dim() < 2:
            raise InputError(f"perceptual compares mel frames (..., bands), not {tuple(outputs.shape)}")
        weights = torch.tensor(self.weights(outputs.shape[-1]), dtype=outputs.dtype, device=outputs.device)
        if mask is None:
            return ((outputs - targets).abs() * weights).sum(), float(outputs.numel())
        kept = expanded(mask, outputs)
        difference = outputs.masked_fill(~kept, 0) - targets.masked_fill(~kept, 0)
        return (difference.abs() * weights).sum(), kept.sum()

    def weights(self, bands: int) -> list[float]:
        """The weight of each of `bands` mel bands; their mean is 1."""
        weights = [_a_curve(centre) for centre in band_edges(bands, self.fmin, self.fmax)[1:-1]]
        mean = sum(weights) / bands
        return [weight / mean for weight in weights]


def _a_curve(hertz: float) -> float:
    """The A-weighting of a frequency as a factor on amplitudes, up to a constant."""
    square = hertz**2
    return (12194**2 * square**2) / (
        (square + 20.6**2) * math.sqrt((square + 107.7**2) * (square + 737.9**2)) * (square + 12194**2)
    )
