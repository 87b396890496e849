"""Settings of speaker diarization."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from phonate.config.recipe import Recipe
from phonate.config.settings import Settings
from phonate.config.tasks import TaskInfo
from phonate.data.settings import KALDI_SECTIONS
from phonate.nn.transformer.settings import TransformerSettings
from phonate.tasks.diarization.data_settings import DiarizationData
from phonate.tasks.diarization.decoding_settings import DecodingSettings
from phonate.training.settings import TrainingSettings

LabelTypeName = Literal["binary", "speaker_id", "multilabel", "powerset", "arrival", "attractors", "custom"]


class FrontEndSettings(Settings):
    """From feature frames to the frames that the transformer reads."""

    type: Literal["splice", "convolution"] = "splice"
    """splice: each frame with its neighbours, side by side; convolution: strided convolutions."""
    subsampling: PositiveInt = 10
    """Feature frames for which the transformer has one."""
    context: NonNegativeInt = 7
    """Frames on each side that a spliced frame has."""
    width: PositiveInt = 256
    """Width of the convolutions."""
    normalisation: Literal["none", "global", "mean", "mean_variance", "causal_mean"] = "global"
    """What is subtracted from each feature: its mean over the training set, divided by its standard deviation there
    (global: the model hears how loud a recording is); its mean over the chunk (mean; mean_variance also divides by its
    standard deviation); its mean over the frames so far (causal_mean); or nothing. Streams need global, causal_mean or
    none."""


class DiarizationModel(TransformerSettings):
    """The network, and how its output is read."""

    front_end: FrontEndSettings = FrontEndSettings()
    """From feature frames to the frames that the transformer reads."""
    upsampling: PositiveInt = 1
    """Output frames that are made of each frame of the transformer; a divisor of front_end.subsampling."""
    num_speakers: PositiveInt = 4
    """Most speakers in a chunk that the model tells apart; of more, those are learnt who speak most."""
    max_simultaneous: PositiveInt = 2
    """powerset: most speakers at once."""
    decoding: DecodingSettings = DecodingSettings()
    """From the model's output to turns."""

    @model_validator(mode="after")
    def _numbers_fit(self) -> Self:
        if self.front_end.subsampling % self.upsampling:
            raise ValueError(
                f"upsampling {self.upsampling} must divide front_end.subsampling {self.front_end.subsampling}"
            )
        if self.max_simultaneous > self.num_speakers:
            raise ValueError(
                f"max_simultaneous {self.max_simultaneous} must not be above num_speakers {self.num_speakers}"
            )
        return self

    @property
    def stride(self) -> int:
        """Feature frames for which the model gives one."""
        return self.front_end.subsampling // self.upsampling


class EvalKnobs(Settings):
    """What is learnt, and how much of it in a batch."""

    label_type: LabelTypeName = "multilabel"
    """binary (whether anybody speaks), speaker_id (which speaker of the training set), or who speaks when:
    multilabel (in any order of speakers), powerset (a class for each set of speakers), arrival (speakers in the order
    in which they begin), attractors (as many speakers as there are); custom: what `data.collator` adds as `labels`."""
    max_duration: PositiveFloat | None = None
    """Seconds of audio in a batch, including padding. Null: training.max_duration, or batch_size."""
    batch_size: PositiveInt | None = None
    """Items of a batch in validation. Null: validation.batch_size."""


class DiarizationTraining(TrainingSettings):
    """Training, with the label type."""

    eval_knobs: EvalKnobs = EvalKnobs()
    """What is learnt, and how much of it in a batch."""

    @model_validator(mode="after")
    def _from_knobs(self) -> Self:
        """Put `eval_knobs.max_duration` and `eval_knobs.batch_size` where the trainer reads them."""
        # Not before validation: pydantic then no longer takes JSON's lists for tuples.
        knobs = self.eval_knobs
        if knobs.max_duration is not None and self.max_duration is None:
            self.__dict__["max_duration"] = knobs.max_duration
        if knobs.batch_size is not None and self.validation.batch_size is None:
            self.__dict__["validation"] = self.validation.model_copy(update={"batch_size": knobs.batch_size})
        return self

    @model_validator(mode="after")
    def _knobs_agree(self) -> Self:
        knobs = self.eval_knobs
        if knobs.max_duration is not None and knobs.max_duration != self.max_duration:
            raise ValueError("eval_knobs.max_duration and max_duration are two names of one option; drop one")
        if knobs.batch_size is not None and knobs.batch_size != self.validation.batch_size:
            raise ValueError("eval_knobs.batch_size and validation.batch_size are two names of one option; drop one")
        return self


def _size(width: int, layers: int, heads: int, lr: float) -> dict[str, Any]:
    part = {"d_model": width, "num_layers": layers, "num_heads": heads}
    return {"model": {"global_config": part}, "training": {"optimizer": {"lr": lr}}}


def facts(inference_metadata: Mapping[str, Any]) -> dict[str, str]:
    """Rows of a report's table."""
    minutes, recordings = inference_metadata.get("seconds", 0.0) / 60, inference_metadata.get("recordings", 0)
    simulated = inference_metadata.get("simulated_share", 0.0)
    return {
        "Labels": str(inference_metadata.get("label_type", "")),
        "Training recordings": f"{recordings}, {minutes:.0f} min" if recordings else "none",
        "Simulated conversations": f"{simulated:.0%} of the samples",
        "Training speakers": str(inference_metadata.get("training_speakers", "")),
    }


DiarizationRecipe = Recipe[DiarizationData, DiarizationModel, DiarizationTraining]

DATA = DiarizationData
MODEL = DiarizationModel
TRAINING = DiarizationTraining
SIZES = {
    "tiny": _size(96, 3, 4, 1e-3),
    "small": _size(128, 4, 4, 1e-3),
    "medium": _size(256, 4, 4, 5e-4),
    "default": _size(512, 6, 8, 2e-4),
    "large": _size(768, 8, 12, 1e-4),
}
INFO = TaskInfo(
    inference="phonate.tasks.diarization.inference:Diarizer",
    evaluation="phonate.tasks.diarization.evaluation:evaluate",
    tuning="phonate.tasks.diarization.tuning:tune",
    implied_by=("training.eval_knobs.label_type",),
    sections=KALDI_SECTIONS,
    facts=facts,
)
