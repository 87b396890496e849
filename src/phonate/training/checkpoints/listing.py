"""A run's folder of checkpoints: what is in it, which is the best, what may go. No torch in this file."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from phonate.config.errors import CheckpointError, InputError
from phonate.training.checkpoints import files
from phonate.training.checkpoints.metadata import CheckpointMetadata, Document

BEST = "best.json"
HISTORY = "checkpoint_history.json"
_NAME = re.compile(r"\.?step-(\d{8,})(\.replaced)?")

_log = logging.getLogger(__name__)

SortKey = Literal["timestamp", "epoch", "val_loss"]


@dataclass(frozen=True)
class CheckpointInfo:
    """A checkpoint in the list: where it is and what its metadata says."""

    path: Path
    step: int
    metadata: CheckpointMetadata | None
    """None when metadata.json can't be read: the checkpoint is damaged."""

    @property
    def name(self) -> str:
        """`step-00000500`."""
        return name_of(self.step)


class Best(Document):
    """`best.json`: which checkpoint is the best, and why."""

    name: str
    """The checkpoint's folder."""
    metric: str
    """What was compared."""
    value: float
    """Its value."""
    mode: Literal["min", "max"]
    """Whether lower or higher is better."""


class Saved(Document):
    """One save in `checkpoint_history.json`."""

    version: int
    name: str
    global_step: int
    epoch: int
    timestamp: datetime
    metrics: dict[str, float]
    removed: datetime | None = None
    """When it was noticed to be gone: pruned, replaced by a save of the same step, or deleted by hand."""


class History(Document):
    """`checkpoint_history.json`: every save of the run, oldest first."""

    checkpoints: tuple[Saved, ...] = ()


def name_of(step: int) -> str:
    """The folder name of the checkpoint of optimizer step `step`."""
    return f"step-{step:08d}"


def info(path: Path) -> CheckpointInfo:
    """What is known of the checkpoint at `path` without reading its tensors."""
    match = _NAME.fullmatch(path.name)
    try:
        metadata = read_metadata(path)
    except CheckpointError:  # damaged: the list shows it as such, and `problems` says what is wrong
        metadata = None
    step = int(match[1]) if match else metadata.global_step if metadata else 0
    return CheckpointInfo(path, step, metadata)


def read_metadata(path: Path) -> CheckpointMetadata:
    """The metadata of the checkpoint at `path`. Raises CheckpointError."""
    document = files.read_json(path / files.METADATA)
    try:
        return CheckpointMetadata.model_validate(document)
    except ValidationError as error:
        raise CheckpointError(f"{path / files.METADATA}: {error.errors()[0]['msg']}") from error


def scan(folder: Path) -> list[CheckpointInfo]:
    """The checkpoints in `folder` in the order of saving; those with unreadable metadata first, by step."""
    found: dict[int, Path] = {}
    # Hidden names first: a checkpoint whose replacement was killed midway counts only without a successor.
    for path in sorted(folder.glob(".step-*.replaced")) + sorted(folder.glob("step-*")):
        if (match := _NAME.fullmatch(path.name)) and path.is_dir():
            found[int(match[1])] = path
    oldest = datetime.min.replace(tzinfo=UTC)
    infos = [info(path) for path in found.values()]
    return sorted(infos, key=lambda i: (i.metadata.timestamp if i.metadata else oldest, i.step))


def newest_first(infos: Sequence[CheckpointInfo]) -> list[CheckpointInfo]:
    """In the order to try them for resuming; one with unreadable metadata counts by its step."""
    readable = [item for item in infos if item.metadata]
    last_step = readable[-1].step if readable else -1
    unreadable = sorted((item for item in infos if not item.metadata), key=lambda item: -item.step)
    newer = [item for item in unreadable if item.step > last_step]
    return newer + readable[::-1] + unreadable[len(newer) :]


def sort_listing(infos: Iterable[CheckpointInfo], sort_by: SortKey) -> list[CheckpointInfo]:
    """Newest first, highest epoch first, or lowest validation loss first; damaged and unmeasured ones last."""

    def key(item: CheckpointInfo) -> tuple[bool, float, float]:
        metadata = item.metadata
        if metadata is None:
            return True, 0.0, 0.0
        newest = -metadata.timestamp.timestamp()
        value = {"timestamp": newest, "epoch": -metadata.epoch, "val_loss": metadata.val_loss}[sort_by]
        missing = value is None or value != value
        return missing, 0.0 if value is None or missing else value, newest

    return sorted(infos, key=key)


