"""Copies of checkpoints: backups, and exports without what only training needs. No torch in this file."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

from phonate.config.errors import CheckpointError, InputError
from phonate.training.checkpoints import files, listing

TRAINING_ONLY = frozenset({files.STATE, files.STATE_TENSORS, files.STATE_TENSORS + files.COMPRESSED})


def export(source: Path, target: str | Path) -> Path:
    """Copy what inference needs of the checkpoint `source` to the new folder `target`.

    That is the weights, `model.json`, the recipe, the model's structure and the metadata, with a manifest of
    their own. Raises CheckpointError when `source` is damaged, InputError when `target` is there
    already.
    """
    target = Path(target)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"{target}: exists already; choose another name or remove it")
    return copy_verified(source, target, leave_out=TRAINING_ONLY)


def back_up(source: Path, target: Path, max_backups: int) -> Path:
    """Copy a checkpoint into the folder `target`, verify the copy, and remove the oldest beyond `max_backups`.

    Its name begins with its time, so that a later checkpoint of the same step is another backup.
    """
    metadata = listing.read_metadata(source)
    name = f"{metadata.timestamp:%Y%m%d-%H%M%S}-{listing.name_of(metadata.global_step)}"
    copy = copy_verified(source, target / name)
    backups = sorted(path for path in target.glob("????????-??????-step-*") if path.is_dir())
    for doomed in backups[:-max_backups]:
        files.remove_folder(doomed)
    return copy


def copy_verified(source: Path, target: Path, leave_out: frozenset[str] = frozenset()) -> Path:
    """Copy a checkpoint to the new folder `target` without the files `leave_out`. Raises CheckpointError."""
    records = {name: r for name, r in files.read_manifest(source).items() if name not in leave_out}
    damage = files.problems(source, leave_out=leave_out)
    if damage:
        raise CheckpointError(f"{source} is damaged ({'; '.join(damage)}); it was not copied")
    temporary = target.with_name(f".{target.name}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        for name in records:
            shutil.copyfile(source / name, temporary / name)
            files.sync_file(temporary / name)
            files.drop_from_memory(temporary / name)
        files.write_manifest(temporary, records)
        damage = files.problems(temporary)
        if damage:
            raise OSError(errno.EIO, f"the copy differs ({'; '.join(damage)})", str(target))
        files.commit(temporary, target)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)  # the first error is told
        raise files.explained(error, target, sum(record.size for record in records.values())) from error
    return target
