"""Checkpoints in folders: which there are, which is the best, which may go; copies of them; and from a name to one of
them. Imports no torch.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import importlib
import itertools
import json
import logging
import os
import re
import shlex
import shutil
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from pydantic import AwareDatetime, ValidationError

from phonate.compute.remote import hub_network_errors, missing_model
from phonate.compute.system import require_space, sync
from phonate.config.documents import parse, read, shipped, value_at
from phonate.config.errors import (
    CheckpointError,
    InputError,
    NoRunError,
    PhonateError,
    RecipeError,
    WrongTaskError,
    option,
    optional_package,
    to_plug_in,
)
from phonate.config.metrics import NEWEST, Better, Metric, better_of, plain, with_losses
from phonate.config.registry import loaded_plugins, nearest
from phonate.config.tasks import task_info
from phonate.training.checkpoints import files
from phonate.training.checkpoints.files import BASE_DIARIZER as BASE_DIARIZER
from phonate.training.checkpoints.files import BASE_VOCODER as BASE_VOCODER
from phonate.training.checkpoints.files import BASE_VOICE as BASE_VOICE
from phonate.training.checkpoints.files import PACKAGED as PACKAGED
from phonate.training.checkpoints.files import (
    DamagedCheckpointError,
    FileProblemError,
    Problem,
    packaged,
    problems,
    read_manifest,
    write_manifest,
)
from phonate.training.checkpoints.files import is_checkpoint as is_checkpoint
from phonate.training.checkpoints.metadata import CheckpointMetadata, Document
from phonate.training.settings import CheckpointConfig

# ------------------- A folder of checkpoints: which there are, which is the best, which may be deleted

BEST = "best.json"
HISTORY = "checkpoint_history.json"
_NAME = re.compile(r"\.?step-(\d{8,})(\.replaced)?")

_log = logging.getLogger(__name__)

SortKey = Literal["timestamp", "epoch", "val_loss"]
DocumentT = TypeVar("DocumentT", bound=Document)


@dataclass(frozen=True)
class CheckpointInfo:
    """A checkpoint in a listing."""

    path: Path
    step: int
    metadata: CheckpointMetadata | None
    """None when metadata.json can't be read: the checkpoint is damaged."""

    @property
    def name(self) -> str:
        """`step-00000500`."""
        return name_of(self.step)


class Best(Document):
    """`best.json`: which checkpoint is the best."""

    name: str
    """The checkpoint's folder."""
    metric: str
    """The metric that was compared."""
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
    timestamp: AwareDatetime
    metrics: dict[str, float]
    removed: AwareDatetime | None = None
    """When it was found to be missing: pruned, replaced by a save of the same step, or deleted by hand."""


class History(Document):
    """`checkpoint_history.json`: every save of the run, oldest first."""

    checkpoints: tuple[Saved, ...] = ()


def name_of(step: int) -> str:
    """The folder name of the checkpoint of optimizer step `step`."""
    return f"step-{step:08d}"


def info(path: Path) -> CheckpointInfo:
    """Path, step and metadata of the checkpoint at `path`; its tensors are not read."""
    match = _NAME.fullmatch(path.name)
    try:
        metadata = read_metadata(path)
    except FileProblemError:  # damaged: the list shows it as such, and `problems` says what is wrong
        metadata = None
    step = int(match[1]) if match else metadata.global_step if metadata else 0
    return CheckpointInfo(path, step, metadata)


def read_metadata(path: Path) -> CheckpointMetadata:
    """The metadata of the checkpoint at `path`. Raises FileProblemError."""
    return _validated(CheckpointMetadata, path / files.METADATA)


def _validated(kind: type[DocumentT], path: Path) -> DocumentT:
    """The document of ours at `path`. Raises FileProblemError."""
    try:
        return kind.model_validate(files.read_json(path))
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        key = ".".join(map(str, first["loc"])) or "the document"
        raise FileProblemError(path, f"{key}: {first['msg']}") from error


