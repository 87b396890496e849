"""Multi-resolution STFT loss (Yamamoto et al. 2020, "Parallel WaveGAN", equations 3 to 6)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from phonate.nn.losses._base import Loss, SumCount
from phonate.nn.losses._stft import convergence, magnitudes, waveforms

FLOOR = 1e-7
"""Added to magnitudes before the logarithm."""


class MultiResolutionSTFTLoss(Loss):
    """Spectral convergence plus the mean |log magnitude| difference, averaged over resolutions.

    Both are computed per item; the count is the number of items. Outputs and targets are waveforms (B, S); the mask is
    (B, S). A silent target has no spectral convergence, only the logarithmic term.

    Args:
        resolutions: (n_fft, hop length) in samples.
    """

    reads = "audio"

    def __init__(self, resolutions: Sequence[tuple[int, int]] = ((1024, 256), (2048, 512), (512, 128))) -> None:
        super().__init__()
        self.resolutions = tuple((int(n_fft), int(hop_length)) for n_fft, hop_length in resolutions)

    def measure(self, outputs: Tensor, targets: Tensor, mask: Tensor | None) -> SumCount:
        """See `Loss.measure`."""
        outputs, targets, lengths = waveforms("multi_resolution_stft", outputs, targets.to(outputs.dtype), mask)
        values = torch.stack(
            [self._resolution(outputs, targets, lengths, *resolution) for resolution in self.resolutions]
        )
        return values.mean(0).sum(), (lengths > 0).sum()

    def _resolution(self, outputs: Tensor, targets: Tensor, lengths: Tensor, n_fft: int, hop_length: int) -> Tensor:
        """The loss of each item (B,) at one resolution."""
        magnitude, kept = magnitudes(outputs, lengths, n_fft, hop_length)
        wanted, _ = magnitudes(targets, lengths, n_fft, hop_length)
        ratio, _ = convergence(magnitude, wanted, kept)
        difference = ((magnitude + FLOOR).log() - (wanted + FLOOR).log()).abs().masked_fill(~kept, 0)
        cells = kept.sum((1, 2)).clamp_min(1) * magnitude.shape[1]
        return ratio + difference.sum((1, 2)) / cells
