"""From a trained run to who speaks when in a recording. Shapes: U output frames, K speakers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import nn

from phonate.audio.decoding import FloatArray
from phonate.data.features import FEATURES
from phonate.tasks.diarization.model import SpeakerActivityModel, build_model
from phonate.tasks.diarization.settings import DiarizationRecipe
from phonate.training.checkpoints.trained import open_trained
from phonate.training.inference import Device, Inference


class Diarizer(Inference):
    """Finds out who speaks when."""

    sample_rate: int

    def __init__(
        self,
        model: SpeakerActivityModel,
        recipe: DiarizationRecipe,
        inference_metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self.model = model.eval()
        self.recipe = recipe
        self.inference_metadata = dict(inference_metadata or {})
        self.features = FEATURES.get(recipe.data.feature_name)(recipe.data)
        self.sample_rate = recipe.data.audio.sample_rate

    @classmethod
    def load(cls, source: str | Path, *, device: Device | None = None) -> Self:
        """The model of a run (its best checkpoint, or else its newest) or of one checkpoint."""
        trained = open_trained(source, "diarization", DiarizationRecipe)
        metadata = trained.inference_metadata
        model = build_model(trained.recipe, metadata["feature_width"], metadata["speakers"])
        trained.load_into(model)
        return cls(model, trained.recipe, metadata).to(device)

    @property
    def networks(self) -> Sequence[nn.Module]:
        """The model."""
        return [self.model]

    @torch.inference_mode()
    def activity(self, waveform_N: FloatArray) -> FloatArray:
        """(U, K): how likely each speaker is active, of a waveform at `sample_rate` that is read at once."""
        features_1TF = torch.from_numpy(self.features.compute(waveform_N))[None].to(self.device)
        frames_1 = torch.tensor([features_1TF.shape[1]], device=self.device)
        probabilities: FloatArray = self.model.activity_probabilities(features_1TF, frames_1)[0].float().cpu().numpy()
        return probabilities