def scan(folder: Path) -> list[CheckpointInfo]:
    """The checkpoints in `folder` in the order of saving; those with unreadable metadata first, by step."""
    paths: dict[int, Path] = {}
    # Hidden names first: a checkpoint whose replacement was killed midway counts only without a successor.
    for path in sorted(folder.glob(".step-*.replaced")) + sorted(folder.glob("step-*")):
        if (match := _NAME.fullmatch(path.name)) and path.is_dir():
            paths[int(match[1])] = path
    oldest = datetime.min.replace(tzinfo=UTC)
    infos = [item for path in paths.values() if (item := info(path)).metadata or path.exists()]  # not pruned meanwhile
    return sorted(infos, key=lambda i: (i.metadata.timestamp if i.metadata else oldest, i.step))


def newest_first(infos: Sequence[CheckpointInfo]) -> list[CheckpointInfo]:
    """In the order to try them for resuming; one with unreadable metadata counts by its step."""
    readable = [item for item in infos if item.metadata]
    last_step = readable[-1].step if readable else -1
    unreadable = sorted((item for item in infos if not item.metadata), key=lambda item: -item.step)
    newer = [item for item in unreadable if item.step > last_step]
    return newer + readable[::-1] + unreadable[len(newer) :]


def sort_listing(infos: Iterable[CheckpointInfo], sort_by: SortKey) -> list[CheckpointInfo]:
    """Newest first, highest epoch first, or lowest validation loss first; damaged and unmeasured ones last.

    Raises InputError for another `sort_by`.
    """
    if sort_by not in get_args(SortKey):
        raise InputError(f"checkpoints can't be sorted by {sort_by!r}; {nearest(sort_by, list(get_args(SortKey)))}")

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

    Where none of them is left (they were removed), all that have a value of the metric, best first. Values of another
    metric than the newest checkpoint's can't be compared and are left out. Where the newest is the best, it need not
    have been validated.
    """
    ordered = sorted(infos, key=lambda item: item.step)
    known = [(item, item.metadata) for item in ordered if item.metadata and item.metadata.best_metric_name]
    if not known:
        return []
    name, mode = known[-1][1].best_metric_name, known[-1][1].best_metric_mode
    assert name is not None
    same = [(item, m) for item, m in known if (m.best_metric_name, m.best_metric_mode) == (name, mode)]
    if name == NEWEST:
        return [item for item, _ in reversed(same)]
    values = [(m.best_metric, item) for item, m in same if m.is_best] or [
        (_measured(m, name), item) for item, m in same
    ]
    sign = -1.0 if mode == "max" else 1.0
    ranked = [(sign * value, item) for value, item in values if value is not None and value == value]
    return [item for _, item in sorted(ranked, key=lambda pair: pair[0])]


def _measured(metadata: CheckpointMetadata, name: str) -> float | None:
    """The value of a validation metric, which may be named without its `val_`."""
    return metadata.metrics.get(name, metadata.metrics.get(f"val_{name}"))


def rank_by(
    infos: Sequence[CheckpointInfo],
    metric: str,
    higher_is_better: bool | None = None,
    declared: Sequence[Metric] | None = None,
) -> list[tuple[CheckpointInfo, float | None]]:
    """Checkpoints with their values of a validation metric, best first, those without one last.

    Args:
        infos: The checkpoints.
        metric: Its name, with or without `val_`.
        higher_is_better: For a metric of which neither the checkpoints nor the task say it.
        declared: The metrics of the task besides loss terms. None: it does not declare them.

    Raises InputError where no checkpoint has the metric, nothing says its direction, or `higher_is_better` contradicts
    what does.
    """
    measured = [(item, _measured(item.metadata, metric) if item.metadata else None) for item in infos]
    if all(value is None for _, value in measured):
        names = sorted({name for item in infos if item.metadata for name in item.metadata.metrics})
        raise InputError(f"no checkpoint has the metric {metric}; {nearest(metric, names)}")
    known = _direction(infos, metric, declared)
    stated: Better | None = None if higher_is_better is None else "higher" if higher_is_better else "lower"
    if not (known or stated):
        raise InputError(
            f"nothing says whether {metric} is better when lower or higher; add {option('higher_is_better', True)} or "
            f"{option('higher_is_better', False)}"
        )
    if known and stated not in (None, known):
        raise InputError(
            f"{option('higher_is_better', higher_is_better)}: {metric} is better when {known}; leave it out"
        )
    sign = -1.0 if (known or stated) == "higher" else 1.0
    return sorted(measured, key=lambda pair: _last_if_missing(pair[1], sign))


def _direction(infos: Sequence[CheckpointInfo], metric: str, declared: Sequence[Metric] | None) -> Better | None:
    """The better direction of `metric`, as the task declares it, else as the newest checkpoint that knows it does."""
    own = plain(metric)
    if declared is not None:
        return better_of(own, with_losses([own], declared)) or None
    for metadata in (item.metadata for item in reversed(infos) if item.metadata):
        if own in metadata.directions:
            return metadata.directions[own]
        if plain(metadata.best_metric_name or "") == own:
            return "higher" if metadata.best_metric_mode == "max" else "lower"
    return better_of(own, {})


def _last_if_missing(value: float | None, sign: float) -> tuple[bool, float]:
    missing = value is None or value != value
    return missing, 0.0 if value is None or missing else sign * value


def best_of(infos: Sequence[CheckpointInfo]) -> Best | None:
    """The best checkpoint: a pure function of what is on disk, so no kill or deletion makes it wrong."""
    first = next(iter(ranking(infos)), None)
    if first is None or first.metadata is None:
        return None
    metadata = first.metadata
    name = metadata.best_metric_name
    assert name is not None
    value = metadata.best_metric if metadata.is_best else _measured(metadata, name)
    if name == NEWEST:
        value = float(first.step)
    assert value is not None
    return Best(name=first.name, metric=name, value=value, mode=metadata.best_metric_mode)


def improves(infos: Sequence[CheckpointInfo], metadata: CheckpointMetadata) -> bool:
    """Whether the best value in `metadata` is a number, and better than that of the best checkpoint in `infos`."""
    value = metadata.best_metric
    if value is None or value != value:
        return False
    best = best_of(infos)
    if best is None or (best.metric, best.mode) != (metadata.best_metric_name, metadata.best_metric_mode):
        return True
    return value > best.value if best.mode == "max" else value < best.value


def surplus(infos: Sequence[CheckpointInfo], keep: int) -> list[CheckpointInfo]:
    """What may be deleted: all but the newest `keep` and the best. Damaged ones count as the oldest."""
    best = best_of(infos)
    others = [item for item in infos if best is None or item.name != best.name]
    if keep < 1:
        raise InputError(f"at least one checkpoint is kept, not {keep}")
    return others[:-keep]


def remove(item: CheckpointInfo) -> None:
    """Delete a checkpoint, unless another process has just deleted it."""
    if os.path.lexists(item.path):
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
    return _validated(History, path)


def recovered_history(folder: Path) -> History:
    """The history; a damaged file is moved aside with a warning, and a new one is made from the checkpoints."""
    try:
        return read_history(folder)
    except FileProblemError as error:
        path = folder / HISTORY
        aside = path.with_name(f"{HISTORY}.damaged")
        path.replace(aside)
        _log.warning("%s; a new history is begun, the damaged file is kept as %s", error, aside)
        return History()


def update_history(folder: Path, known: History, infos: Sequence[CheckpointInfo]) -> History:
    """Add what is new in `folder` to the history and mark what is gone, in one atomic write.

    Read from the folder, not from the save just done, so that the next save makes up for a kill between the two.
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


