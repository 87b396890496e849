"""Spectra for losses over waveforms. B items, S samples, K = n_fft / 2 + 1 bins, T frames."""

from __future__ import annotations

import torch
from torch import Tensor

from phonate.config.errors import InputError
from phonate.nn.losses._base import same_shape

STFT_LOSSES = frozenset({"spectral", "multi_resolution_stft", "stft"})
"""The losses that compare waveforms."""


def waveforms(name: str, outputs: Tensor, targets: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs and targets as (B, S), zero where masked, and the length (B,) of each item in samples.

    Args:
        name: Name of the loss, for errors.
        outputs: (B, S) or (B, 1, S).
        targets: The same shape.
        mask: (B, S), True for the samples of each item; padding is at the end.

    Raises:
        InputError: Anything but waveforms, such as mel frames.
    """
    same_shape(outputs, targets)
    if outputs.dim() == 3 and outputs.shape[1] == 1:
        outputs, targets = outputs[:, 0], targets[:, 0]
    if outputs.dim() != 2:
        raise InputError(
            f"{name} compares waveforms (batch, samples), not values of {tuple(outputs.shape)}; for mel "
            "frames choose mse or l1, or give the waveforms"
        )
    if mask is None:
        return outputs, targets, torch.full(outputs.shape[:1], outputs.shape[1], device=outputs.device)
    if mask.shape != outputs.shape:
        raise InputError(f"{name}: a mask of {tuple(mask.shape)} does not fit {tuple(outputs.shape)} samples")
    kept = mask.bool()
    return outputs.masked_fill(~kept, 0), targets.masked_fill(~kept, 0), kept.sum(-1)


def magnitudes(samples: Tensor, lengths: Tensor, n_fft: int, hop_length: int) -> tuple[Tensor, Tensor]:
    """Hann-windowed magnitude spectra (B, K, T), and a mask (B, 1, T) of each item's frames.

    Frames are centred and the signal is padded with zeros, so an item has the same frames alone as in a padded batch.

    Args:
        samples: (B, S).
        lengths: (B,) samples of each item.
        n_fft: Samples of a frame.
        hop_length: Samples from frame to frame.
    """
    window = torch.hann_window(n_fft, dtype=samples.dtype, device=samples.device)
    spectra = torch.stft(
        samples, n_fft, hop_length, window=window, center=True, pad_mode="constant", return_complex=True
    )
    centres = hop_length * torch.arange(spectra.shape[-1], device=samples.device)
    kept = (centres <= lengths[:, None]) & (lengths[:, None] > 0)
    return spectra.abs(), kept[:, None]


def convergence(outputs: Tensor, targets: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """Spectral convergence (B,) of each item, and a mask (B,) of the items that have one: silent targets have none.

    ||targets - outputs|| / ||targets|| in the Frobenius norm (Arik et al. 2018, equation 3).

    Args:
        outputs: Magnitudes (B, K, T).
        targets: Magnitudes (B, K, T).
        kept: (B, 1, T), True for real frames.
    """
    distance = torch.linalg.vector_norm((targets - outputs).masked_fill(~kept, 0), dim=(1, 2))
    size = torch.linalg.vector_norm(targets.masked_fill(~kept, 0), dim=(1, 2))
    audible = size > 0
    return (distance / size.masked_fill(~audible, 1)).masked_fill(~audible, 0), audible
