"""Mel frames compared as loudly as they are heard."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from phonate.config.errors import InputError
from phonate.nn.losses._base import Loss, SumCount, expanded, same_shape


class PerceptualLoss(Loss):
    """Absolute difference of mel frames (..., F), each band weighed by the A-curve of hearing (IEC 61672-1).

    The weights have a mean of 1, so the size is that of `l1`. The count is the number of cells.

    Args:
        fmin: Lower edge of the mel bands in Hz.
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
        low, high = _mel(self.fmin), _mel(self.fmax)
        centres = [_hertz(low + (high - low) * (band + 1) / (bands + 1)) for band in range(bands)]
        heard = [_a_curve(centre) for centre in centres]
        mean = sum(heard) / bands
        return [weight / mean for weight in heard]


def _mel(hertz: float) -> float:
    return 2595 * math.log10(1 + hertz / 700)


def _hertz(mel: float) -> float:
    return 700 * (10 ** (mel / 2595) - 1)


def _a_curve(hertz: float) -> float:
    """The A-weighting of a frequency as a factor on amplitudes, up to a constant."""
    square = hertz**2
    return (12194**2 * square**2) / (
        (square + 20.6**2) * math.sqrt((square + 107.7**2) * (square + 737.9**2)) * (square + 12194**2)
    )