def ranking(infos: Sequence[CheckpointInfo]) -> list[CheckpointInfo]:
    """The checkpoints that were the best when they were saved, best first; of equals the earliest.

    Values of another metric than the newest checkpoint's can't be compared and are left out.
    """
    known = [(item, item.metadata) for item in infos if item.metadata and item.metadata.best_metric_name]
    if not known:
        return []
    metric = known[-1][1].best_metric_name, known[-1][1].best_metric_mode
    sign = -1.0 if metric[1] == "max" else 1.0
    bests = [
        (sign * metadata.best_metric, item)
        for item, metadata in known
        if metadata.is_best
        and metadata.best_metric is not None
        and (metadata.best_metric_name, metadata.best_metric_mode) == metric
    ]
    return [item for _, item in sorted(bests, key=lambda pair: pair[0])]


def best_of(infos: Sequence[CheckpointInfo]) -> Best | None:
    """The best checkpoint: a pure function of what is on disk, so no kill or deletion makes it wrong."""
    first = next(iter(ranking(infos)), None)
    if first is None or first.metadata is None:
        return None
    metadata = first.metadata
    assert metadata.best_metric_name is not None
    assert metadata.best_metric is not None
    return Best(
        name=first.name,
        metric=metadata.best_metric_name,
        value=metadata.best_metric,
        mode=metadata.best_metric_mode,
    )


def improves(infos: Sequence[CheckpointInfo], metric: tuple[str, float] | None, mode: Literal["min", "max"]) -> bool:
    """Whether `metric` (name, value) is a number, and better than that of the best checkpoint there is."""
    if metric is None or metric[1] != metric[1]:
        return False
    best = best_of(infos)
    if best is None or (best.metric, best.mode) != (metric[0], mode):
        return True
    return metric[1] > best.value if mode == "max" else metric[1] < best.value


def surplus(infos: Sequence[CheckpointInfo], keep: int) -> list[CheckpointInfo]:
    """What may be removed: all but the newest `keep` and the best. Damaged ones count as the oldest."""
    best = best_of(infos)
    others = [item for item in infos if best is None or item.name != best.name]
    if keep < 1:
        raise InputError(f"at least one checkpoint is kept, not {keep}")
    return others[:-keep]


def remove(item: CheckpointInfo) -> None:
    """Delete a checkpoint; one that somebody else has just deleted is no error."""
    if item.path.exists():
        files.remove_folder(item.path)


def prune(folder: Path, keep: int) -> list[str]:
    """Remove all but the newest `keep` (at least 1) checkpoints and the best one; returns the names removed."""
    doomed = surplus(scan(folder), keep)
    for item in doomed:
        remove(item)
    return [item.name for item in doomed]


def refresh(folder: Path) -> None:
    """Bring best.json and, where there is one, the history up to date after something was deleted."""
    infos = scan(folder)
    write_best(folder, best_of(infos))
    if (folder / HISTORY).exists():
        update_history(folder, read_history(folder), infos)


def write_best(folder: Path, best: Best | None) -> None:
    """Point `best.json` at the best checkpoint; without one there is no such file."""
    path = folder / BEST
    if best is None:
        path.unlink(missing_ok=True)
        return
    content = files.render(best.document())
    if not path.exists() or path.read_bytes() != content:
        files.replace_file(path, content)


def read_history(folder: Path) -> History:
    """The saves of a run; empty before the first. Raises CheckpointError when the file is damaged."""
    path = folder / HISTORY
    if not path.exists():
        return History()
    try:
        return History.model_validate(files.read_json(path))
    except ValidationError as error:
        raise CheckpointError(f"{path}: not a history of checkpoints ({error.errors()[0]['msg']})") from error


def recovered_history(folder: Path) -> History:
    """The history; a damaged one is set aside under another name, said, and begun anew from what is there."""
    try:
        return read_history(folder)
    except CheckpointError as error:
        path = folder / HISTORY
        aside = path.with_name(f"{HISTORY}.damaged")
        path.replace(aside)
        _log.warning("%s; begun anew, the damaged file is %s", error, aside)
        return History()


def update_history(folder: Path, known: History, infos: Sequence[CheckpointInfo]) -> History:
    """Add what is new in `folder` to the history and mark what is gone, in one atomic write.

    Read from the folder, not from the save just done, so that a kill between the two is mended by the next.
    """
    now = datetime.now(UTC)
    present = {(item.name, item.metadata.timestamp): item.metadata for item in infos if item.metadata}
    rows = [
        row if row.removed or (row.name, row.timestamp) in present else row.model_copy(update={"removed": now})
        for row in known.checkpoints
    ]
    listed = {(row.name, row.timestamp) for row in rows}
    for (name, timestamp), metadata in present.items():
        if (name, timestamp) not in listed:
            rows.append(
                Saved(
                    version=metadata.version or max((row.version for row in rows), default=0) + 1,
                    name=name,
                    global_step=metadata.global_step,
                    epoch=metadata.epoch,
                    timestamp=timestamp,
                    metrics=metadata.metrics,
                )
            )
    history = History(checkpoints=tuple(rows))
    files.replace_file(folder / HISTORY, files.render(history.document()))
    return history
