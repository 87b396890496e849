"""Small meetings of synthetic speakers, and a model trained on them for a moment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from phonate.data.annotations import SpeakerTurn, write_rttm
from phonate.workflows.train import train
from sounds import SAMPLE_RATE, voiced_tone
from trained import trained

VOICES = {
    "ann": (210.0, (700.0, 1800.0, 2900.0)),
    "ben": (110.0, (500.0, 1300.0, 2400.0)),
    "cleo": (160.0, (600.0, 1550.0, 2650.0)),
}


def meeting(
    seed: int, seconds: float, speakers: tuple[str, ...] = ("ann", "ben")
) -> tuple[np.ndarray, list[SpeakerTurn]]:
    """The waveform (N,) of speakers who take turns, with pauses and overlaps, and their turns."""
    rng = np.random.default_rng(seed)
    waveform = 1e-3 * rng.normal(size=round(seconds * SAMPLE_RATE)).astype(np.float32)
    turns, at, number = [], 0.3, int(rng.integers(len(speakers)))
    while at < seconds - 1.5:
        length = float(rng.uniform(0.6, 1.2))
        pitch, formants = VOICES[speakers[number]]
        sound = 0.5 * voiced_tone(
            length, pitch * float(rng.uniform(0.97, 1.03)), formants, seed=int(rng.integers(1000))
        )
        first = round(at * SAMPLE_RATE)
        waveform[first : first + len(sound)] += sound[: len(waveform) - first]
        turns.append(SpeakerTurn(round(at, 3), round(at + len(sound) / SAMPLE_RATE, 3), speakers[number]))
        at += length + float(rng.uniform(-0.3, 0.5))
        number = (number + int(rng.integers(1, len(speakers)))) % len(speakers)
    return waveform, turns


def write_meetings(folder: Path, count: int = 6, seconds: float = 6.0) -> Path:
    """A folder of meetings with their RTTM."""
    folder.mkdir()
    found = {}
    for number in range(count):
        waveform, found[f"m{number}"] = meeting(number, seconds)
        soundfile.write(folder / f"m{number}.wav", waveform, SAMPLE_RATE, subtype="PCM_16")
    write_rttm(folder / "meetings.rttm", found)
    return folder


def tiny_model_of(folder: Path) -> dict[str, Any]:
    """Overrides for a tiny model of the recordings in `folder`/meetings."""
    return {
        "data.path": str(folder / "meetings"),
        "data.cache_dir": str(folder / "cache"),
        "data.chunk_seconds": 3.0,
        "data.validation": 0.2,
        "data.validation_by": "recording",
        "model.num_speakers": 2,
        "model.global_config.d_model": 32,
        "model.global_config.num_layers": 1,
        "training.checkpoint": {"interval": 2, "save_total_limit": 10},
        "training.performance.num_workers": 0,
    }


def trained_on_meetings() -> Path:
    """A folder with the `corpus` of ten meetings and a `run` that was trained on it for a moment; for reading."""

    def write(folder: Path) -> None:
        (folder / "recipe.yaml").write_text(recipe(write_meetings(folder / "corpus", 10), 24))
        train(str(folder / "recipe.yaml"), output=folder / "run")

    return trained("meetings", write)


def recipe(data: Path, steps: int, model: str = "", training: str = "", decoding: str = "{median: 3}") -> str:
    """A recipe for a small model of two speakers."""
    return f"""
task: diarization
size: tiny
data: {{path: "{data}", chunk_seconds: 4.0, validation: 0.2, validation_by: recording}}
model:
  num_speakers: 2
  front_end: {{subsampling: 5, context: 5{", normalisation: causal_mean" if "decoder" in model else ""}}}
  decoding: {decoding}
{model}
training:
  max_steps: {steps}
  batch_size: 8
  random_seed: 1
  optimizer: {{lr: 4e-3}}
  scheduler: {{warmup_steps: 5}}
  checkpoint: {{interval: {steps}}}
  validation: {{interval: {steps}}}
{training}
"""
