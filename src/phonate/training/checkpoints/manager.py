"""The one checkpoint store: saves in the background, loads what is intact."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn

from phonate.compute.system import ProcessLock, free_bytes
from phonate.config.errors import CheckpointError
from phonate.config.metrics import Better
from phonate.training.checkpoints import files, listing, snapshot
from phonate.training.checkpoints import listing as copies
from phonate.training.checkpoints.files import (
    FileProblemError,
    Problem,
    Record,
    folder_lock,
    problems,
    read_manifest,
    write_manifest,
)
from phonate.training.checkpoints.listing import CheckpointInfo, SortKey, find, is_checkpoint
from phonate.training.checkpoints.loading import Checkpoint, load, load_first_intact
from phonate.training.checkpoints.metadata import (
    CheckpointMetadata,
    git_fields,
    phonate_version,
    system_fields,
    time_after,
)
from phonate.training.checkpoints.snapshot import Snapshot, Written
from phonate.training.run import run_id
from phonate.training.settings import CheckpointConfig

logger = logging.getLogger(__name__)

# ----------------------------------------------------------- Writing one checkpoint, in the background


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


def temporary_of(final: Path) -> Path:
    """Where a checkpoint is written before it has its name."""
    return final.with_name(f".{final.name}.tmp")


Shard = tuple[int, int]
"""A rank that writes its part of each checkpoint, and how many ranks do."""
SHARDS_PATIENCE = 1800.0
"""Seconds after which a part that another rank has not written is missed."""
_SHARD_RECORD = "shard-{:05d}.json"


def write_tensors(
    folder: Path, shard: Shard | None, weights: Snapshot, state: Snapshot, compress: bool
) -> dict[str, Written]:
    """Write the tensors of a checkpoint, or this rank's part of them, and return what was written by name.

    Raises CheckpointError where weights hold NaN, OSError.
    """
    if (broken := weights.first_nan()) is not None:
        raise CheckpointError(
            f"{folder.parent}: {broken} holds NaN, so this checkpoint was not saved and earlier ones are kept; "
            "resume from them with a lower training.optimizer.lr, or with training.mixed_precision=fp32"
        )
    written = {}
    for name, tensors in ((files.WEIGHTS, weights), (files.STATE_TENSORS, state)):
        name = (name if shard is None else files.shard_name(name, *shard)) + (files.COMPRESSED if compress else "")
        written[name] = tensors.write(folder / name, compress)
    return written


def write_shard(final: Path, shard: Shard, weights: Snapshot, state: Snapshot, compress: bool) -> None:
    """Write the part of a rank that is not the main one, and a record of it that the main one waits for.

    Raises CheckpointError.
    """
    folder, told = temporary_of(final), _SHARD_RECORD.format(shard[0])
    try:
        if not folder.is_dir():
            raise CheckpointError(
                f"{folder.parent}: rank {shard[0]} does not see what the first rank makes there; the folder of a run "
                "must be the same for all ranks"
            )
        try:
            written = write_tensors(folder, shard, weights, state, compress)
        except (OSError, CheckpointError) as error:
            files.replace_file(folder / told, files.render({"error": str(error)}))
            raise
        records = {name: {"size": one.record.size, "sha256": one.record.sha256} for name, one in written.items()}
        files.replace_file(folder / told, files.render(records))
    except OSError as error:
        raise files.explained(error, folder.parent, weights.nbytes + state.nbytes) from error


def other_shards(folder: Path, count: int, abandoned: threading.Event) -> dict[str, Record]:
    """The records of what the other ranks have written, once all have. Raises CheckpointError; at once where they are
    `abandoned`, because a rank has ended."""
    records: dict[str, Record] = {}
    ends = time.monotonic() + SHARDS_PATIENCE
    for rank in range(1, count):
        told = folder / _SHARD_RECORD.format(rank)
        while not told.exists():
            if abandoned.is_set() or time.monotonic() > ends:
                raise CheckpointError(f"{folder.parent}: rank {rank} has not written its part of {folder.name}")
            time.sleep(0.005)
        document = files.read_json(told)
        if "error" in document:
            raise CheckpointError(f"rank {rank}: {document['error']}")
        records |= {name: Record(**entry) for name, entry in document.items()}
        told.unlink()
    return records


class Writer:
    """Writes checkpoints into one folder, one after the other.

    Args:
        folder: where the checkpoints are.
        config: how many are kept and what is recorded.
        backup_folder: where each new best checkpoint is copied to. None: nowhere.
        shard: the part that this rank writes. None: all of it.
    """

    def __init__(
        self, folder: Path, config: CheckpointConfig, backup_folder: Path | None = None, shard: Shard | None = None
    ) -> None:
        self.folder = folder
        self.shard = shard
        self.config = config
        self.backup_folder = backup_folder
        self.abandoned = threading.Event()
        """Set where no other rank will write its part."""
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
        temporary = temporary_of(job.final)
        try:
            if self.shard is None:  # else it is there, and other ranks write into it
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
        written = write_tensors(temporary, self.shard, job.weights, job.state, self.config.compress)
        records = {name: entry.record for name, entry in written.items()}
        if self.shard is not None:
            records |= other_shards(temporary, self.shard[1], self.abandoned)
        weights = next(iter(written))
        metadata = self._complete(job, weights, written[weights])
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
        fields = {
            "timestamp": time_after(max((item.metadata.timestamp for item in infos if item.metadata), default=None)),
            "version": self._next_version(infos) if self.config.versioning else None,
            "is_best": listing.improves(infos, job.metadata) if job.is_best is None else job.is_best,
            "model_hash": weights.content_sha256 if self.config.track_model_hash and self.shard is None else None,
        }
        still_best = _still_best(job.final, weights_name, weights.record)
        return job.metadata.model_copy(update={**fields, **still_best, **self._environment})

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
    names = {"best_metric_name", "best_metric_mode", "best_metric", "is_best"}
    return replaced.model_dump(include=names) if same_weights else {}


SPARE_BYTES = 1 << 20
"""Room asked for beside the tensors: the small files and the file system's own needs."""


