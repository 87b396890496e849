"""Settings of speaker diarization."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from phonate.config.metrics import Metric, by_name
from phonate.config.recipe import Recipe
from phonate.config.settings import Settings
from phonate.config.tasks import TaskInfo
from phonate.data.settings import KALDI_SECTIONS
from phonate.nn.transformer.settings import SYNONYMS, TransformerSettings
from phonate.tasks.diarization.data_settings import DiarizationData
from phonate.tasks.diarization.decoding_settings import DecodingSettings
from phonate.training.settings import TrainingSettings

LabelTypeName = Literal["binary", "speaker_id", "multilabel", "powerset", "arrival", "attractors", "custom"]


class FrontEndSettings(Settings):
    """Subsampling of feature frames to the transformer's input frames."""

    type: Literal["splice", "convolution"] = "splice"
    """splice: each frame is concatenated with its neighbours; convolution: strided convolutions."""
    subsampling: PositiveInt = 10
    """Feature frames per transformer frame."""
    context: NonNegativeInt = 7
    """splice: neighbouring frames on each side."""
    width: PositiveInt = 256
    """convolution: number of channels."""
    normalisation: Literal["none", "global", "mean", "mean_variance", "causal_mean"] = "global"
    """Feature normalisation. global: mean and standard deviation of the training set, which preserves the level of a
    recording; mean: mean of the chunk; mean_variance: mean and standard deviation of the chunk; causal_mean: running
    mean of the frames so far; none. Streaming needs global, causal_mean or none."""


class DiarizationModel(TransformerSettings):
    """The network, and how its output is decoded."""

    front_end: FrontEndSettings = FrontEndSettings()
    """Subsampling of feature frames to the transformer's input frames."""
    upsampling: PositiveInt = 1
    """Output frames per transformer frame; must divide front_end.subsampling."""
    num_speakers: PositiveInt = 4
    """Maximum number of speakers per chunk. In training chunks with more, only the most active ones are targets."""
    max_simultaneous: PositiveInt = 2
    """powerset: maximum number of simultaneous speakers."""
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
        """Feature frames per output frame."""
        return self.front_end.subsampling // self.upsampling


class EvalKnobs(Settings):
    """Label type and batch sizes."""

    refused_keys: ClassVar = {
        "beam_width": "it belongs to the task sequence; each frame is decided with model.decoding, without a search",
        "sliding_window": "it belongs to the task sequence; windows have model.decoding.window_seconds",
    }

    label_type: LabelTypeName = "multilabel"
    """What the model predicts for each frame. binary: speech or not; speaker_id: which training speaker; multilabel:
    the activity of each speaker, permutation-invariant; powerset: the set of active speakers, permutation-invariant;
    arrival: the activity of each speaker in order of arrival; attractors: the activity of an estimated number of
    speakers; custom: the `labels` added by `data.collator`."""
    max_duration: PositiveFloat | None = None
    """Maximum seconds of audio per batch, including padding. Null: training.max_duration, or batch_size."""
    batch_size: PositiveInt | None = None
    """Samples per batch in validation. Null: validation.batch_size."""


class DiarizationTraining(TrainingSettings):
    """Training options, with the label type."""

    eval_knobs: EvalKnobs = EvalKnobs()
    """Label type and batch sizes."""

    @model_validator(mode="after")
    def _from_knobs(self) -> Self:
        """Copy `eval_knobs.max_duration` and `eval_knobs.batch_size` to where the trainer reads them."""
        # After validation: with a mode="before" validator pydantic would reject JSON lists for tuples.
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
            raise ValueError("eval_knobs.max_duration and max_duration are the same option; set only one")
        if knobs.batch_size is not None and knobs.batch_size != self.validation.batch_size:
            raise ValueError("eval_knobs.batch_size and validation.batch_size are the same option; set only one")
        return self


def _size(width: int, layers: int, heads: int, lr: float) -> dict[str, Any]:
    part = {"d_model": width, "num_layers": layers, "num_heads": heads}
    return {"model": {"global_config": part}, "training": {"optimizer": {"lr": lr}}}


def facts(inference_metadata: Mapping[str, Any]) -> dict[str, str]:
    """Rows of the report's summary table."""
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
METRICS = by_name(
    Metric("accuracy", "higher", "%"),
    Metric("der", "lower", "%", "DER"),
    Metric("miss", "lower", "%", "missed"),
    Metric("false_alarm", "lower", "%", "false alarm"),
    Metric("confusion", "lower", "%", "confusion"),
    Metric("jer", "lower", "%", "JER"),
    Metric("speakers", "lower", "off", "speakers"),
    Metric("rtf", "lower", "", "RTF"),
)
"""What validation and evaluation measure, besides losses."""
INFO = TaskInfo(
    metrics=tuple(METRICS.values()),
    inference="phonate.tasks.diarization.inference:Diarizer",
    evaluation="phonate.tasks.diarization.evaluation:evaluate",
    tuning="phonate.tasks.diarization.tuning:tune",
    implied_by=("training.eval_knobs.label_type", "datasets", "global_config"),
    sections=KALDI_SECTIONS,
    synonyms={
        **SYNONYMS,
        "training.eval_knobs.max_duration": "training.max_duration",
        "training.eval_knobs.batch_size": "training.validation.batch_size",
    },
    facts=facts,
)
