"""Settings of text-to-speech."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from phonate.config.settings import Settings
from phonate.data.settings import VoiceData
from phonate.training.settings import TrainingSettings


class SpeechData(VoiceData):
    """The corpus: recordings with what is said in them."""

    phonemes: Literal["english", "espeak", "characters"] = "english"
    """How text becomes phones: english needs nothing else, espeak knows 100 languages (needs phonate[espeak])."""
    language: str = "en-us"
    """Language of the texts, as espeak calls it."""
    durations: Literal["pocketsphinx", "mfa", "learnt", "espeak"] = "pocketsphinx"
    """Where the durations of phones come from: forced alignment with pocketsphinx (English; needs phonate[align]),
    TextGrids of the Montreal Forced Aligner (`alignments`; needs phonate[align]), an aligner that is trained on the
    corpus first (any language, needs nothing), or the TextGrids that lie beside speech that espeak made."""
    alignments: str | None = None
    """The folder of TextGrids for `durations: mfa`, one a recording, called after its id; sub-folders are looked
    into."""
    aligner_steps: PositiveInt = 1000
    """Steps for which the aligner of `durations: learnt` is trained, some minutes on a processor."""
    vocoder: str | None = None
    """A run of the task vocoder, by which mels become sound. Null: Griffin-Lim."""
    judged: NonNegativeInt = 0
    """Validation texts that are spoken at each validation and judged by a recogniser and for naturalness (needs
    phonate[eval]); the metric `quality` can then choose the best checkpoint. 0: none."""


class SpeechModel(Settings):
    """The acoustic model's numbers."""

    kind: Literal["parallel"] = "parallel"
    """parallel: durations, pitch and energy are predicted, then all frames at once; it can't skip words."""
    width: PositiveInt = 256
    """Width of the encoder and the decoder."""
    encoder_layers: PositiveInt = 6
    """Blocks over phones."""
    decoder_layers: PositiveInt = 6
    """Blocks over frames."""
    predictor_layers: PositiveInt = 2
    """Blocks of the network that predicts durations, pitch and energy."""
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    """Share of activations that are dropped while training."""
    discriminator_channels: PositiveInt = 16
    """Channels of the discriminator's first layer (only used in training)."""


class SpeechTraining(TrainingSettings):
    """Training, with its adversarial part."""

    adversarial_start: PositiveInt | None = None
    """The step from which a discriminator takes part, which keeps mels from being over-smooth. Null: never."""
    adversarial_weight: NonNegativeFloat = 1.0
    """Weight of fooling the discriminator."""
    feature_matching_weight: NonNegativeFloat = 1.0
    """Weight of the distance between what the discriminator sees in natural and in made mels."""


def _size(width: int, encoder: int, decoder: int, lr: float) -> dict[str, dict[str, Any]]:
    model = {"width": width, "encoder_layers": encoder, "decoder_layers": decoder}
    return {"model": model, "training": {"optimizer": {"lr": lr}}}


DATA = SpeechData
MODEL = SpeechModel
TRAINING = SpeechTraining
SIZES = {
    "tiny": _size(128, 3, 4, 2e-3),
    "small": _size(192, 4, 6, 1.5e-3),
    "medium": _size(256, 6, 8, 1e-3),
    "default": _size(384, 6, 8, 8e-4),
    "large": _size(512, 8, 12, 5e-4),
}
