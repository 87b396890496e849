"""Short-time spectra under mel filters, fast on a CPU.

torch.stft writes the whole complex spectrogram before anything is done with it. Here blocks of 128 frames go
from samples to mel while they are in the processor's cache, which takes half the time.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from phonate.audio.mel_filters import mel_filters as mel_filters

_FRAMES_PER_BLOCK = 128


class MelSpectrum:
    """Mel spectrogram of a waveform; frames are centred, beyond both ends there is silence."""

    def __init__(
        self,
        filters: npt.NDArray[np.float32],
        n_fft: int,
        hop_length: int,
        win_length: int,
        power: Literal[1, 2] = 1,
    ) -> None:
        """`filters` is (n_mels, n_fft // 2 + 1), as from `mel_filters`; `power` 1 sums magnitudes, 2 their squares."""
        self.n_fft, self.hop_length = n_fft, hop_length
        before = (n_fft - win_length) // 2
        window = torch.hann_window(win_length, dtype=torch.float64)
        self.window = torch.nn.functional.pad(window, (before, n_fft - win_length - before)).float()
        # Bins over fmax take part in no filter: their magnitudes are never computed.
        self.bins = int(np.flatnonzero(filters.any(axis=0)).max()) + 1
        self.filters_FM = torch.from_numpy(np.ascontiguousarray(filters[:, : self.bins].T))
        # For power, one product sums the squares of real and imaginary parts and the bins of a band.
        self.parts_FM = self.filters_FM.repeat_interleave(2, dim=0) if power == 2 else None

    @torch.no_grad()
    def __call__(self, waveform: torch.Tensor) -> torch.Tensor:
        """Waveform (samples,) float32 -> (frames, n_mels), where frames = 1 + samples // hop_length."""
        return self.of_padded(torch.nn.functional.pad(waveform, (self.n_fft // 2, self.n_fft // 2)))

    @torch.no_grad()
    def of_padded(self, padded: torch.Tensor) -> torch.Tensor:
        """Samples (samples,), among them those before the first frame's centre and after the last's -> (T, n_mels)."""
        frames_TN = padded.unfold(0, self.n_fft, self.hop_length)
        mel_TM = torch.empty(len(frames_TN), self.filters_FM.shape[1])
        for start in range(0, len(frames_TN), _FRAMES_PER_BLOCK):
            block = slice(start, start + _FRAMES_PER_BLOCK)
            spectrum_TF = torch.fft.rfft(frames_TN[block] * self.window)[:, : self.bins]
            # Not abs(): its guard against overflow takes longer than the transform.
            parts = torch.view_as_real(spectrum_TF).square_()
            if self.parts_FM is not None:
                torch.mm(parts.flatten(1), self.parts_FM, out=mel_TM[block])
            else:
                torch.mm((parts[..., 0] + parts[..., 1]).sqrt_(), self.filters_FM, out=mel_TM[block])
        return mel_TM