class CheckpointManager:
    """The checkpoints of one run: `folder/step-00000500/` and so on.

    `save_checkpoint` copies all tensors into buffers that are allocated once and used again (pinned when they
    come from a GPU) and returns; a background thread writes, hashes, reads back, renames, and removes what is too
    old. An error there is raised by the next `save_checkpoint`, `poll`, `flush` or `close`.

    Args:
        folder: where the checkpoints are; made by the first save.
        config: how many are kept, what is recorded, whether files are compressed and verified.
        run: the run's folder, which a relative `backup_dir` belongs to. None: the parent of `folder`.
        is_main: False in all but one of several processes; those save nothing.
        shard: this rank and their number, where each rank has a part of the tensors and writes that.
    """

    def __init__(
        self,
        folder: str | Path,
        config: CheckpointConfig | None = None,
        *,
        run: str | Path | None = None,
        is_main: bool = True,
        shard: Shard | None = None,
    ) -> None:
        self.folder = Path(folder)
        self.shard = shard
        self.config = config or CheckpointConfig()
        self.is_main = is_main
        self._run = Path(run) if run is not None else self.folder.parent
        self._weights, self._state = Snapshot(), Snapshot()
        self._pending: Future[None] | None = None
        self._lock: ProcessLock | None = None
        self._writer: Writer | None = None

    # ------------------------------------------------------------------ saving

    def save_checkpoint(
        self,
        *,
        step: int,
        epoch: int,
        weights: Mapping[str, Tensor],
        state: Mapping[str, Any],
        metrics: Mapping[str, float] | None = None,
        learning_rate: float | None = None,
        model_name: str = "",
        experiment_name: str = "",
        recipe_yaml: str = "",
        architecture: str = "",
        export: Mapping[str, Any] | None = None,
        best_metric: tuple[str, float] | None = None,
        greater_is_better: bool = False,
        directions: Mapping[str, Better] | None = None,
        is_best: bool | None = None,
        notes: str = "",
        tags: tuple[str, ...] = (),
    ) -> Path:
        """Save a checkpoint in the background; returns the folder that it will have.

        Args:
            step: optimizer steps done; a checkpoint of the same step is replaced.
            epoch: epochs done.
            weights: the model's tensors, as inference uses them.
            state: everything else, nested: dicts, lists, tuples, numbers, strings, tensors, numpy arrays. It
                comes back bit for bit. `optimizer` and `schedule` are looked for in it, for the metadata.
            metrics: metrics known at this step (`loss` or `train_loss`, `val_loss`, ...).
            export: what inference needs besides the weights, as JSON.
            best_metric: the metric that chooses the best checkpoint, and its best value so far.
            directions: the better direction of metrics, where it is known.
            is_best: whether that value was measured at this step. None: if it is better than that of the
                best checkpoint in the folder.

        Raises:
            CheckpointError: the save before this one failed, a value can't be stored, the folder can't be
                written, or the disk is too full. Nothing old has been deleted then.
        """
        final = self.folder / listing.name_of(step)
        if not self.is_main:
            return final
        known = dict(metrics or {})
        metadata = CheckpointMetadata(
            timestamp=datetime.now(UTC),
            epoch=epoch,
            global_step=step,
            model_name=model_name,
            experiment_name=experiment_name,
            train_loss=known.get("train_loss", known.get("loss")),
            val_loss=known.get("val_loss"),
            metrics=known,
            directions=dict(directions or {}),
            best_metric_name=best_metric[0] if best_metric else None,
            best_metric_mode="max" if greater_is_better else "min",
            best_metric=best_metric[1] if best_metric else None,
            num_parameters=sum(tensor.numel() for tensor in weights.values()),
            model_size_mb=sum(tensor.nbytes for tensor in weights.values()) / 1e6,
            learning_rate=learning_rate,
            optimizer_state_available=_holds(state, "optimizer"),
            scheduler_state_available=_holds(state, "schedule"),
            phonate_version=phonate_version(),
            pytorch_version=torch.__version__,
            cuda_version=torch.version.cuda,
            notes=notes,
            tags=tags,
        )
        contents = {files.RECIPE: recipe_yaml.encode(), files.INFERENCE: _json(export)}
        if self.config.save_model_architecture:
            contents[files.ARCHITECTURE] = architecture.encode()
        self._write_behind(final, weights, state, contents, metadata, is_best)
        return final

    def _write_behind(
        self,
        final: Path,
        weights: Mapping[str, Tensor],
        state: Mapping[str, Any],
        contents: dict[str, bytes],
        metadata: CheckpointMetadata,
        is_best: bool | None,
    ) -> None:
        """Take copies of weights and state, once the save before this one is done, and write them in the background."""
        self.flush()
        writer = self._opened()
        document, tensors = snapshot.encode(state)
        nbytes = sum(tensor.nbytes for tensor in (*weights.values(), *tensors.values()))
        self._make_room(nbytes + SPARE_BYTES)
        self._require(nbytes)
        self._take(weights, tensors)
        job = Job(final, self._weights, self._state, document, contents, metadata, is_best)
        self._start(writer.write, job)

    def _start(self, write: Callable[..., None], *arguments: Any) -> None:
        # A thread for each save: OpenMP keeps workers for each thread that calculates as long as it lives, and
        # with more workers than cores, those of the training would sleep and wake at each operation.
        thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoints")
        self._pending = thread.submit(write, *arguments)
        thread.shutdown(wait=False)

    def _take(self, weights: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
        if self.shard is None:
            self._weights.take(weights)
            self._state.take(tensors)
            return
        for target, source in ((self._weights, weights), (self._state, tensors)):
            target.take(*snapshot.shards_of(source, is_main=self.shard[0] == 0))

    def make_room(self, step: int) -> None:
        """Where ranks write parts: make the folder for those of `step`, on the first rank, once the save before this
        one is done. All ranks wait for it before they save. Raises CheckpointError."""
        self.flush()
        if self.shard is not None and self.shard[0] == 0:
            self._opened()
            temporary = temporary_of(self.folder / listing.name_of(step))
            try:
                files.delete(temporary)
                temporary.mkdir()
            except OSError as error:
                raise files.explained(error, self.folder, 0) from error

    def save_shard(self, step: int, weights: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Save this rank's part of a checkpoint that the first rank saves. Raises CheckpointError as that does."""
        assert self.shard is not None
        self._take(weights, snapshot.encode(state)[1])
        final = self.folder / listing.name_of(step)
        self._start(write_shard, final, self.shard, self._weights, self._state, self.config.compress)

    def check_space(self, *trees: Any) -> None:
        """Raise CheckpointError unless the disk has room for a checkpoint of the tensors in `trees`.

        Each save checks it too; checked before the first step, a full disk is reported at once.
        """
        tensors = [tensor for part in trees for tensor in snapshot.encode(part)[1].values()]
        self._require(sum(tensor.nbytes for tensor in tensors))

    def _require(self, nbytes: int) -> None:
        if free_bytes(self.folder) < nbytes + SPARE_BYTES:
            raise CheckpointError(files.no_space(self.folder, nbytes + SPARE_BYTES))

    def _make_room(self, needed: int) -> None:
        """Where the disk is too full for `needed` bytes, remove the oldest checkpoints, one after the other: neither
        the best one nor the newest that is intact, nor anything where none is."""
        if free_bytes(self.folder) >= needed:
            return
        infos = listing.newest_first(listing.scan(self.folder))
        intact = next((item for item in infos if not problems(item.path)), None)
        best = listing.best_of(infos)
        if intact is None:
            return
        for item in reversed(infos):
            if free_bytes(self.folder) >= needed:
                break
            if item.step >= intact.step or (best is not None and item.name == best.name):
                continue
            logger.warning("%s: the disk is nearly full; the oldest checkpoint, %s, is removed", self.folder, item.name)
            listing.remove(item)
        self._tidy()

    def poll(self) -> bool:
        """Whether a save is being written. Raises CheckpointError if the last one failed."""
        if self._pending is not None and self._pending.done():
            self.flush()
        return self._pending is not None

    def flush(self) -> None:
        """Wait until the save that is being written is on the disk. Raises CheckpointError if it failed."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        try:
            pending.result()
        except BaseException:
            if not pending.done():  # a signal interrupted the wait, not the save
                self._pending = pending
            raise

    def settle(self) -> None:
        """Wait until the save that is being written is on the disk or has failed, from any thread."""
        if (pending := self._pending) is not None:
            wait([pending])

    def abandon(self) -> None:
        """Wait no longer for the parts of other ranks, one of which has ended."""
        if self._writer is not None:
            self._writer.abandoned.set()

    def close(self) -> None:
        """Wait for the last save and let other processes save here. The manager can be used again."""
        try:
            self.flush()
        finally:
            if self._lock is not None:
                self._lock.release()
            self._lock = self._writer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open(self) -> None:
        """Make the folder, lock it against other processes, and finish what a killed one left there.

        The first save does so too. Raises CheckpointError when another process saves here.
        """
        if self.is_main:
            self._opened()

    def _opened(self) -> Writer:
        if self._writer is None:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                self._lock = self._lock or folder_lock(self.folder)
                files.recover(self.folder)
                listing.write_best(self.folder, listing.best_of(listing.scan(self.folder)))
                self._writer = Writer(self.folder, self.config, self._backup_folder(), self.shard)
            except OSError as error:
                raise files.explained(error, self.folder, 0) from error
        return self._writer

    def _backup_folder(self) -> Path | None:
        """Where backups go. A folder outside the run may be that of other runs too: each has its own one in it."""
        if self.config.backup_dir is None:
            return None
        folder = self._run / self.config.backup_dir
        if folder.resolve().is_relative_to(self._run.resolve()):
            return folder
        return folder / f"{self._run.resolve().name}-{run_id(self._run)}"

    # ----------------------------------------------------------------- loading

    def load_checkpoint(
        self, which: str | int | Path = "latest", strict: bool = True, model: nn.Module | None = None
    ) -> Checkpoint:
        """A checkpoint by name, step, path, `latest` or `best`, its files verified first.

        With `model`, its weights are put into it, `strict` as in `load_state_dict`. Raises CheckpointError
        naming what is damaged, missing or does not fit.
        """
        if which in ("latest", "auto"):
            checkpoint = self.load_latest_checkpoint()
            if checkpoint is None:
                raise CheckpointError(f"{self.folder}: no checkpoints here")
        elif which == "best":
            checkpoint = self.load_best_checkpoint()
        else:
            checkpoint = load(self._path(which), self.config.verify_integrity)
        if model is not None:
            try:
                model.load_state_dict(checkpoint.weights, strict=strict)
            except RuntimeError as error:
                raise CheckpointError(
                    f"{checkpoint.path}: does not fit the model: {' '.join(str(error).split())}"
                ) from error
        return checkpoint

    def load_latest_checkpoint(self) -> Checkpoint | None:
        """The newest intact checkpoint, None without any; damaged newer ones are in `skipped` and the log."""
        self.flush()
        return load_first_intact(listing.newest_first(listing.scan(self.folder)), self.config.verify_integrity)

    def load_best_checkpoint(self) -> Checkpoint:
        """The best checkpoint that is intact; damaged better ones are in `skipped` and the log."""
        self.flush()
        ranked = listing.ranking(listing.scan(self.folder))
        checkpoint = load_first_intact(ranked, self.config.verify_integrity)
        if checkpoint is None:
            raise CheckpointError(f"{self.folder}: no checkpoint was chosen as the best yet")
        return checkpoint

    def _path(self, which: str | int | Path) -> Path:
        self.flush()
        path = Path(str(which))
        return path if is_checkpoint(path) else find(self.folder, str(which))

    # ------------------------------------------------------------- the folder

    def latest(self) -> Path:
        """The newest checkpoint's folder, once it is on the disk. Raises CheckpointError when there is none."""
        self.flush()
        for item in listing.newest_first(listing.scan(self.folder)):
            return item.path
        raise CheckpointError(f"{self.folder}: no checkpoints here")

    def list_checkpoints(self, sort_by: SortKey = "timestamp") -> list[CheckpointInfo]:
        """All checkpoints: newest first, highest epoch first, or lowest validation loss first."""
        self.flush()
        return listing.sort_listing(listing.scan(self.folder), sort_by)

    def get_checkpoint_info(self, which: str | int | Path) -> CheckpointMetadata:
        """The metadata of a checkpoint. Raises CheckpointError."""
        return listing.read_metadata(self._path(which))

    def remove_checkpoint(self, which: str | int | Path) -> None:
        """Delete a checkpoint. The best pointer and the history follow."""
        listing.remove(listing.info(self._path(which)))
        self._tidy()

    def prune(self, keep: int) -> list[str]:
        """Delete all but the newest `keep` checkpoints and the best one; returns the names deleted."""
        self.flush()
        removed = listing.prune(self.folder, keep)
        self._tidy()
        return removed

    def _tidy(self) -> None:
        listing.refresh(self.folder)
        if self._writer is not None and self.config.versioning:
            self._writer.history = listing.read_history(self.folder)

    def verify(self, which: str | int | Path) -> list[Problem]:
        """What is wrong with a checkpoint's files. Empty: it is intact."""
        return problems(self._path(which))

    def create_checkpoint_backup(self, which: str | int | Path = "best") -> Path:
        """Copy a checkpoint to `backup_dir` (`backups` where that is not set), verified; the oldest backups go."""
        target = self._backup_folder() or self._run / "backups"
        return copies.back_up(self._path(which), target, self.config.max_backups)

    def export_checkpoint(self, which: str | int | Path, target: str | Path) -> Path:
        """Copy the part of a checkpoint that inference needs to the new folder `target`."""
        return copies.export(self._path(which), target)


def create_checkpoint_manager(
    run: str | Path = ".", config: CheckpointConfig | None = None, **options: Any
) -> CheckpointManager:
    """The store of the run `run`; `options` replace settings of `config` (`save_total_limit=3`)."""
    merged = CheckpointConfig.model_validate({**(config or CheckpointConfig()).model_dump(), **options})
    return CheckpointManager(Path(run) / merged.save_dir, merged, run=run)


def get_default_checkpoint_config() -> CheckpointConfig:
    """The default settings of checkpoints."""
    return CheckpointConfig()


def _json(export: Mapping[str, Any] | None) -> bytes:
    try:
        return files.render(dict(export or {}))
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"the task's inference metadata is not plain JSON: {error}") from error


def _holds(state: Any, name: str, depth: int = 3) -> bool:
    """Whether a dict in `state`, at most `depth` levels deep, has a value under `name` or its plural."""
    if not isinstance(state, Mapping) or depth == 0:
        return False
    if any(state.get(key) is not None for key in (name, f"{name}s")):
        return True  # even an empty one: a schedule that only counts steps has no other state
    return any(_holds(value, name, depth - 1) for value in state.values())
