"""From a recipe to a trained run."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from threadpoolctl import threadpool_limits

from phonate.compute import device as devices
from phonate.compute import distributed
from phonate.compute.distributed import Ranks
from phonate.config.documents import shipped
from phonate.config.errors import InputError
from phonate.config.registry import load_plugin
from phonate.config.resolve import Resolved, resolve
from phonate.config.tasks import Start, referred, task_class, task_info
from phonate.training.callbacks import Callback
from phonate.training.checkpoints import Checkpoint, files, listing, resolve_checkpoint
from phonate.training.checkpoints.comparison import changed_settings
from phonate.training.checkpoints.loading import load, load_first_intact
from phonate.training.checkpoints.resolve import checkpoints_folder, is_checkpoint, run_of, run_with, save_dir
from phonate.training.run import Run
from phonate.training.settings import CheckpointConfig, TrainingSettings
from phonate.training.tracking.log_file import log_file
from phonate.training.trainer import Trainer
from phonate.workflows.datasets.transcripts import transcribe
from phonate.workflows.dry_run import dry_run as estimate
from phonate.workflows.tuning.search import tune

logger = logging.getLogger("phonate")


_EPOCHS = "training.epochs"


@dataclass(frozen=True)
class Trained:
    """A finished run and the metrics of its last validation."""

    run: Run
    metrics: dict[str, float]
    step: int


def train(
    source: str | Path,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    *,
    resume: str | None = None,
    mode: devices.Mode = "mixed",
    device: str | None = None,
    output: str | Path | None = None,
    dry_run: bool = False,
    plugins: Sequence[Path] = (),
    callbacks: Sequence[Callback] = (),
) -> Trained:
    """Train `source` (a recipe file or a shipped name) into the folder `output`, by default `runs/<recipe>`.

    `resume`: "auto" continues from the newest intact checkpoint of the run (of `source`, where that is a run), or
    starts it; a run or a checkpoint folder continues from there. `dry_run` only measures what the run would cost.
    `callbacks` are added to the recipe's. A recipe with `training.tuning` is a search (`phonate.workflows.tuning`),
    of which the best run is returned. Raises
    RecipeError, InputError, TrainingError, CheckpointError, Interrupted.
    """
    records = [load_plugin(path) for path in plugins]
    transcribed = transcribe(resolve(source, overrides).recipe.data)
    resolved, reason = settled(source, overrides)
    settings: TrainingSettings = resolved.recipe.training
    if settings.tuning.library is not None and not dry_run:
        search = tune(source, overrides, resume=resume, mode=mode, device=device, output=output, plugins=plugins)
        best = search.best
        return Trained(Run(search.run.path / best.run), {settings.tuning.metric: best.metric or 0.0}, best.step)
    chosen = devices.choose(mode, device or settings.device)
    if settings.performance.threads is not None:
        torch.set_num_threads(settings.performance.threads)
        # NumPy's threads wait by spinning, which takes CPU time from the training itself.
        threadpool_limits(settings.performance.threads, user_api="blas")
    task = task_class(resolved.recipe.task)(resolved.recipe)
    if dry_run:
        _check_start(settings)
        run = Run(run_folder(resolved, resume, output))
        return Trained(run, estimate(resolved, task, chosen, run.path), 0)
    resume = resume or settings.checkpoint.resume
    ranks = start_ranks(settings, chosen, several_phases=len(task.phases) > 1)
    with contextlib.closing(ranks), _open_run(resolved, resume, output, ranks) as run:
        if records and ranks.is_main:
            run.write_json(files.PLUGINS, {"plugins": records})
        with log_file(run.logs / "training.log", ranks):
            for line in filter(None, (transcribed, reason)):
                logger.info(line)
            checkpoint = _checkpoint_to_resume(resolved, resume, run)
            if checkpoint is None:
                _check_start(settings)
            trainer = Trainer(
                task,
                settings,
                run,
                device=chosen,
                ranks=ranks,
                callbacks=callbacks,
                recipe_yaml=resolved.to_yaml(),
            )
            metrics = trainer.fit(checkpoint)
    return Trained(run, metrics, trainer.step)


def _check_start(settings: TrainingSettings) -> None:
    """Raise InputError where there is nothing to start from, before the corpus is prepared."""
    if settings.init_from is not None:
        try:
            resolve_checkpoint(settings.init_from)
        except InputError as error:
            raise InputError(f"training.init_from: {error}") from error


def settled(source: str | Path, overrides: Sequence[str] | Mapping[str, Any]) -> tuple[Resolved, str]:
    """The recipe with what it leaves to the data, and one line about that; "" where it leaves nothing."""
    resolved = resolve(source, overrides)
    info = task_info(resolved.recipe.task)
    start: Start | None = None if info.start is None else referred(info.start)(resolved.recipe)
    if start is None or not start.changes:
        return resolved, ""
    given = set(overrides) if isinstance(overrides, Mapping) else {text.partition("=")[0] for text in overrides}
    own = {name for name in (*start.changes, _EPOCHS) if name in given or _is_own(resolved, name)}
    if _EPOCHS in own:
        own.add("training.max_steps")
    own &= start.changes.keys() - {"training.init_from"}
    otherwise = sorted(name for name in own if _value(resolved, name) != start.changes[name])
    reason = start.reason + (f"; set otherwise: {', '.join(otherwise)}" if start.reason and otherwise else "")
    changes = {name: value for name, value in start.changes.items() if name not in own}
    fixed = {name: changes.pop(name) for name in ("training.init_from",) if name in changes}
    if isinstance(overrides, Mapping):
        return resolve(source, {**changes, **overrides, **fixed}), reason
    return resolve(source, [*_written(changes), *overrides, *_written(fixed)]), reason


def _is_own(resolved: Resolved, name: str) -> bool:
    """Whether a recipe of one's own sets this option unlike the shipped recipe of its task."""
    task, written = resolved.recipe.task, tuple(name.split(".")) in resolved.document.places
    if not written or task not in shipped():
        return written
    usual = resolve(task, {"size": resolved.recipe.size}, incomplete=True)
    return bool(_value(usual, name) != _value(resolved, name))


