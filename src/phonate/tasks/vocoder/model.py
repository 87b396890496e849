"""The vocoder with the networks that are only there to train it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from phonate.audio.processor import AudioProcessor
from phonate.nn.vocoder.discriminators import Discriminators, MultiResolutionFourier
from phonate.nn.vocoder.generator import Vocoder
from phonate.tasks.vocoder.settings import VocoderModel

RESOLUTIONS = ((2048, 512), (1024, 256), (512, 128))
PERIODS = (2, 3, 5, 7, 11)


class VocoderGAN(nn.Module):
    """The vocoder and its discriminators."""

    def __init__(self, model: VocoderModel, processor: AudioProcessor) -> None:
        super().__init__()
        self.vocoder = Vocoder.of(processor, model.width, model.layers, model.lookahead)
        self.discriminators = Discriminators(RESOLUTIONS, PERIODS, model.discriminator_channels)
        self.fourier = MultiResolutionFourier(RESOLUTIONS)
        self.preemphasis = processor.config.preemphasis

    def emphasised(self, waveform_BN: Tensor) -> Tensor:
        """The waveform (B, N) with the pre-emphasis of its mel."""
        before_BN = torch.nn.functional.pad(waveform_BN, (1, 0))[:, :-1]
        return waveform_BN - self.preemphasis * before_BN
