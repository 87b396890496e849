"""Copies of checkpoints: backups, and exports without what only training needs. No torch in this file."""

from __future__ import annotations

import errno
import os
import re
import shutil
from pathlib import Path

from phonate.config.errors import InputError
from phonate.training.checkpoints import files, listing
from phonate.training.checkpoints.files import FileProblemError
from phonate.training.checkpoints.manifest import (
    DamagedCheckpointError,
    Problem,
    problems,
    read_manifest,
    write_manifest,
)

TRAINING_ONLY = frozenset({files.STATE, files.STATE_TENSORS, files.STATE_TENSORS + files.COMPRESSED})
_BACKUP = re.compile(r"\d{8}-\d{6}-step-\d{8,}")
_UNFINISHED_BACKUP = re.compile(rf"\.{_BACKUP.pattern}(\.\d+\.tmp|\.tmp|\.removed)")


def export(source: Path, target: str | Path) -> Path:
    """Copy what inference needs of the checkpoint `source` to the new folder `target`.

    That is the weights, `model.json`, the recipe, the model's structure and the metadata, with a manifest of
    their own. Raises CheckpointError when `source` is damaged, InputError when `target` exists.
    """
    target = Path(target)
    try:
        if os.path.lexists(target) and (not target.is_dir() or any(target.iterdir())):
            raise InputError(f"{target}: exists already; choose another name or remove it")
    except OSError as error:
        raise InputError(f"{target}: can't be written ({error.strerror})") from error
    return copy_verified(source, target, leave_out=TRAINING_ONLY)


def back_up(source: Path, target: Path, max_backups: int) -> Path:
    """Copy a checkpoint into the folder `target`, verify the copy, and delete the oldest beyond `max_backups`.

    Its name begins with its time, so that a later checkpoint of the same step is another backup. `target` belongs
    to one run: whatever looks like a backup there counts as one of it.
    """
    metadata = listing.read_metadata(source)
    name = f"{metadata.timestamp:%Y%m%d-%H%M%S}-{listing.name_of(metadata.global_step)}"
    if target.is_dir():
        for leftover in target.iterdir():  # of a process that was killed here
            if _UNFINISHED_BACKUP.fullmatch(leftover.name):
                files.delete(leftover)
    copy = copy_verified(source, target / name)
    backups = sorted(path for path in target.iterdir() if _BACKUP.fullmatch(path.name) and path.is_dir())
    for doomed in backups[:-max_backups]:
        files.remove_folder(doomed)
    return copy


def copy_verified(source: Path, target: Path, leave_out: frozenset[str] = frozenset()) -> Path:
    """Copy a checkpoint to the new folder `target` without the files `leave_out`. Raises CheckpointError."""
    try:
        records = {name: r for name, r in read_manifest(source).items() if name not in leave_out}
    except FileProblemError as error:
        raise DamagedCheckpointError(source, [Problem(error.path.name, error.reason)]) from error
    if damage := problems(source, leave_out=leave_out):
        raise DamagedCheckpointError(source, damage)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary.mkdir()
    except OSError as error:
        raise files.explained(error, target, 0) from error
    try:
        for name in records:
            shutil.copyfile(source / name, temporary / name)
            files.sync_file(temporary / name)
            files.drop_from_memory(temporary / name)
        write_manifest(temporary, records)
        if damage := problems(temporary):
            raise OSError(errno.EIO, f"the copy differs ({'; '.join(map(str, damage))})", str(target))
        if target.is_dir():
            files.delete(target) if _BACKUP.fullmatch(target.name) else target.rmdir()
        files.commit(temporary, target)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)  # the first error is the one reported
        raise files.explained(error, target, sum(record.size for record in records.values())) from error
    return target
