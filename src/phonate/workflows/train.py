"""From a recipe to a trained run, or to an estimate of what it would cost (`--dry-run`)."""

from __future__ import annotations

import contextlib
import itertools
import logging
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import torch
from threadpoolctl import threadpool_limits

from phonate.compute import device as devices
from phonate.compute import distributed
from phonate.compute.distributed import Ranks
from phonate.compute.resources import GIB, OtherPrograms
from phonate.compute.system import peak_memory
from phonate.config.documents import parse
from phonate.config.errors import CheckpointError, InputError, NoRunError
from phonate.config.metrics import Metric
from phonate.config.resolve import Overrides, Resolved
from phonate.config.tasks import TaskInfo, referred, task_info
from phonate.data.loading import accumulation_groups
from phonate.data.progress import report_progress
from phonate.data.settings import SpokenData
from phonate.training.callbacks import (
    Callback,
    CallbackList,
    EarlyStoppingCallback,
    build_callbacks,
    stopped_early,
)
from phonate.training.checkpoints import Checkpoint, files, listing, resolve_checkpoint
from phonate.training.checkpoints.listing import save_dir
from phonate.training.checkpoints.loading import SettingChange, changed_settings, load, load_first_intact
from phonate.training.ledger import LEAST_SECONDS, LEAST_STEPS
from phonate.training.metrics import Best
from phonate.training.plan import Plan, plan
from phonate.training.reporting import told_end
from phonate.training.run import Run
from phonate.training.settings import CheckpointConfig, TrainingSettings
from phonate.training.setup import initialise_from
from phonate.training.task import Task
from phonate.training.tracking import log_file
from phonate.training.trainer import Trainer

if TYPE_CHECKING:
    from phonate.workflows.tuning import Search

logger = logging.getLogger("phonate")

# --------------------------------------------------------------------------- `phonate train --dry-run`

MAX_STEPS = 30
"""Steps to time where they are short."""


def estimate(
    resolved: Resolved, task: Task, device: torch.device, output: Path, done: int | None = None
) -> dict[str, float]:
    """Seconds per step, hours without validation, memory and disk usage of the run described by `resolved`, on the
    disk of `output`, and how many cores other programs used meanwhile. `done`: steps that a resumed run has behind it.
    None: it begins.

    Steps are timed before and after each phase joins in, such as a discriminator's, which makes them dearer. The first
    of them, which includes allocation and warm-up, is not timed.
    """
    settings = resolved.recipe.training
    beside = output.resolve()
    while not beside.exists():
        beside = beside.parent
    with tempfile.TemporaryDirectory(prefix=".phonate-dry-run-", dir=beside) as folder:
        run = Run(Path(folder) / "run")
        run.create(resuming=False)
        quiet = settings.logging.model_copy(update={"tensorboard": False, "wandb": False, "verbosity": "quiet"})
        schedule = settings.scheduler.model_copy(
            update={"warmup_steps": min(settings.scheduler.warmup_steps, MAX_STEPS)}  # no warning about so short a run
        )
        joining = {phase.start for phase in task.phases}
        longest = 1 + MAX_STEPS + max(joining)
        short = settings.model_copy(update={"max_steps": longest, "logging": quiet, "scheduler": schedule})
        trainer = Trainer(task, short, run, device=device, recipe=resolved)
        if done is None and settings.init_from is not None:
            initialise_from(settings.init_from, task, trainer.model, None)
        logger.info("timing a few steps, each a whole batch forward and backward")
        total_steps = settings.max_steps or settings.epochs * trainer.steps_per_epoch
        steps = range(min(done or 0, total_steps), total_steps)
        if done:
            logger.info("%d of %d steps are done; estimated are the %d that are left", done, total_steps, len(steps))
        step_seconds, others_cores = _seconds_per_step(trainer, steps or range(total_steps), joining)
        trainer.save()
        trainer.checkpoints.flush()
        checkpoint = sum(file.stat().st_size for file in trainer.checkpoints.latest().rglob("*") if file.is_file())
        trainer.checkpoints.close()
    copies = settings.checkpoint.save_total_limit + 2  # plus the best one and the one being written
    return {
        "steps": len(steps),
        "seconds_per_step": step_seconds,
        "hours": step_seconds * len(steps) / 3600,
        "memory_gib": (
            (float(torch.cuda.max_memory_allocated(device))) if (device.type == "cuda") else (float(peak_memory()))
        )
        / GIB,
        "memory_free_gib": (
            (float(torch.cuda.mem_get_info(device)[0]))
            if (device.type == "cuda")
            else (float(psutil.virtual_memory().available))
        )
        / GIB,
        "checkpoint_gib": checkpoint / GIB,
        "disk_gib": checkpoint * copies / GIB,
        "disk_free_gib": shutil.disk_usage(beside).free / GIB,
        **({} if others_cores is None else {"cores_used_by_others": others_cores}),
    }