# ------------------------ Copies of checkpoints: backups, and exports without what only training needs


class _TrainingOnly(Container[str]):
    """The names of files that inference does not need."""

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (name == files.STATE or bool(_STATE_TENSORS.fullmatch(name)))


_STATE_TENSORS = re.compile(r"state(-\d{5}-of-\d{5})?\.safetensors(\.zlib)?")
TRAINING_ONLY = _TrainingOnly()
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
    folders = (source, *source.resolve().parents[:3])
    plugins = next((one for folder in folders if (one := folder / files.PLUGINS).is_file()), None)
    copy_verified(source, target, leave_out=TRAINING_ONLY)
    if plugins is not None:
        shutil.copyfile(plugins, target / files.PLUGINS)
    return target


def back_up(source: Path, target: Path, max_backups: int) -> Path:
    """Copy a checkpoint into the folder `target`, verify the copy, and delete the oldest beyond `max_backups`.

    Its name begins with its time, so that a later checkpoint of the same step is another backup. `target` belongs
    to one run: whatever looks like a backup there counts as one of it.
    """
    metadata = read_metadata(source)
    name = f"{metadata.timestamp:%Y%m%d-%H%M%S}-{name_of(metadata.global_step)}"
    if target.is_dir():
        for leftover in target.iterdir():  # of a process that was killed here
            if _UNFINISHED_BACKUP.fullmatch(leftover.name):
                files.delete(leftover)
    copy = copy_verified(source, target / name)
    backups = sorted(path for path in target.iterdir() if _BACKUP.fullmatch(path.name) and path.is_dir())
    for doomed in backups[:-max_backups]:
        files.remove_folder(doomed)
    return copy


