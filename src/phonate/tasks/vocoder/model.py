"""The vocoder with the networks that are only there to train it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from phonate.audio.processor import AudioProcessor
from phonate.nn.vocoder import Discriminators, MultiResolutionFourier, Vocoder
from phonate.tasks.vocoder.settings import VocoderModel

RESOLUTIONS = ((2048, 512), (1024, 256), (512, 128), (256, 64))


class VocoderGAN(nn.Module):
    """The vocoder and its discriminators."""

    def __init__(self, model: VocoderModel, processor: AudioProcessor) -> None:
        super().__init__()
        self.vocoder = Vocoder.of(processor, model.width, model.layers, model.lookahead)
        self.discriminators = Discriminators(RESOLUTIONS, model.discriminator_channels)
        self.fourier = MultiResolutionFourier(RESOLUTIONS)
        self.preemphasis = processor.config.preemphasis

    def spectra(self, waveform_BN: Tensor) -> list[Tensor]:
        """Spectra (B, T, 2K), one a resolution, of the pre-emphasised waveform (B, N), as its mel was computed."""
        before_BN = torch.nn.functional.pad(waveform_BN, (1, 0))[:, :-1]
        spectra: list[Tensor] = self.fourier(waveform_BN - self.preemphasis * before_BN)
        return spectra
