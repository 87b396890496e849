"""Writing one checkpoint, in the background: files, manifest, rename, best pointer, pruning, history."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phonate.config.errors import CheckpointError
from phonate.training.checkpoints import copies, files, listing
from phonate.training.checkpoints.files import FileProblemError, Record
from phonate.training.checkpoints.manifest import read_manifest, write_manifest
from phonate.training.checkpoints.metadata import CheckpointMetadata, git_fields, system_fields, time_after
from phonate.training.checkpoints.snapshot import Snapshot, Written
from phonate.training.settings import CheckpointConfig


@dataclass(frozen=True)
class Job:
    """The content of a checkpoint that is to be written. Nothing in it changes while training goes on."""

    final: Path
    weights: Snapshot
    state: Snapshot
    document: Any
    """The state without its tensors, for JSON."""
    contents: Mapping[str, bytes]
    """Further files by name."""
    metadata: CheckpointMetadata
    """Without the fields that the writer fills in: time, version, hash of the weights, machine, git."""
    is_best: bool | None
    """Whether the best value was measured at this step. None: if it is better than that of the best checkpoint."""


class Writer:
    """Writes checkpoints into one folder, one after the other.

    Args:
        folder: where the checkpoints are.
        config: how many are kept and what is recorded.
        backup_folder: where each new best checkpoint is copied to. None: nowhere.
    """

    def __init__(self, folder: Path, config: CheckpointConfig, backup_folder: Path | None = None) -> None:
        self.folder = folder
        self.config = config
        self.backup_folder = backup_folder
        self.history = listing.recovered_history(folder) if config.versioning else listing.History()
        self._last_backup: listing.Best | None = None
        # Here, in the main thread, and not while writing: git is another process, and starting one from the
        # background thread while the main thread forks loader workers makes it wait for them for ever.
        self._environment: dict[str, Any] = {
            **(system_fields() if config.track_system_info else {}),
            **(git_fields(Path.cwd()) if config.track_git_info else {}),
        }

    def write(self, job: Job) -> None:
        """Write, verify, rename; then tidy up. Raises CheckpointError, with nothing old deleted."""
        temporary = job.final.with_name(f".{job.final.name}.tmp")
        try:
            files.delete(temporary)
            temporary.mkdir()
            self._write_files(temporary, job)
            files.commit(temporary, job.final)
        except OSError as error:
            shutil.rmtree(temporary, ignore_errors=True)  # the first error is the one reported
            raise files.explained(error, self.folder, job.weights.nbytes + job.state.nbytes) from error
        except CheckpointError:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        try:
            self.tidy()
        except OSError as error:
            raise files.explained(error, self.folder, 0) from error
        if self.backup_folder is not None:
            self._back_up(self.backup_folder)

    def _write_files(self, temporary: Path, job: Job) -> None:
        if (broken := job.weights.first_nan()) is not None:
            raise CheckpointError(
                f"{job.final}: {broken} holds NaN, so this checkpoint was not saved and earlier ones are kept; "
                "resume from them with a lower training.optimizer.lr, or with training.mixed_precision: fp32"
            )
        compress = self.config.compress
        suffix = files.COMPRESSED if compress else ""
        written: dict[str, Written] = {}
        for name, snapshot in ((files.WEIGHTS, job.weights), (files.STATE_TENSORS, job.state)):
            written[name] = snapshot.write(temporary / (name + suffix), compress)
        records = {name + suffix: entry.record for name, entry in written.items()}
        metadata = self._complete(job, files.WEIGHTS + suffix, written[files.WEIGHTS])
        contents = {
            **job.contents,
            # without indentation json uses its C encoder, which holds up the training less
            files.STATE: files.render(job.document, indent=None),
            files.METADATA: files.render(metadata.document()),
        }
        for name, content in contents.items():
            records[name] = files.write_durably(temporary / name, content)
        write_manifest(temporary, records)

    def _complete(self, job: Job, weights_name: str, weights: Written) -> CheckpointMetadata:
        """The metadata with the fields that depend on the folder, the written weights and the machine."""
        infos = listing.scan(self.folder)
        found = {
            "timestamp": time_after(max((item.metadata.timestamp for item in infos if item.metadata), default=None)),
            "version": self._next_version(infos) if self.config.versioning else None,
            "is_best": listing.improves(infos, job.metadata) if job.is_best is None else job.is_best,
            "model_hash": weights.content_sha256 if self.config.track_model_hash else None,
        }
        still_best = _still_best(job.final, weights_name, weights.record)
        return job.metadata.model_copy(update={**found, **still_best, **self._environment})

    def _next_version(self, infos: list[listing.CheckpointInfo]) -> int:
        saved = [row.version for row in self.history.checkpoints]
        present = [item.metadata.version or 0 for item in infos if item.metadata]
        return max([0, *saved, *present]) + 1

    def tidy(self) -> None:
        """Bring best pointer, number of checkpoints and history up to date, all from what is in the folder."""
        infos = listing.scan(self.folder)
        listing.write_best(self.folder, listing.best_of(infos))
        listing.prune(self.folder, self.config.save_total_limit)
        if self.config.versioning:
            self.history = listing.update_history(self.folder, self.history, listing.scan(self.folder))

    def _back_up(self, target: Path) -> None:
        infos = listing.scan(self.folder)
        best = listing.best_of(infos)
        if best is None or best == self._last_backup:
            return
        source = next(item for item in infos if item.name == best.name)
        copies.back_up(source.path, target, self.config.max_backups)
        self._last_backup = best


def _still_best(final: Path, weights_name: str, weights: Record) -> dict[str, Any]:
    """The metadata fields that keep a checkpoint the best when it is replaced by one with the same weights.

    A run that is resumed and stopped again before its first step saves the step that it was resumed from.
    """
    replaced = listing.info(final).metadata if final.exists() else None
    if replaced is None or not replaced.is_best:
        return {}
    try:
        same_weights = read_manifest(final).get(weights_name) == weights
    except FileProblemError:  # what is replaced is damaged: it can't be the best any longer
        return {}
    kept = {"best_metric_name", "best_metric_mode", "best_metric", "is_best"}
    return replaced.model_dump(include=kept) if same_weights else {}
