"""Mel frames compared as loudly as they are heard."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from phonate.audio.mel_scale import band_edges
from phonate.config.errors import InputError
from phonate.nn.losses._base import Loss, SumCount, expanded, same_shape


class PerceptualLoss(Loss):
    """Absolute difference of mel frames (..., F), each band weighed by the A-curve of hearing (IEC 61672-1).

    The weights have a mean of 1, so the size is that of `l1`. The count is the number of cells.

    Args:
        fmin: Lower edge of the mel bands in Hz; they lie as those of the features do.
        fmax: Upper edge in Hz.
    """

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
        heard = [_a_curve(centre) for centre in band_edges(bands, self.fmin, self.fmax)[1:-1]]
        mean = sum(heard) / bands
        return [weight / mean for weight in heard]


def _a_curve(hertz: float) -> float:
    """The A-weighting of a frequency as a factor on amplitudes, up to a constant."""
    square = hertz**2
    return (12194**2 * square**2) / (
        (square + 20.6**2) * math.sqrt((square + 107.7**2) * (square + 737.9**2)) * (square + 12194**2)
    )
