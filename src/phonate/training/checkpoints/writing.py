"""Writing one checkpoint, in the background: files, manifest, rename, best pointer, pruning, history."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from phonate.config.errors import CheckpointError
from phonate.training.checkpoints import copies, files, listing
from phonate.training.checkpoints.files import Record
from phonate.training.checkpoints.metadata import CheckpointMetadata, git_facts, system_facts
from phonate.training.checkpoints.snapshot import Snapshot, Written
from phonate.training.settings import CheckpointConfig


@dataclass(frozen=True)
class Job:
    """All of a checkpoint that has to be written. Nothing in it changes while the training goes on."""

    final: Path
    weights: Snapshot
    state: Snapshot
    document: Any
    """The state without its tensors, for JSON."""
    contents: Mapping[str, bytes]
    """Further files by name."""
    metadata: Callable[[], CheckpointMetadata]
    """Called in the background; without what the writer finds out, such as the hash of the weights."""


@dataclass
class Writer:
    """Writes checkpoints into one folder, one after the other."""

    folder: Path
    config: CheckpointConfig
    backup_folder: Path | None = None
    history: listing.History = field(default_factory=listing.History)
    last_best: listing.Best | None = None
    """The best checkpoint that a backup was made of."""
    facts: dict[str, Any] = field(init=False)
    """What is recorded about machine and git."""

    def __post_init__(self) -> None:
        # Here, in the main thread, and not while writing: git is another process, and starting one from the
        # background thread while the main thread forks loader workers makes it wait for them for ever.
        self.facts = self._find_facts()

    def write(self, job: Job) -> None:
        """Write, verify, rename; then tidy up. Raises CheckpointError, with nothing old deleted."""
        temporary = job.final.with_name(f".{job.final.name}.tmp")
        try:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
            self._write_files(temporary, job)
            files.commit(temporary, job.final)
        except OSError as error:
            shutil.rmtree(temporary, ignore_errors=True)  # the first error is told
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
                f"{job.final}: {broken} holds NaN, so this checkpoint was not saved and the ones before it are kept; "
                "resume from them with a lower training.optimizer.lr, or with training.mixed_precision: fp32"
            )
        compress = self.config.compress
        suffix = files.COMPRESSED if compress else ""
        written: dict[str, Written] = {}
        for name, snapshot in ((files.WEIGHTS, job.weights), (files.STATE_TENSORS, job.state)):
            written[name] = snapshot.write(temporary / (name + suffix), compress)
        records = {name + suffix: entry.record for name, entry in written.items()}
        weights = written[files.WEIGHTS]
        found = {**self.facts, **({"model_hash": weights.content_sha256} if self.config.track_model_hash else {})}
        metadata = _still_best(job, files.WEIGHTS + suffix, weights.record).model_copy(update=found)
        contents = {
            **job.contents,
            # without indentation json uses its C encoder, which holds up the training less
            files.STATE: files.render(job.document, indent=None),
            files.METADATA: files.render(metadata.document()),
        }
        for name, content in contents.items():
            records[name] = files.write_durably(temporary / name, content)
        files.write_manifest(temporary, records)

    def _find_facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = system_facts() if self.config.track_system_info else {}
        return {**facts, **(git_facts(Path.cwd()) if self.config.track_git_info else {})}

    def tidy(self) -> None:
        """The best pointer, pruning, the history: all found from what is in the folder."""
        infos = listing.scan(self.folder)
        listing.write_best(self.folder, listing.best_of(infos))
        listing.prune(self.folder, self.config.save_total_limit)
        if self.config.versioning:
            self.history = listing.update_history(self.folder, self.history, listing.scan(self.folder))

    def _back_up(self, target: Path) -> None:
        infos = listing.scan(self.folder)
        best = listing.best_of(infos)
        if best is None or best == self.last_best:
            return
        source = next(item for item in infos if item.name == best.name)
        copies.back_up(source.path, target, self.config.max_backups)
        self.last_best = best


def _still_best(job: Job, weights_name: str, weights: Record) -> CheckpointMetadata:
    """The metadata, called best if it replaces the best checkpoint by the same weights.

    A run that is resumed and stopped again before its first step saves the step that it was resumed from.
    """
    metadata = job.metadata()
    replaced = listing.info(job.final).metadata if job.final.exists() else None
    if replaced is None or not replaced.is_best:
        return metadata
    try:
        same_weights = files.read_manifest(job.final).get(weights_name) == weights
    except CheckpointError:  # what is replaced is damaged: it can't be the best any longer
        return metadata
    kept = {"best_metric_name", "best_metric_mode", "best_metric", "is_best"}
    return metadata.model_copy(update=replaced.model_dump(include=kept)) if same_weights else metadata
