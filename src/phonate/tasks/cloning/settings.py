"""Settings of voice cloning with Higgs Audio v2."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from phonate.config.metrics import Metric, by_name
from phonate.config.recipe import Recipe
from phonate.config.tasks import TaskInfo
from phonate.tasks.cloning.losses.settings import CloningLoss
from phonate.tasks.cloning.network.settings import NetworkSettings
from phonate.tasks.cloning.pairs.settings import CloningData
from phonate.training.settings import TrainingSettings


class CloningModel(NetworkSettings):
    """Which model, and what of it is trained."""

    codec: str = "bosonai/higgs-audio-v2-tokenizer"
    """A folder with the codec that the model was trained with, or its name on the hub."""
    strategy: Literal["full", "lora"] = "lora"
    """lora: low-rank adapters. full: every weight."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.strategy == "full":
            if self.dtype not in ("auto", "fp32"):
                raise ValueError(f"dtype {self.dtype}: strategy full trains in fp32; leave it out")
            if self.quantization is not None:
                raise ValueError(f"quantization {self.quantization}: strategy full trains every weight; leave it out")
            if self.whisper.enabled:
                raise ValueError("whisper: its projector is trained beside adapters; set strategy to lora")
        return self


class CloningTraining(TrainingSettings):
    """The recipe's `training` part."""

    loss: CloningLoss = CloningLoss()
    """Loss, and the weights of its terms: text, audio, contrastive, similarity and l2."""


CloningRecipe = Recipe[CloningData, CloningModel, CloningTraining]

DATA = CloningData
MODEL = CloningModel
TRAINING = CloningTraining
METRICS = by_name(
    Metric("accuracy", "higher", "%"),
    Metric("similarity", "higher", "", "cosine to reference"),
    Metric("likeness", "higher", "", "likeness, calibrated"),
    Metric("accepted", "higher", "%", "taken for the speaker"),
)
"""What validation and evaluation measure, besides losses."""
INFO = TaskInfo(
    metrics=tuple(METRICS.values()),
    inference="phonate.tasks.cloning.inference:VoiceCloner",
    options=("dtype", "codec", "base", "voices"),
    model_types=("higgs_audio_v2", "higgs_audio"),
    evaluation="phonate.tasks.cloning.evaluation:evaluate",
    export="phonate.tasks.cloning.export:export",
    formats=("transformers", "peft"),
    export_options=("base",),
    merge="phonate.tasks.cloning.export:merge",
)
