"""From mel magnitudes to a waveform without a trained vocoder, by Griffin-Lim."""

from __future__ import annotations

import torch

from phonate.audio.decoding import FloatArray

_MOMENTUM = 0.99
_SEED = 0
_UPDATES = 12  # leaves 0.05 dB on speech
_SMALL = 1e-10


@torch.no_grad()
def magnitudes_under(magnitudes_TM: FloatArray, filters: FloatArray) -> torch.Tensor:
    """Linear magnitudes (frames, bins) >= 0 whose mel is nearest to (frames, n_mels).

    Multiplicative updates for non-negative least squares (Lee and Seung 2000, with the filters fixed), from
    each band's level spread evenly over its bins.
    """
    filters_MF = torch.from_numpy(filters)
    target_TF = torch.from_numpy(magnitudes_TM) @ filters_MF
    gram_FF = filters_MF.T @ filters_MF
    magnitudes_TF = target_TF / filters_MF.sum(dim=1).square().mean().clamp(min=_SMALL)
    for _ in range(_UPDATES):
        magnitudes_TF *= target_TF / (magnitudes_TF @ gram_FF).clamp(min=_SMALL)
    return magnitudes_TF


@torch.no_grad()
def griffin_lim(
    magnitudes_TF: torch.Tensor, n_fft: int, hop_length: int, win_length: int, iterations: int = 32
) -> FloatArray:
    """Magnitudes (frames, n_fft // 2 + 1) -> waveform ((frames - 1) * hop_length,).

    Fast Griffin-Lim (Perraudin, Balazs and Sondergaard 2013) with momentum 0.99. Deterministic.
    """
    window = torch.hann_window(win_length)
    magnitudes_FT = magnitudes_TF.T.contiguous()
    length = (magnitudes_FT.shape[1] - 1) * hop_length

    def to_waveform(spectrum_FT: torch.Tensor) -> torch.Tensor:
        return torch.istft(spectrum_FT, n_fft, hop_length, win_length, window, length=length)

    def to_spectrum(waveform: torch.Tensor) -> torch.Tensor:
        return torch.stft(waveform, n_fft, hop_length, win_length, window, pad_mode="constant", return_complex=True)

    generator = torch.Generator().manual_seed(_SEED)
    phase_FT = torch.rand(magnitudes_FT.shape, generator=generator) * (2 * torch.pi)
    spectrum_FT = torch.polar(magnitudes_FT, phase_FT)
    before_FT = torch.zeros_like(spectrum_FT)
    for _ in range(iterations):
        consistent_FT = to_spectrum(to_waveform(spectrum_FT))
        ahead_FT = consistent_FT + _MOMENTUM * (consistent_FT - before_FT)
        before_FT = consistent_FT
        spectrum_FT = ahead_FT * (magnitudes_FT / ahead_FT.abs().clamp(min=_SMALL))
    waveform: FloatArray = to_waveform(spectrum_FT).numpy()
    return waveform