def copy_verified(source: Path, target: Path, leave_out: Container[str] = ()) -> Path:
    """Copy a checkpoint to the new folder `target` without the files `leave_out`. Raises CheckpointError."""
    try:
        records = {name: r for name, r in read_manifest(source).items() if name not in leave_out}
    except FileProblemError as error:
        raise DamagedCheckpointError(source, [Problem(error.path.name, error.reason)]) from error
    if damage := problems(source, leave_out=leave_out):
        raise DamagedCheckpointError(source, damage)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    needed = sum(record.size for record in records.values())
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        require_space(target, needed)
        temporary.mkdir()
    except OSError as error:
        raise files.explained(error, target, needed) from error
    try:
        for name in records:
            shutil.copyfile(source / name, temporary / name)
            sync(temporary / name)
            files.drop_from_memory(temporary / name)
        write_manifest(temporary, records)
        if damage := problems(temporary):
            raise OSError(errno.EIO, f"the copy differs ({'; '.join(map(str, damage))})", str(target))
        if target.is_dir():
            files.delete(target) if _BACKUP.fullmatch(target.name) else target.rmdir()
        files.commit(temporary, target)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)  # the first error is the one reported
        raise files.explained(error, target, needed) from error
    return target


# ------------------ From a name to a checkpoint or its folder: runs, folders, packaged models, the Hub


DEFAULT_FOLDER = CheckpointConfig().save_dir
HUB = "hf:"
"""How names on the Hugging Face Hub begin."""
MODEL_FILES = ("*.json", "*.safetensors", "*.yaml", "*.txt", "*.md")
"""What a model on the hub may hold: nothing that runs."""
_RUNS = 5
"""Runs that an error names, at most."""
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
"""Of a repository, for libraries that know no other."""
_HUB_SOURCE = re.compile(rf"hf:({HUB_NAME.pattern})(?:@([\w./-]+))?")


def resolve_checkpoint(
    text: str | Path, run: str | Path | None = None, prefer: Literal["latest", "best"] = "latest"
) -> Path:
    """The folder of the checkpoint that `text` names.

    `text` is a checkpoint's folder, a run's folder or its folder of checkpoints (the newest intact one, or the
    best with `prefer="best"`), or, within `run`: `auto` or `latest`, `best`, a step (500), a name (step-00000500), a
    version (v3); or what `located` takes: one of PACKAGED, hf:OWNER/NAME. Raises InputError when there is no
    such checkpoint, CheckpointError when none in it is intact.
    """
    path = located(Path(text))
    if path.is_dir() and is_checkpoint(path):
        return path
    if run is not None and not path.is_dir():
        return find(checkpoints_folder(Path(run)), str(text))
    if not path.is_dir():
        raise no_run(text)
    return find(checkpoints_folder(path), prefer)