def _value(resolved: Resolved, name: str) -> Any:
    found: Any = resolved.recipe.model_dump(mode="json")
    for key in name.split("."):
        found = found.get(key) if isinstance(found, dict) else None
    return found


def _written(changes: Mapping[str, Any]) -> list[str]:
    """Options as on the command line."""
    return [f"{name}={json.dumps(value)}" for name, value in changes.items()]


def start_ranks(settings: TrainingSettings, device: torch.device, several_phases: bool) -> Ranks:
    """Join the launcher's processes as `training.distributed` says."""
    wanted = settings.distributed
    return distributed.start(
        device,
        backend=wanted.backend,
        expected=wanted.world_size,
        timeout_minutes=wanted.timeout_minutes,
        ddp={
            "find_unused_parameters": wanted.find_unused_parameters or several_phases,
            "gradient_as_bucket_view": wanted.gradient_as_bucket_view,
            "static_graph": wanted.static_graph,
        },
    )


def run_folder(resolved: Resolved, resume: str | None, output: str | Path | None) -> Path:
    """Where `train` writes: `output`, or else the run that is resumed, or runs/<recipe>.

    With "auto", a recipe that is a run's own names that run.

    Raises InputError and CheckpointError where `resume` names nothing that can be resumed.
    """
    if output is not None:
        return Path(output)
    resume = resume or resolved.recipe.training.checkpoint.resume
    if resume in (None, "auto"):
        own = None if resume is None else run_with(resolved.document.path)
        return own or Path("runs") / resolved.name
    asked = Path(resume)
    if is_checkpoint(asked):
        return run_of(asked.parent)
    if not asked.is_dir():
        raise InputError(f"{resume}: no such run or checkpoint")
    return asked if checkpoints_folder(asked) != asked else run_of(asked)


@contextlib.contextmanager
def _open_run(resolved: Resolved, resume: str | None, output: str | Path | None, ranks: Ranks) -> Iterator[Run]:
    """The run's folder, which within this block belongs to this process and its ranks."""
    run = Run(run_folder(resolved, resume, output))
    resuming = resume is not None
    _refuse_anothers_checkpoints(run, resolved.recipe.training.checkpoint, resuming)
    with run.opened(resuming) if ranks.is_main else contextlib.nullcontext():
        ranks.barrier()
        yield run


def _checkpoint_to_resume(resolved: Resolved, resume: str | None, run: Run) -> Checkpoint | None:
    """The checkpoint that the run continues from; None for one that begins. Says which settings were changed."""
    if resume is None:
        return None
    config = resolved.recipe.training.checkpoint
    if resume != "auto":
        checkpoint = load(resolve_checkpoint(resume), config.verify_integrity)
    else:
        folders = {run.path / config.save_dir, run.path / save_dir(run.path)}  # as now, and as it was
        saved = [item for folder in folders for item in listing.scan(folder)]
        found = load_first_intact(listing.newest_first(saved), config.verify_integrity)
        if found is None:
            logger.info("nothing to resume in %s: a new run starts", run.path)
            return None
        checkpoint = found
    if checkpoint.recipe_yaml and (changed := changed_settings(checkpoint.recipe_yaml, resolved.to_yaml())):
        logger.info("resuming with changed settings: %s", "; ".join(map(str, changed)))
    return checkpoint


def _refuse_anothers_checkpoints(run: Run, config: CheckpointConfig, resuming: bool) -> None:
    """A run that begins must not mix its checkpoints with those of another run, nor continue from them."""
    folder = run.path / config.save_dir
    begins = not resuming or not run.recipe.exists()
    inside = folder.resolve().is_relative_to(run.path.resolve())  # `Run.create` has checked that one
    if begins and not inside and listing.scan(folder):
        raise InputError(
            f"training.checkpoint.save_dir: {folder} holds the checkpoints of another run; give each run its own"
        )
