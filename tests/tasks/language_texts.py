"""Small texts, models and settings for tests of language models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from phonate.config.resolve import resolve
from phonate.tasks.language import model as models
from phonate.tasks.language.data import LanguageCorpus
from phonate.tasks.language.task import LanguageTask

ANIMALS = ("cat", "dog", "hen", "cow", "pig", "owl", "bee", "fox")
COLOURS = ("red", "blue", "green", "brown", "white", "black")


def sentences() -> list[str]:
    """48 lines of text."""
    return [f"The {colour} {animal} saw {len(animal + colour)} more." for animal in ANIMALS for colour in COLOURS]


def pairs() -> list[dict[str, str]]:
    """48 prompts with responses."""
    return [
        {"prompt": f"What colour is the {colour} {animal}?", "response": f"It is {colour}, as a {animal} can be."}
        for animal in ANIMALS
        for colour in COLOURS
    ]


def write_texts(folder: Path) -> tuple[Path, Path]:
    """`lines.txt` and `pairs.jsonl` in `folder`."""
    lines, rows = folder / "lines.txt", folder / "pairs.jsonl"
    lines.write_text("\n".join(sentences()) + "\n", encoding="utf-8")
    rows.write_text("".join(json.dumps(row) + "\n" for row in pairs()), encoding="utf-8")
    return lines, rows


def settings(path: Path, **changes: Any) -> dict[str, Any]:
    """Overrides for a run of seconds."""
    return {
        "data.path": str(path),
        "data.validation": 0.2,
        "data.max_length": 64,
        "model.width": 32,
        "model.layers": 2,
        "model.heads": 2,
        "model.vocabulary": 320,
        "training.batch_size": 2,
        "training.max_steps": 12,
        "training.optimizer.lr": 5e-3,
        "training.scheduler.warmup_steps": 2,
        "training.early_stopping": None,
        "training.logging.tensorboard": False,
        "training.logging.interval": 1,
        "training.validation.interval": 12,
        "training.checkpoint.interval": 4,
        "training.checkpoint.save_total_limit": 10,
        **changes,
    }


def task_of(path: Path, **changes: Any) -> LanguageTask:
    """The task that `settings` describe."""
    return LanguageTask(resolve("language", settings(path, **changes)).recipe)


def save_base(texts: Path, folder: Path, **changes: Any) -> Path:
    """A small model of Hugging Face with its tokenizer, in files as they lie on the hub."""
    recipe = resolve("language", settings(texts, **changes)).recipe
    tokenizer = LanguageCorpus(recipe.data).train_tokenizer(320)
    model: Any = models.new_model(recipe.model, tokenizer, 64)
    model.save_pretrained(folder)
    tokenizer.tokenizer.save_pretrained(folder)
    return folder