_TYPOGRAPHIC = tuple("“”„‘’«")


def no_run(path: str | Path, what: str = "no such run or checkpoint", task: str | None = None) -> NoRunError:
    """The error where something else than a run, or than one of `task`, was given, which names those that are here."""
    here = {Path(run).name: run for run in _runs_here(path, task)}
    near = difflib.get_close_matches(str(path), PACKAGED, n=1, cutoff=0.8)
    near = near or [
        shlex.quote(here[name]) for name in difflib.get_close_matches(Path(path).name, here, n=1, cutoff=0.75)
    ]
    if near:
        return NoRunError(f"{path}: {what}; did you mean {near[0]}?", path, what)
    if all((Path(path) / name).is_file() for name in (files.RECIPE, files.SYSTEM)):
        what = "its training has saved no checkpoint yet"
        again = resume_command(Path(path))
        return NoRunError(f"{path}: {what}; wait for the first one, or go on with {again}", path, what)
    kind = "a run's folder" if task is None else f"the folder of a run of {task}"
    mend = f"give {kind}{_examples(path, task)}"
    if str(path)[:1] in _TYPOGRAPHIC:
        mend = "put a text of several words into straight quotes, ' or \""
    return NoRunError(f"{path}: {what}; {mend}", path, what)


def resume_command(run: Path) -> str | None:
    """The command line that resumes `run`. None where it has no recipe (it was started from Python)."""
    if not (run / files.RECIPE).exists():
        return None
    options = [option for path in _plugins(run) for option in ("--plugin", path)]
    return shlex.join(["phonate", *options, "train", str(run), "--resume", "auto"])


def _plugins(folder: Path) -> list[str]:
    """The plug-ins that a run was trained with."""
    file = folder / files.PLUGINS
    return [one["path"] for one in json.loads(file.read_text(encoding="utf-8"))["plugins"]] if file.is_file() else []


@contextlib.contextmanager
def naming_plugins(place: Path) -> Iterator[None]:
    """Within this block an error of the recipe in `place` (a run, one of its checkpoints, or an export) names the
    plug-ins that the run was trained with and that are not loaded."""
    try:
        yield
    except RecipeError as error:
        loaded = [one["path"] for one in loaded_plugins()]
        recorded = next(filter(None, map(_plugins, (place, *place.parents[:3]))), [])
        if not (missing := [path for path in recorded if path not in loaded]):
            raise
        needed = f"its run was trained with a plug-in; load it with {to_plug_in(missing)}"
        raise RecipeError(f"{error}\n{place}: {needed}") from None


def wrong_task(source: str | Path, own: str, task: str) -> WrongTaskError:
    """The error for a model of another task than the one that was asked for."""
    what = f"holds a model of the task {own}, not of {task}"
    return WrongTaskError(f"{source}: {what}; give a run of {task}{_examples(source, task)}")


def _examples(path: str | Path, task: str | None) -> str:
    """Other runs that are here, of `task` if it is given, in words, or how there will be one."""
    here = [shlex.quote(run) for run in itertools.islice(_runs_here(path, task), _RUNS)]
    recipe = "" if task is None else task_info(task).recipe or task
    if here:
        return f", such as {', '.join(here)}"
    if task is not None and (info := task_info(task)).model_types and recipe in shipped():
        trained = value_at(read(recipe).values, ("model", "name")) or info.pretrained[0]
        return f", or {trained}, which needs no training"
    none = "" if os.path.exists(path) else f", of which none is in {Path('runs').resolve()}"
    return f"{none}; phonate train {recipe} makes one" if recipe in shipped() else f"{none}; phonate train makes one"


