"""Spectral convergence (Arik et al. 2018, equation 3)."""

from __future__ import annotations

from torch import Tensor

from phonate.nn.losses._base import Loss, SumCount
from phonate.nn.losses._stft import convergence, magnitudes, waveforms


class SpectralLoss(Loss):
    """|| |Y| - |X| || / || |Y| || over each item's magnitude spectrum; the count is the number of items.

    Outputs and targets are waveforms (B, S); the mask is (B, S). An item whose target is silent has no ratio
    and does not count.
    """

    def __init__(self, n_fft: int = 1024, hop_length: int = 256) -> None:
        super().__init__()
        self.n_fft = n_fft
        self.hop_length = hop_length

    def measure(self, outputs: Tensor, targets: Tensor, mask: Tensor | None) -> SumCount:
        """See `Loss.measure`."""
        outputs, targets, lengths = waveforms("spectral", outputs, targets.to(outputs.dtype), mask)
        magnitude, kept = magnitudes(outputs, lengths, self.n_fft, self.hop_length)
        wanted, _ = magnitudes(targets, lengths, self.n_fft, self.hop_length)
        values, audible = convergence(magnitude, wanted, kept)
        return values.sum(), audible.sum()
