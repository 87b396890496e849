"""From mel spectrograms to waveforms in one pass of a small network.

A source of pulses and noise (as in Wang et al. 2019, "Neural source-filter waveform models") is taken to the
Fourier domain, filtered there by what a ConvNeXt network makes of the mel, and taken back by an inverse transform
(as in Siuzdak 2023, "Vocos"). The pulses give phases that fit from frame to frame, the hardest thing to learn from
a mel; what stays to be learnt is spectral detail, how much of each bin is noise, and how phases lie.

Shapes: B batch, T frames, M mel bands, D width, K bins, N = (T - 1) * hop samples.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from phonate.audio.processor import AudioProcessor
from phonate.nn.convnext import ConvNeXt
from phonate.nn.stft import ShortTimeFourier
from phonate.nn.vocoder.excitation import noise, noise_table, pulses

_NEPERS = math.log(10.0) / 20.0  # of a decibel
_LOWEST_F0, _HIGHEST_F0 = 50.0, 600.0
_LOUDEST = 6.0  # nepers


class Vocoder(nn.Module):
    """Mel (B, T, M), from 0 to 1, -> waveform (B, N) whose pre-emphasised form peaks at about 1.

    Args:
        filters: (M, K) mel filters, by which the mel is first guessed back into bins.
        sample_rate: Of the waveform.
        hop_length: Samples from frame to frame.
        floor_db: The level that is 0 in the mel, under the level that is 1.
        reference_db: The level that is 1 in the mel, in dB over a magnitude of 1.
        preemphasis: The coefficient with which mels were made.
        width: Of the network.
        layers: Of the network.
    """

    spread_MK: Tensor
    level_K: Tensor
    noise_table: Tensor

    def __init__(
        self,
        filters: npt.NDArray[np.float32],
        *,
        sample_rate: int,
        hop_length: int,
        floor_db: float = -100.0,
        reference_db: float = 0.0,
        preemphasis: float = 0.97,
        width: int = 192,
        layers: int = 6,
    ) -> None:
        super().__init__()
        n_mels, bins = filters.shape
        n_fft = 2 * (bins - 1)
        self.sample_rate, self.hop_length = sample_rate, hop_length
        self.floor_db, self.reference_db = floor_db, reference_db
        self.fourier = ShortTimeFourier(n_fft, hop_length)
        self.register_buffer("spread_MK", torch.from_numpy(_interpolation(filters)), persistent=False)
        self.register_buffer("level_K", torch.from_numpy(_levels(filters, n_fft, preemphasis)), persistent=False)
        self.register_buffer("noise_table", noise_table(), persistent=False)
        self.embedding = nn.Conv1d(n_mels, width, 7, padding=3)
        self.pitch_network = ConvNeXt(width, 2)
        self.pitch_head = nn.Linear(width, 2)
        self.pitch_embedding = nn.Linear(2, width)
        self.network = ConvNeXt(width, layers)
        self.head = nn.Linear(width, 3 * bins)
        nn.init.normal_(self.head.weight, std=1e-3)
        nn.init.zeros_(self.head.bias)

    @classmethod
    def of(cls, processor: AudioProcessor, width: int, layers: int) -> Vocoder:
        """A vocoder for the features of `processor`."""
        audio = processor.config
        return cls(
            processor.filters,
            sample_rate=audio.sample_rate,
            hop_length=audio.hop_length,
            floor_db=audio.min_level_db,
            reference_db=processor.offset_db,
            preemphasis=audio.preemphasis,
            width=width,
            layers=layers,
        )

    def pitch(self, mel_BTM: Tensor) -> tuple[Tensor, Tensor]:
        """log F0 relative to 200 Hz (B, T), and the logit of voicing (B, T), as heard in the mel."""
        out_BT2 = self.pitch_head(self.pitch_network(self._embedded(mel_BTM)))
        return out_BT2[..., 0], out_BT2[..., 1]

    def predicted_f0(self, mel_BTM: Tensor) -> Tensor:
        """F0 (B, T) in Hz, 0 where unvoiced."""
        log_f0_BT, voicing_BT = self.pitch(mel_BTM)
        f0_BT = (200.0 * log_f0_BT.exp()).clamp(_LOWEST_F0, _HIGHEST_F0)
        return torch.where(voicing_BT > 0, f0_BT, torch.zeros_like(f0_BT))

    def _embedded(self, mel_BTM: Tensor) -> Tensor:
        embedded: Tensor = self.embedding(2.0 * mel_BTM.transpose(1, 2) - 1.0).transpose(1, 2)
        return embedded

    def forward(
        self,
        mel_BTM: Tensor,
        f0_BT: Tensor | None = None,
        phase_B: Tensor | None = None,
        noise_start_B: Tensor | None = None,
    ) -> Tensor:
        """The waveform (B, N). `f0_BT` in Hz (0: unvoiced) where it is known; the rest varies the source."""
        if f0_BT is None:
            f0_BT = self.predicted_f0(mel_BTM)
        pulses_BN, noise_BN = self.source(f0_BT, phase_B, noise_start_B)
        return self.filtered(mel_BTM, f0_BT, pulses_BN, noise_BN)

    @torch.no_grad()
    def source(
        self, f0_BT: Tensor, phase_B: Tensor | None = None, noise_start_B: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Pulses and noise, each (B, N) of power 1."""
        pulses_BN = pulses(f0_BT.float(), self.hop_length, self.sample_rate, phase_B)
        return pulses_BN, noise(pulses_BN, self.noise_table, noise_start_B)

    def filtered(self, mel_BTM: Tensor, f0_BT: Tensor, pulses_BN: Tensor, noise_BN: Tensor) -> Tensor:
        """The source (B, N) as the mel says it sounds (B, N)."""
        voiced_BT = f0_BT > 0
        log_f0_BT = torch.where(voiced_BT, (f0_BT.clamp_min(1.0) / 200.0).log(), 0.0)
        said_BT2 = torch.stack([log_f0_BT, voiced_BT.float()], dim=-1)
        hidden_BTD = self.network(self._embedded(mel_BTM) + self.pitch_embedding(said_BT2))
        pulse_log_BTK, phase_BTK, noise_log_BTK = self.head(hidden_BTD).float().chunk(3, dim=-1)
        nepers_BTM = (mel_BTM.float() * -self.floor_db + self.floor_db + self.reference_db) * _NEPERS
        guess_BTK = nepers_BTM @ self.spread_MK + self.level_K
        with torch.no_grad():
            pulse_BTC, noise_BTC = self.fourier(pulses_BN), self.fourier(noise_BN)
        pulse_gain_BTK = (guess_BTK + pulse_log_BTK).clamp_max(_LOUDEST).exp()
        noise_gain_BTK = (guess_BTK + noise_log_BTK).clamp_max(_LOUDEST).exp()
        spectrum_BTC = _rotated(pulse_BTC, pulse_gain_BTK, phase_BTK) + noise_BTC * noise_gain_BTK.repeat(1, 1, 2)
        waveform_BN: Tensor = self.fourier.inverse(spectrum_BTC)
        return waveform_BN

    @property
    def context(self) -> int:
        """Frames on either side that a frame's sound depends on."""
        transforms = -(-self.fourier.n_fft // self.hop_length)
        return 3 * (1 + len(self.network.blocks)) + transforms


def _rotated(spectrum_BTC: Tensor, gain_BTK: Tensor, phase_BTK: Tensor) -> Tensor:
    """A spectrum times gain * exp(i phase)."""
    real_BTK, imaginary_BTK = spectrum_BTC.chunk(2, dim=-1)
    across_BTK, up_BTK = gain_BTK * phase_BTK.cos(), gain_BTK * phase_BTK.sin()
    return torch.cat(
        [real_BTK * across_BTK - imaginary_BTK * up_BTK, real_BTK * up_BTK + imaginary_BTK * across_BTK], dim=-1
    )


def _interpolation(filters: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """(M, K): weights by which each bin's level is that of the mel bands around it, in the logarithm."""
    centres = (filters * np.arange(filters.shape[1])).sum(1) / filters.sum(1)
    bins = np.arange(filters.shape[1])
    weights = [np.interp(bins, centres, np.eye(len(filters))[band]) for band in range(len(filters))]
    return np.asarray(weights, dtype=np.float32)


def _levels(filters: npt.NDArray[np.float32], n_fft: int, preemphasis: float) -> npt.NDArray[np.float32]:
    """(K,) nepers from the mel's level to the gain on a source of power 1 that, two such sources being added, is
    heard at that level after pre-emphasis."""
    window = np.hanning(n_fft + 1)[:-1]
    source = math.sqrt(math.pi / 4.0 * np.square(window).sum())  # mean magnitude of white noise's bins
    centres = (filters * np.arange(filters.shape[1])).sum(1) / filters.sum(1)
    area = np.interp(np.arange(filters.shape[1]), centres, np.log(filters.sum(1)))
    omega = np.pi * np.arange(filters.shape[1]) / (filters.shape[1] - 1)
    emphasis = np.abs(1.0 - preemphasis * np.exp(-1j * omega))
    return np.asarray(-area - math.log(source) - np.log(emphasis) - 0.5 * math.log(2.0), dtype=np.float32)