def _runs_here(path: str | Path, task: str | None) -> Iterator[str]:
    """The runs that are here beside `path`, of `task` if it is given, newest first."""
    own = re.compile(rf"^task: {task}$", re.MULTILINE)
    for recipe in sorted(Path("runs").glob("*/recipe.yaml"), key=lambda recipe: -recipe.stat().st_mtime):
        other = recipe.parent.resolve() != Path(path).resolve()
        if other and (task is None or own.search(recipe.read_text("utf-8", "replace"))):
            yield str(recipe.parent)


def located(path: Path) -> Path:
    """The folder of one of PACKAGED, or of a model on the Hugging Face Hub (hf:OWNER/NAME, downloaded once), where no
    such folder is here; any other path as it is. Raises InputError where the hub has no such model."""
    if path.exists():
        return path
    if str(path).startswith(HUB):
        return _downloaded(str(path))
    return packaged(path)


def hub_name(text: str) -> tuple[str, str | None]:
    """OWNER/NAME and the revision of hf:OWNER/NAME or hf:OWNER/NAME@REVISION. Raises InputError for another form."""
    name = _HUB_SOURCE.fullmatch(text)
    if name is None:
        raise InputError(f"{text}: no name of a model on the hub; write it as hf:OWNER/NAME or hf:OWNER/NAME@REVISION")
    return name[1], name[2]


def _downloaded(text: str) -> Path:
    name, revision = hub_name(text)
    hub: Any = optional_package("huggingface_hub", "a model on the hub", "'phonate[hub]'")
    errors: Any = importlib.import_module("huggingface_hub.errors")
    if why := missing_model(name, files.MANIFEST, revision):
        raise InputError(f"{text}: can't be downloaded ({why})")
    try:
        folder = Path(hub.snapshot_download(name, revision=revision, allow_patterns=MODEL_FILES))
    except errors.RevisionNotFoundError:
        raise InputError(f"{text}: that model has no such revision") from None
    except errors.RepositoryNotFoundError:
        raise InputError(
            f"{text}: the hub has no such model, or it is private; for a private one, set HF_TOKEN"
        ) from None
    except (
        errors.LocalEntryNotFoundError,
        errors.HfHubHTTPError,
        errors.OfflineModeIsEnabled,
        *hub_network_errors(),
    ) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{text}: can't be downloaded ({reason})") from error
    if not is_checkpoint(folder):
        raise InputError(f"{text}: is no model of phonate's; those have a {files.MANIFEST}")
    return folder


def best_or_latest(source: str | Path, task: str | None = None) -> Path:
    """The checkpoint that `source` names; of a run the best one, or the newest when none was chosen yet. `task`: of
    which it must be, for errors."""
    try:
        try:
            return resolve_checkpoint(source, prefer="best")
        except CheckpointError:
            return resolve_checkpoint(source)
    except NoRunError as error:
        raise no_run(error.path, error.what, task) from None


def has_checkpoint(run: Path) -> bool:
    """Whether `run` is a run with a checkpoint."""
    return bool(scan(run / save_dir(run)))


def checkpoints_folder(path: Path) -> Path:
    """The folder of checkpoints of the run `path`, or `path` if it is one. Raises CheckpointError.

    In a run it is what the recipe's `training.checkpoint.save_dir` says.
    """
    if is_checkpoint(path):
        raise CheckpointError(
            f"{path}: one checkpoint, not a run; phonate checkpoints verify, export, push and merge take it"
        )
    candidates = [path, path / save_dir(path)]
    if path.is_dir():
        candidates += sorted(child for child in path.iterdir() if child.is_dir())
    for candidate in candidates:
        if scan(candidate):
            return candidate
    raise no_run(path, "no checkpoints here")


def save_dir(run: Path) -> str:
    """`training.checkpoint.save_dir` of the run's recipe; its default in a folder without one."""
    recipe = run / files.RECIPE
    try:
        value: Any = parse(recipe.read_text(encoding="utf-8"), str(recipe)).values
    except (OSError, UnicodeDecodeError, RecipeError):
        value = None
    for key in ("training", "checkpoint", "save_dir"):
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, str) else DEFAULT_FOLDER


