"""The acoustic model, text to mel, of the kind that the recipe names, with the discriminator that trains it."""

from __future__ import annotations

from torch import nn

from phonate.nn.vocoder.discriminators import MelDiscriminator
from phonate.tasks.speech.models.autoregressive import AutoregressiveModel
from phonate.tasks.speech.models.parallel import ParallelModel
from phonate.tasks.speech.settings import SpeechModel

Acoustic = ParallelModel | AutoregressiveModel
"""A model of either kind. Both `speak`."""


class SpeechModelGAN(nn.Module):
    """The acoustic model, and the discriminator that is only there to train it (a parallel one)."""

    def __init__(self, acoustic: Acoustic, discriminator: MelDiscriminator | None) -> None:
        super().__init__()
        self.acoustic = acoustic
        self.discriminator = discriminator


def build_acoustic(settings: SpeechModel, n_tokens: int, n_speakers: int, n_mels: int) -> Acoustic:
    """The acoustic model of the recipe's `model` part."""
    if settings.kind == "autoregressive":
        return AutoregressiveModel(
            n_tokens,
            n_speakers,
            n_mels,
            settings.width,
            settings.heads,
            settings.feed_forward,
            settings.encoder_layers,
            settings.decoder_layers,
            settings.dropout,
            settings.postnet_channels,
            settings.checkpoint_segments,
        )
    return ParallelModel(
        n_tokens,
        n_speakers,
        n_mels,
        settings.width,
        settings.encoder_layers,
        settings.decoder_layers,
        settings.predictor_layers,
        settings.dropout,
        settings.predictor_dropout,
    )
