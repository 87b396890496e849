"""Export of a trained language model as a folder that transformers loads."""

from __future__ import annotations

from pathlib import Path

from phonate.config.errors import InputError
from phonate.tasks.language.inference import Generator


def export(source: Path, target: Path, form: str) -> list[Path]:
    """Write the checkpoint `source`, adapters merged, with its tokenizer to the new folder `target`; returns the
    files.

    Raises InputError for a folder that is not empty, or for 4-bit weights.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"{target}: already exists; name a new folder")
    generator = Generator.load(source)
    model = generator.merged()
    model.save_pretrained(target)  # type: ignore[operator]  # of transformers
    generator.tokenizer.tokenizer.save_pretrained(target)
    return sorted(file for file in target.iterdir() if file.is_file())
