"""The recipes in examples/configs made small: a few steps of a small model on small data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from phonate.config.resolve import resolve
from phonate.data.annotations import SpeakerTurn, write_rttm

CONFIGS = Path(__file__).parents[1] / "examples" / "configs"
NAMES = sorted(path.stem for path in CONFIGS.glob("*.yml"))
SMALL = {"d_model": 16, "num_layers": 1, "num_heads": 2}
SHORT: dict[str, Any] = {
    "training.max_steps": 2,
    "training.batch_size": 2,
    "training.validation.interval": 2,
    "training.validation.batch_size": None,
    "training.gradient_accumulation_steps": 1,
    "training.performance.num_workers": 0,
    "training.logging.tensorboard": False,
    "training.logging.interval": 1,
}
RATE = 16_000


def meetings(folder: Path) -> Path:
    """Four recordings of six seconds in which two tones take turns, and their RTTM."""
    folder.mkdir()
    at = np.arange(6 * RATE) / RATE
    found = {}
    for number in range(4):
        turns = [SpeakerTurn(0.5, 3.0, f"s{2 * number}"), SpeakerTurn(2.5, 5.5, f"s{2 * number + 1}")]
        sound = np.random.default_rng(number).normal(0, 1e-3, len(at))
        for turn in turns:
            speaks = (at >= turn.start) & (at < turn.end)
            sound += speaks * 0.1 * np.sin(2 * np.pi * (100 + 40 * int(turn.speaker[1:])) * at)
        soundfile.write(folder / f"m{number}.wav", sound, RATE)
        found[f"m{number}"] = turns
    write_rttm(folder / "all.rttm", found)
    return folder


def rows(folder: Path, labels: bool) -> Path:
    words = ("cat", "dog", "hen", "cow")
    path = folder / "rows.csv"
    target = "label" if labels else "target"
    pairs = [(f"{a} {b} {c}", a if labels else f"{c} {b} {a}") for a in words for b in words for c in words]
    path.write_text(f"source,{target}\n" + "".join(f"{source},{target}\n" for source, target in pairs))
    return path


def changes_of(name: str, folder: Path) -> dict[str, Any]:
    """What makes the recipe `name` a run of seconds."""
    recipe = resolve(CONFIGS / f"{name}.yml", ["data.path=x"] if not has_datasets(name) else []).recipe
    changes = dict(SHORT)
    parts = [part for part in ("encoder", "decoder") if getattr(recipe.model, part) is not None]
    changes |= {f"model.{part}.{option}": value for part in parts for option, value in SMALL.items()}
    if recipe.model.global_config.batch_size is not None:
        changes["model.global_config.batch_size"] = 2
    if recipe.task == "diarization":
        path = str(meetings(folder / "meetings"))
        if has_datasets(name):
            changes["datasets"] = [{"name": "mine", "path": path}]
        else:
            changes["data.path"] = path
        return changes | {"data.chunk_seconds": 4.0, "data.validation": 0.5, "data.cache_dir": str(folder / "cache")}
    return changes | {"data.path": str(rows(folder, recipe.model.model_type == "encoder")), "data.vocabulary": 300}


def has_datasets(name: str) -> bool:
    return "\ndatasets:" in (CONFIGS / f"{name}.yml").read_text(encoding="utf-8")
