"""A task of another package, as a plug-in file: how loud each mel band of a voice is on average."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from pydantic import PositiveInt
from torch import nn

from phonate.audio.decoding import Audio, as_waveform
from phonate.audio.processor import AudioProcessor
from phonate.config.resolve import Recipe
from phonate.config.settings import Settings
from phonate.config.tasks import TASKS, SessionInfo, TaskEntry, TaskInfo
from phonate.data.prepared import WholeRecordings, prepare
from phonate.data.settings import VoiceData
from phonate.evaluation.held_out import clips_of, kept_for_validation
from phonate.evaluation.tables import Evaluation
from phonate.training.checkpoints.loading import open_trained
from phonate.training.inference import Demonstration, Device, Inference
from phonate.training.settings import TrainingSettings
from phonate.training.task import Batch, Task, Terms


class Model(Settings):
    """The recipe's `model` part."""

    scale: PositiveInt = 1
    """What the profile is multiplied by."""


LoudnessRecipe = Recipe[VoiceData, Model, TrainingSettings]


class Profile(nn.Module):
    """Mean level (M,) of the mel bands."""

    def __init__(self, bands: int) -> None:
        super().__init__()
        self.level = nn.Parameter(torch.zeros(bands))


class Recordings(WholeRecordings):
    """Mean mels of recordings."""

    def get(self, index: int, rng: np.random.Generator) -> Any:
        return self.prepared.cache.features(self.positions[index]).mean(axis=0)

    def collate(self, items: list[Any]) -> Batch:
        return {"mean": torch.from_numpy(np.stack(items))}


class LoudnessTask(Task):
    """Ties it together."""

    def __init__(self, recipe: LoudnessRecipe) -> None:
        self.recipe = recipe

    def model(self, device: torch.device) -> nn.Module:
        return Profile(self.recipe.data.audio.n_mels).to(device)

    def dataset(self, split: str) -> Recordings:
        prepared = prepare(self.recipe.data)
        found = prepared.train if split == "train" else prepared.validation
        return Recordings(prepared, [int(one) for one in found], self.recipe.data.audio)

    def loss(self, model: nn.Module, batch: Batch, phase: str) -> Terms:
        error = (model.level - batch["mean"]).square()
        return {"level": (error.sum(), float(error.numel()))}

    def inference_metadata(self, model: nn.Module) -> Mapping[str, Any]:
        prepared, processor = prepare(self.recipe.data), AudioProcessor(self.recipe.data.audio)
        kept = [prepared.index.id[one] for one in prepared.validation]
        return {"features": processor.fingerprint, "validation": kept, "voices": list(prepared.speakers)}


class LoudnessMeter(Inference):
    """Compares recordings with the profile."""

    def __init__(self, model: Profile, recipe: LoudnessRecipe, metadata: Mapping[str, Any]) -> None:
        self.model, self.recipe, self.inference_metadata = model.eval(), recipe, metadata
        self.processor = AudioProcessor(recipe.data.audio)
        self.sample_rate = recipe.data.audio.sample_rate

    @classmethod
    def load(cls, source: str | Path, *, device: Device | None = None) -> Self:
        trained = open_trained(source, "loudness", LoudnessRecipe)
        model = Profile(trained.recipe.data.audio.n_mels)
        model.load_state_dict(trained.weights)
        return cls(model, trained.recipe, trained.inference_metadata).to(device)

    @property
    def networks(self) -> Sequence[nn.Module]:
        return (self.model,)

    def distance(self, audio: Audio, *, sample_rate: int | None = None) -> float:
        """Mean distance of a recording's bands from the profile."""
        mel_TM = self.processor.mel(as_waveform(audio, self.sample_rate, sample_rate))
        level_M = self.model.level.detach().cpu().numpy()
        return float(np.abs(mel_TM.mean(axis=0) - level_M).mean())

    def demonstration(self, recording: Path | None, text: str | None) -> Demonstration | None:
        assert recording is not None
        return Demonstration(f"{recording.name} is {self.distance(recording):.3f} away", "loudness {run} in.wav")


def evaluate(run: Path, data: str | None = None, *, device: str | None = None) -> Evaluation:
    meter = LoudnessMeter.load(run, device=device)
    settings = meter.recipe.data
    clips = list(
        kept_for_validation(settings, meter.inference_metadata["validation"])
        if data is None
        else clips_of(settings, data)
    )
    far = float(np.mean([meter.distance(clip.waveform) for clip in clips]))
    return Evaluation(
        "loudness", {"profile": {"distance": far}}, "profile", "distance: of levels", {"clips": len(clips)}
    )


def export(source: Path, target: Path, form: str) -> list[Path]:
    np.savetxt(target, LoudnessMeter.load(source).model.level.detach().numpy())
    return [target]


def facts(metadata: Mapping[str, Any]) -> dict[str, str]:
    return {"Measured voices": ", ".join(metadata["voices"])}


TASKS.register(
    "loudness",
    TaskEntry(
        VoiceData,
        Model,
        task=LoudnessTask,
        info=TaskInfo(
            inference=LoudnessMeter,
            evaluation=evaluate,
            export=export,
            formats=("txt",),
            session=SessionInfo("recordings"),
            facts=facts,
        ),
    ),
)