def _seconds_per_step(trainer: Trainer, steps: range, joining: Iterable[int]) -> tuple[float, float | None]:
    """Seconds per step, on average over `steps`, and the cores that other programs used meanwhile, where the system
    tells. `joining`: the steps from which on a phase takes part."""
    ends = [*sorted(start for start in joining if steps.start < start < steps.stop), steps.stop]
    stretches = [(first, end) for first, end in itertools.pairwise([steps.start, *ends]) if end - first > MAX_STEPS]
    stretches = stretches or [([steps.start, *ends][-2], steps.stop)]  # of a short run the last is the dearest
    seconds, others_cores = 0.0, list[float]()
    for first, end in stretches:
        each, others = _time_steps(trainer, first)
        seconds += (end - first) * each
        others_cores += [] if others is None else [others]
        if len(stretches) > 1:
            trained = ", ".join(one.name for one in trainer.phases if one.phase.start <= first)
            logger.info("steps %d to %d, of %s: %.3g s each", first + 1, end, trained, each)
    meanwhile = sum(others_cores) / len(others_cores) if others_cores else None
    return seconds / sum(end - first for first, end in stretches), meanwhile


def _time_steps(trainer: Trainer, first: int) -> tuple[float, float | None]:
    """Seconds per step from `first` on, waiting for data included: the mean, as training estimates its time left; and
    the cores that other programs used meanwhile.

    Epochs of few steps are timed whole, for the last batch of an epoch may be much smaller than the others.
    """
    trainer.model.train()
    trainer.progress.step = first
    times = trainer.settings.gradient_accumulation_steps
    cycle = trainer.steps_per_epoch if trainer.steps_per_epoch <= LEAST_STEPS else 1
    others: OtherPrograms | None = None
    for epoch in itertools.count():
        for window in accumulation_groups(trainer.train_source.epoch(epoch), times):
            trainer.train_step(window, trainer.step, trainer.ema)
            trainer.progress.step += 1
            if trainer.device.type == "cuda":
                torch.cuda.synchronize(trainer.device)
            others = others or OtherPrograms()  # since the first step, which waits for features of the whole corpus
            trainer.time_left.step(trainer.step, time.perf_counter())
            steps, seconds = trainer.time_left.measured
            done = max(steps / MAX_STEPS, min(steps / LEAST_STEPS, seconds / LEAST_SECONDS))
            report_progress("timing steps, per cent", min(int(100 * done), 100), 100)
            if done >= 1 and (steps % cycle == 0 or steps >= MAX_STEPS):
                return seconds / steps, others.cores()
    raise AssertionError


# ---------------------------------------------------------------------- From a recipe to a trained run


@dataclass(frozen=True)
class Trained:
    """A finished run and the metrics of its last validation."""

    run: Run
    metrics: dict[str, float]
    step: int
    best: Best | None = None
    """The best validation. None where there was none."""
    use: str = ""
    """The command that uses the model."""
    declared: Sequence[Metric] = ()
    """What the task says of its metrics."""


def train(
    source: str | Path,
    overrides: Overrides = (),
    *,
    resume: str | bool | None = None,
    mode: devices.Mode = "mixed",
    device: str | None = None,
    output: str | Path | None = None,
    dry_run: bool = False,
    plugins: Sequence[Path] = (),
    callbacks: Sequence[Callback] = (),
) -> Trained:
    """Train `source` (a recipe file or a shipped name) into the folder `output`, by default `runs/<recipe>`.

    `resume`: "auto", or True, continues from the newest intact checkpoint of the run (of `source`, where that is a
    run), or starts it; a run or a checkpoint folder continues from there. `dry_run` only measures what the run would
    cost. `callbacks` are added to the recipe's. A recipe with `training.tuning` is a search
    (`phonate.workflows.tuning`), of which the best run is returned.

    Raises RecipeError, InputError, TrainingError, CheckpointError, Interrupted.
    """
    planned = plan(source, overrides, resume=resume, mode=mode, device=device, output=output, plugins=tuple(plugins))
    return train_plan(planned, dry_run=dry_run, callbacks=callbacks)


def train_plan(plan: Plan, *, dry_run: bool = False, callbacks: Sequence[Callback] = ()) -> Trained:
    """Train what was planned; see `train`."""
    with plan.placed():
        return _train(plan, dry_run, callbacks)


