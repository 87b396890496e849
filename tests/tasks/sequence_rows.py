"""Small rows and settings for tests of sequences."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

from phonate.config.resolve import resolve
from phonate.tasks.sequence.task import SequenceTask

WORDS = {
    "cat": "chat",
    "dog": "chien",
    "hen": "poule",
    "cow": "vache",
    "pig": "porc",
    "owl": "hibou",
    "bee": "abeille",
    "fox": "renard",
}
"""A dictionary: the language of the targets has its words in the opposite order."""


def translation(words: tuple[str, ...]) -> str:
    return " ".join(WORDS[word] for word in reversed(words))


def pairs(longest: int = 3) -> list[tuple[str, str]]:
    """Sources of up to `longest` different words, with their translations."""
    found = [one for length in range(1, longest + 1) for one in itertools.permutations(WORDS, length)]
    return [(" ".join(one), translation(one)) for one in found]


def write_pairs(path: Path, rows: list[tuple[str, str]]) -> Path:
    path.write_text("".join(f"{source}\t{target}\n" for source, target in rows), encoding="utf-8")
    return path


def write_lines(path: Path, rows: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows), encoding="utf-8")
    return path


def settings(path: Path, **changes: Any) -> dict[str, Any]:
    """Overrides for a run of seconds."""
    return {
        "data.path": str(path),
        "data.validation": 0.1,
        "data.vocabulary": 320,
        "data.max_length": 64,
        "size": "tiny",
        "model.global_config.d_model": 32,
        "training.batch_size": 4,
        "training.max_steps": 12,
        "training.optimizer.lr": 3e-3,
        "training.scheduler.warmup_steps": 2,
        "training.feature_redraw_interval": None,
        "training.eval_knobs.beam_width": 2,
        "training.logging.tensorboard": False,
        "training.logging.interval": 1,
        "training.validation.interval": 12,
        "training.checkpoint.interval": 4,
        "training.checkpoint.save_total_limit": 10,
        **changes,
    }


def kind(model_type: str, **layers: Any) -> dict[str, Any]:
    """Overrides for another model than the recipe's, whose parts share `layers`."""
    parts = {"encoder": ["encoder"], "decoder": ["decoder"]}.get(model_type, ["encoder", "decoder"])
    model: dict[str, Any] = {"model.model_type": model_type}
    for part in ("encoder", "decoder"):
        model[f"model.{part}"] = dict(layers) if part in parts else None
    return model


def task_of(path: Path, **changes: Any) -> SequenceTask:
    """The task that `settings` describe."""
    return SequenceTask(resolve("sequence", settings(path, **changes)).recipe)
