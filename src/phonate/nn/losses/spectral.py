"""Spectral convergence (Arik et al. 2018, equation 3)."""

from __future__ import annotations

from torch import Tensor

from phonate.nn.losses._base import Loss, SumCount
from phonate.nn.losses._stft import convergence, magnitudes, waveforms


class SpectralLoss(Loss):
    """|| |Y| - |X| || / || |Y| || of each item's magnitude spectra; the count is the number of items.

    Outputs X and targets Y are waveforms (B, S); the mask is (B, S). Items with a silent target do not count.
    """

    reads = "audio"

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