def _train(plan: Plan, dry_run: bool, callbacks: Sequence[Callback]) -> Trained:
    began = time.time()
    if told := distributed.launcher_options(plan.written.recipe.training.mixed_precision):
        plan = plan.but(told)
        logger.info("from accelerate launch: %s", ", ".join(f"{name}={value}" for name, value in told.items()))
    transcribed = _transcribed(plan)
    settings = plan.settings
    if plan.is_search and not dry_run:
        result = search(plan)
        trial = result.best
        return Trained(Run(result.run.path / trial.run), {settings.tuning.metric: trial.metric or 0.0}, trial.step)
    info = task_info(plan.written.recipe.task)
    if not (dry_run or callbacks) and (ended := _ended(plan, info)) is not None:
        return ended
    device = plan.device
    set_threads(settings)
    if dry_run:
        return _estimated(plan, device, transcribed, callbacks)
    task = plan.task
    ranks = start_ranks(settings, device, several_phases=len(task.phases) > 1)
    with contextlib.closing(ranks), ranks.together(), _open_run(plan, ranks) as run, log_file(run.log, ranks):
        checkpoint = _checkpoint_to_resume(plan, run)
        trains = checkpoint is None or not _end(settings, checkpoint, info)
        if plan.plugins and ranks.is_main and trains:
            run.write_json(files.PLUGINS, {"plugins": plan.plugins})
        plan.check(ranks.world_size, begins=checkpoint is None, callbacks=callbacks)
        for line in filter(None, (transcribed, *plan.reasons(begins=checkpoint is None))):
            logger.info(line)
        if checkpoint is None and ranks.is_main:
            run.begin(plan.resolved.to_yaml())
        trainer = Trainer(
            task,
            settings,
            run,
            device=device,
            ranks=ranks,
            callbacks=callbacks,
            recipe=plan.resolved,
            began=began,
        )
        measures = trainer.validator is not None and any(not one.is_term for one in task.metrics or ())
        if info.validation and measures and trains:
            logger.info(info.validation)
        metrics = trainer.fit(checkpoint)
    best = trainer.progress.best
    use = run.use(info, plan.resolved.values)
    chosen = best if best.value is not None else None
    return Trained(run, metrics, trainer.step, chosen, use, task.metrics or ())


def _ended(plan: Plan, info: TaskInfo) -> Trained | None:
    """The run that is resumed as it is, where nothing of it is left to train: its corpus need not be read. None: it
    goes on, or who resumes it says why not."""
    run, settings = Run(plan.run), plan.settings
    if plan.resume != "auto" or plan.is_search or not run.recipe.exists():
        return None
    newest = next(iter(listing.newest_first(listing.scan(run.path / settings.checkpoint.save_dir))), None)
    if newest is None or newest.metadata is None:
        return None
    told = told_end(settings, newest.step, newest.metadata.epoch)
    try:
        if not told and not files.read_json(newest.path / files.STATE)["trainer"]["should_stop"]:
            return None
        checkpoint = load(newest.path, settings.checkpoint.verify_integrity)
    except CheckpointError:
        return None
    progress, told = checkpoint.state["trainer"], _end(settings, checkpoint, info)
    if not told or progress["unfinished"] or changed_settings(checkpoint.recipe_yaml, plan.resolved.to_yaml()):
        return None
    logger.info(told)
    best = Best(**progress["best"])
    use, chosen = run.use(info, plan.resolved.values), best if best.value is not None else None
    return Trained(run, progress["validation"], newest.step, chosen, use, info.metrics or ())


def _end(settings: TrainingSettings, checkpoint: Checkpoint, info: TaskInfo) -> str:
    """What is said of a run that ends with `checkpoint`; "" for one that is trained on."""
    told = told_end(settings, checkpoint.metadata.global_step, checkpoint.metadata.epoch)
    if told or not checkpoint.state["trainer"]["should_stop"]:
        return told
    return _stopped_early(settings, checkpoint.state["callbacks"], info)


def _stopped_early(settings: TrainingSettings, states: Sequence[Mapping[str, Any]], info: TaskInfo) -> str:
    """What is said of the run whose callbacks are in these `states`, where early stopping has ended it; else ""."""
    early = [one for one in build_callbacks(settings) if isinstance(one, EarlyStoppingCallback)]
    CallbackList(early).restore(one for one in states if one["type"] == EarlyStoppingCallback.__qualname__)
    for one in early:
        one.watch.declared = info.metrics or ()
    return stopped_early(early, settings)


def _estimated(plan: Plan, device: torch.device, transcribed: str, callbacks: Sequence[Callback]) -> Trained:
    """What the run would cost, as its metrics."""
    run, info = Run(plan.run), task_info(plan.written.recipe.task)
    resumed = _checkpoint_to_resume(plan, run)
    plan.check(begins=resumed is None, callbacks=callbacks)
    for line in filter(None, (transcribed, *plan.reasons(begins=resumed is None))):
        logger.info(line)
    if info.rehearsal is not None and (shortened := referred(info.rehearsal)(plan.recipe)).changes:
        logger.info(shortened.reason)
        plan = plan.but(shortened.changes)
    done = None if resumed is None else resumed.metadata.global_step
    return Trained(run, estimate(plan.resolved, plan.task, device, run.path, done), 0)


