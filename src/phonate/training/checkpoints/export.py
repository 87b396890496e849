"""A checkpoint without what only training needs. No torch in this file."""

from __future__ import annotations

from pathlib import Path

from phonate.config.errors import CheckpointError
from phonate.training.checkpoints import files, writing

TRAINING_ONLY = frozenset({files.STATE, files.STATE_TENSORS, files.STATE_TENSORS + files.COMPRESSED})


def export(source: Path, target: str | Path) -> Path:
    """Copy what inference needs of the checkpoint `source` to the new folder `target`.

    That is the weights, `model.json`, the recipe, the model's structure and the metadata, with a manifest of
    their own. Raises CheckpointError when `source` is damaged, or `target` is there already.
    """
    target = Path(target)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise CheckpointError(f"{target}: exists already; choose another name or remove it")
    return writing.copy_verified(source, target, leave_out=TRAINING_ONLY)
