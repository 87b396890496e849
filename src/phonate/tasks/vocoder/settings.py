"""Settings of the vocoder."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, NonNegativeFloat, PositiveInt

from phonate.config.errors import InputError
from phonate.config.metrics import Metric, by_name, losses
from phonate.config.resolve import Recipe
from phonate.config.settings import Settings
from phonate.config.tasks import TaskInfo, Traits
from phonate.data.settings import EARLIER_F0, PitchData
from phonate.training.settings import TrainingSettings, require_own_loss


class VocoderData(PitchData):
    """The corpus, and what a training sample is. Texts and speakers do not matter."""

    crop_frames: Annotated[int, Field(ge=8)] = 48
    """Frames of a training sample, cut at random from its recording; 86 are a second."""
    crops_per_clip: PositiveInt = 1
    """Crops of each recording in an epoch."""
    predicted: str | None = None
    """Mels that a model predicted for these recordings (a folder that `phonate predict` wrote): half the crops are of
    them, all in validation. Null: recorded mels only."""


class VocoderModel(Settings):
    """The network's numbers."""

    width: PositiveInt = 192
    """Width of the network."""
    layers: PositiveInt = 6
    """ConvNeXt blocks."""
    lookahead: Annotated[int, Field(ge=0, le=3)] | None = None
    """Frames of the mel after a frame that its sound depends on, for `phonate convert --live`. Null: three in each
    convolution, as many as before it."""
    postfilter: NonNegativeFloat = 0.0
    """How much formants are sharpened when sound is made after training: the share of the distance of each mel band's
    level from the mean of those around it that is added to it. 0.1 masks noise; more costs likeness to the speaker."""
    discriminator_channels: PositiveInt = 8
    """Channels of the discriminators' first layers (only used in training)."""


class VocoderTraining(TrainingSettings):
    """Training, with its adversarial part."""

    adversarial_start: PositiveInt | None = 4000
    """The step from which discriminators take part. Null: never."""
    adversarial_weight: NonNegativeFloat = 1.0
    """Weight of fooling the discriminators."""
    feature_matching_weight: NonNegativeFloat = 10.0
    """Weight of the distance between what discriminators see in natural and in made speech."""


def _size(width: int, layers: int, channels: int, lr: float) -> dict[str, dict[str, Any]]:
    return {
        "model": {"width": width, "layers": layers, "discriminator_channels": channels},
        "training": {"optimizer": {"lr": lr}},
    }


VocoderRecipe = Recipe[VocoderData, VocoderModel, VocoderTraining]

DATA = VocoderData
MODEL = VocoderModel
TRAINING = VocoderTraining
SIZES = {
    "tiny": _size(96, 3, 8, 1e-3),
    "small": _size(192, 5, 8, 8e-4),
    "default": _size(384, 8, 24, 5e-4),
    "large": _size(512, 8, 32, 3e-4),
}
METRICS = by_name(
    Metric("copy_mel", "lower", "dB", "mel of the copy"),
)
"""What validation and evaluation measure, besides losses."""


def traits(recipe: VocoderRecipe) -> Traits:
    """See `TaskInfo.traits`."""
    require_own_loss(recipe.training.loss, "vocoder")
    if recipe.data.augmentation is not None and recipe.data.predicted is not None:
        raise InputError(
            "data.augmentation: has no effect on mels that were predicted (data.predicted); set one of them to null"
        )
    terms = losses(["spectral", "mel", "pitch", "voicing", "discriminator"])
    return Traits((*terms, *METRICS.values()), frozenset({"mel", "adversarial", "features"}))


INFO = TaskInfo(
    hub_task="audio-to-audio",
    metrics=tuple(METRICS.values()),
    inference="phonate.tasks.vocoder.inference:NeuralVocoder",
    traits=traits,
    previews={"natural": "a validation recording", "made": "what the vocoder makes of its mel spectrogram"},
    earlier=EARLIER_F0,
)