def _transcribed(plan: Plan) -> str:
    """Where the texts are that training waited for; "" for none."""
    data = plan.written.recipe.data
    if not isinstance(data, SpokenData) or data.transcripts is None:
        return ""
    from phonate.workflows.datasets.transcripts import transcribe

    return transcribe(data, lambda: plan.device)


def set_threads(settings: TrainingSettings) -> None:
    """Compute on as many threads as `training.performance.threads` says."""
    if settings.performance.threads is not None:
        torch.set_num_threads(settings.performance.threads)
        # NumPy's threads wait by spinning, which takes CPU time from the training itself.
        threadpool_limits(settings.performance.threads, user_api="blas")


def search(plan: Plan) -> Search:
    """Search for hyperparameters as planned; see `tune`."""
    from phonate.workflows.tuning import tune

    return tune(plan, _steps)


def _steps(plan: Plan, callbacks: Sequence[Callback]) -> int:
    return train_plan(plan, callbacks=callbacks).step


def start_ranks(settings: TrainingSettings, device: torch.device, several_phases: bool) -> Ranks:
    """Join the launcher's processes as `training.distributed` says."""
    options = settings.distributed
    return distributed.start(
        device,
        backend=options.backend,
        expected=options.world_size,
        timeout_minutes=options.timeout_minutes,
        ddp={
            "find_unused_parameters": options.find_unused_parameters or several_phases,
            "gradient_as_bucket_view": options.gradient_as_bucket_view,
            "static_graph": options.static_graph,
        },
        strategy=options.strategy,
    )


@contextlib.contextmanager
def _open_run(plan: Plan, ranks: Ranks) -> Iterator[Run]:
    """The run's folder, which within this block belongs to this process and its ranks."""
    run = Run(plan.run)
    resuming = plan.resume is not None
    _refuse_anothers_checkpoints(run, plan.settings.checkpoint, resuming)
    with run.opened(resuming) if ranks.is_main else contextlib.nullcontext():
        ranks.barrier()
        yield run


def _checkpoint_to_resume(plan: Plan, run: Run) -> Checkpoint | None:
    """The checkpoint that the run continues from; None for one that begins. Says which settings were changed."""
    if (resume := plan.resume) is None:
        return None
    config, task = plan.settings.checkpoint, plan.written.recipe.task
    if resume != "auto":
        try:
            checkpoint = load(resolve_checkpoint(resume), config.verify_integrity)
        except NoRunError as error:
            raise listing.no_run(error.path, error.what, task) from None
    else:
        folders = {run.path / config.save_dir, run.path / save_dir(run.path)}  # as now, and as it was
        saved = [item for folder in folders for item in listing.scan(folder)]
        newest = load_first_intact(listing.newest_first(saved), config.verify_integrity)
        if newest is None:
            if plan.asked_resume:  # by the user, not by the recipe
                logger.info(
                    "%s: nothing to resume yet: no checkpoint was saved, so training begins at its start", run.path
                )
            return None
        checkpoint = newest
    own = parse(checkpoint.recipe_yaml, files.RECIPE).values.get("task") if checkpoint.recipe_yaml else None
    if own not in (None, task):
        raise listing.wrong_task(run.path if resume == "auto" else resume, own, task)
    if checkpoint.recipe_yaml and (changed := changed_settings(checkpoint.recipe_yaml, plan.resolved.to_yaml())):
        logger.info("settings changed since the checkpoint: %s", "; ".join(_told(one, plan) for one in changed))
    return checkpoint


def _told(change: SettingChange, plan: Plan) -> str:
    """A change in words, and where nobody asked for it what decided it."""
    path = tuple(change.path.split("."))
    decision, origin = plan.decided.get(path), plan.resolved.origins.get(path)
    return f"{change} ({origin})" if decision is not None and origin == decision.source else str(change)


def _refuse_anothers_checkpoints(run: Run, config: CheckpointConfig, resuming: bool) -> None:
    """A run that begins must not mix its checkpoints with those of another run, nor continue from them."""
    folder = run.path / config.save_dir
    begins = not resuming or not run.recipe.exists()
    inside = folder.resolve().is_relative_to(run.path.resolve())  # `Run.create` has checked that one
    if begins and not inside and listing.scan(folder):
        raise InputError(
            f"training.checkpoint.save_dir: {folder} holds the checkpoints of another run; give each run its own"
        )