def _unfinished(run: Path) -> tuple[CheckpointInfo, str] | None:
    """The newest checkpoint of a run that is not at its end, and how far that has come, such as `step 21 of 3000`; None
    for a run that has ended, and for what is no run."""
    recipe = run / files.RECIPE
    if is_checkpoint(run) or not recipe.is_file():
        return None
    newest = next((one for one in newest_first(scan(run / save_dir(run))) if one.metadata), None)
    if newest is None or not (newest.path / files.STATE).is_file():
        return None
    assert newest.metadata is not None
    training = parse(recipe.read_text(encoding="utf-8"), str(recipe)).values["training"]
    if (steps := training["max_steps"]) is not None:
        done, last, unit = newest.step, steps, "step"
    else:
        done, last, unit = newest.metadata.epoch, training["epochs"], "epoch"
    if done >= last or files.read_json(newest.path / files.STATE)["trainer"]["should_stop"]:
        return None
    return newest, f"{unit} {done} of {last}"


@cache
def tell_of_unfinished(run: Path, used: Path) -> None:
    """Say once that the training of a run whose checkpoint `used` is used has not ended, and how it goes on."""
    try:
        if (reached := _unfinished(run)) is None:
            return
    except (PhonateError, LookupError, OSError):  # of a newer checkpoint than is used, or of an older version
        return
    (newest, place), step = reached, info(used).step
    chosen = f"the best checkpoint of {run}, of step {step}, is used; " if step != newest.step else ""
    whose = "its newest" if chosen else f"the newest checkpoint of {run}"
    again = resume_command(run)
    _log.warning("note: %s%s is at %s; unless it is training now, go on with %s", chosen, whose, place, again)


def run_of(folder: Path) -> Path:
    """The run whose folder of checkpoints `folder` is. Raises InputError where none around it says so."""
    whole = folder.resolve()
    for parent in (folder, *folder.parents, *whole.parents):  # the path as it was given, if that is long enough
        if (parent / save_dir(parent)).resolve() == whole:
            return parent
    raise InputError(
        f"{folder}: no folder around it is the run of these checkpoints; name the run with {option('output')}"
    )


def run_with(recipe: Path | None) -> Path | None:
    """The run that wrote the file `recipe`, into its folder or one of its checkpoints; None for any other recipe."""
    if recipe is None or recipe.name != files.RECIPE:
        return None
    folder = recipe.parent
    if is_checkpoint(folder):
        return run_of(folder.parent)
    return folder if (folder / files.SYSTEM).is_file() or has_checkpoint(folder) else None


def find(where: Path, text: str) -> Path:
    """The checkpoint `text` in `where`: latest or auto, best, a step (500), a name (step-00000500), a version (v3)."""
    infos = scan(where)
    if text in ("latest", "auto"):
        return _first_intact(newest_first(infos), where)
    if text == "best":
        ranked = ranking(infos)
        if not ranked:
            raise CheckpointError(f"{where}: no checkpoint was chosen as the best yet")
        return _first_intact(ranked, where)
    number = text.removeprefix("step-")
    step = int(number) if number.isascii() and number.isdecimal() and len(number) < 20 else None
    for item in infos:
        if step == item.step or (item.metadata and text == f"v{item.metadata.version}"):
            return item.path
    available = ", ".join(_described(item) for item in infos) or "none"
    raise InputError(f"{where}: no checkpoint {text!r} (a number is a step); available: {available}")


def _described(item: CheckpointInfo) -> str:
    version = item.metadata.version if item.metadata else None
    return f"{item.step}" if version is None else f"{item.step} (v{version})"


def _first_intact(infos: Iterable[CheckpointInfo], where: Path) -> Path:
    for item in infos:
        damage = problems(item.path)
        if not damage:
            return item.path
        _log.warning("%s is damaged (%s); going back to an older one", item.name, "; ".join(map(str, damage)))
    raise CheckpointError(f"{where}: no intact checkpoint here")
