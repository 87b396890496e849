"""The acoustic models, text to mel, by their kind."""

from __future__ import annotations

from typing import Any

from phonate.tasks.speech.autoregressive import AutoregressiveModel
from phonate.tasks.speech.parallel import ParallelModel

Acoustic = ParallelModel | AutoregressiveModel
"""A model of either kind. Both `speak`."""


def build_acoustic(settings: Any, n_tokens: int, n_speakers: int, n_mels: int) -> Acoustic:
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
