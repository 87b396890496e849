"""The trainer: one loop for every task.

Reading order: `fit` (the whole run), `_train_epoch` (the loop), `_after_step` and `_finish_step` (what happens between
steps), `save`. The step itself is in `step.py`, what a resume restores in `state.py`.

Exact resume rests on three rules. The order of samples is a pure function of (seed, epoch); what is random about a
sample or a step comes from generators keyed by (seed, epoch, sample id) and (seed, step); and a checkpoint stores
how many samples of the epoch were *consumed*, whatever the loader has fetched ahead and whatever the batches.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from phonate.compute.distributed import LostRankError, Ranks
from phonate.compute.system import is_full, return_freed_pages
from phonate.config.documents import parse
from phonate.config.errors import InputError, Interrupted, TrainingError
from phonate.config.metrics import plain
from phonate.config.resolve import Resolved
from phonate.config.words import number_of
from phonate.data.loading import LeftOut, MicroBatch, accumulation_groups
from phonate.data.settings import RecordingData
from phonate.training import quarantine
from phonate.training.callbacks import Callback, CallbackList, stopped_early
from phonate.training.checkpoints import Checkpoint, CheckpointManager, files, listing
from phonate.training.checkpoints.loading import load_first_intact
from phonate.training.checks import check_settings, check_watched
from phonate.training.ema import EMA
from phonate.training.generators import GlobalGenerators, seed_global_generators, seed_torch
from phonate.training.ledger import FILE, Ledger, TimeLeft, read, told
from phonate.training.memory import memory_error, memory_manager
from phonate.training.meters import Meters
from phonate.training.metrics import Best, UnknownMetricError
from phonate.training.not_finite import MOST_LEFT_OUT, NotFinite, NotFiniteError
from phonate.training.phases import build_phases
from phonate.training.quarantine import Quarantine
from phonate.training.reporting import Reporter, describe, report_profile, told_end
from phonate.training.run import Run
from phonate.training.schedules import Schedule
from phonate.training.settings import Interval, TrainingSettings
from phonate.training.setup import (
    Source,
    build_model,
    compile_modules,
    initialise_from,
    plan_sources,
    profiler_of,
    set_matmul_precision,
    stuck_seconds,
    with_own_callbacks,
)
from phonate.training.signals import Signals, StopNow
from phonate.training.state import Parts, Progress, Saver, TrainingData, ValidationData, Weights
from phonate.training.step import LossModule, StepHooks, TrainStep, no_mark
from phonate.training.stuck import StuckWatch
from phonate.training.task import Dataset, Task
from phonate.training.trackers import build_stream
from phonate.training.validation import Validator

logger = logging.getLogger(__name__)


class Trainer:
    """Trains a task's model. `train` and `validation` replace the batches that are planned from its data sets."""

    def __init__(
        self,
        task: Task,
        settings: TrainingSettings,
        run: Run,
        *,
        device: torch.device | None = None,
        ranks: Ranks | None = None,
        train: Source | None = None,
        validation: Source | None = None,
        callbacks: Sequence[Callback] = (),
        recipe: Resolved | None = None,
        began: float | None = None,
    ) -> None:
        """`began`: when work on it began (`time.time`), where that is not now."""
        self.task = task
        self.run = run
        self.device = device or torch.device("cpu")
        self.ranks = ranks or Ranks()
        compiles = bool(settings.performance.compile_model)
        self.ledger = Ledger(run.path / FILE if self.ranks.is_main else None, began, compiles)
        checked = check_settings(task.traits, settings, self.ranks.world_size, begins=False, callbacks=callbacks)
        settings, self.metric_options, configured = checked
        self.settings = settings
        self.recipe_yaml = "" if recipe is None else recipe.to_yaml()
        self.hyperparameters = recipe.values if recipe is not None else {"training": settings.model_dump(mode="json")}
        self.progress = Progress(
            best=Best(settings.best_metric, bool(settings.validation.greater_is_better)),
            averaged_is_better=settings.ema is not None and settings.ema.validate_with != "raw",
        )

        set_matmul_precision(settings, self.device)
        seed_global_generators(settings.random_seed)
        dataset: Dataset | None = None
        own_loader = train is not None
        if train is None:
            task.device = self.device
            data = None if recipe is None else recipe.recipe.data
            collator = data.collator if isinstance(data, RecordingData) else None
            train, validation, dataset = plan_sources(task, settings, self.ranks, self.device, collator)
        self.train_source, self.validation_source = train, validation
        seed_torch(self.device, settings.random_seed, "model")
        self.model = build_model(task, self.device)
        self.module = LossModule(task, self.model) if self.ranks.sharded else None
        if self.module is not None:
            blocks = task.blocks(self.model)
            compile_modules(blocks, settings, self.device)
            self.ranks.shard(self.module, blocks)
        else:
            compile_modules(task.compiled_modules(self.model), settings, self.device)
        self.steps_per_epoch = math.ceil(train.steps(0) / settings.gradient_accumulation_steps)
        self.total_steps = settings.max_steps or settings.epochs * self.steps_per_epoch
        self.phases = build_phases(task, self.model, settings, self.device, self.total_steps, self.steps_per_epoch)
        own = with_own_callbacks(configured, settings, self.model, run, self.ranks.rank)
        self.callbacks = CallbackList([*own, *callbacks])
        check_watched(settings, self.callbacks.callbacks, validated=validation is not None)
        self.memory = memory_manager(self.device) if settings.performance.memory_management else None
        self.profiler = profiler_of(settings, self.device)
        self.mark = no_mark if self.profiler is None else self.profiler.mark
        self.train_step = self._build_step()
        self.ema = EMA(self.model, settings.ema) if settings.ema else None
        self.meters = Meters(self.train_step.meter, self.ranks)
        self.reporter = Reporter(
            self.progress, self.train_step, self.meters, settings, self.ranks, self.memory, own_loader
        )
        store = settings.checkpoint
        shard = (self.ranks.rank, self.ranks.world_size) if self.ranks.sharded else None
        self.checkpoints = CheckpointManager(run.path / store.save_dir, store, run=run.path, shard=shard)
        self.signals = Signals(self.ranks.world_size == 1, self.ranks.is_main, self.checkpoints.folder)
        self.validator: Validator | None = None
        if validation is not None:
            options, show = self.metric_options, self.reporter.show
            self.validator = Validator(self.train_step, validation, dataset, self.ema, self.signals, options, show)
        self.time_left = self._estimate_of_time()
        if self.ranks.alarm is not None:
            self.ranks.alarm.settle = self.checkpoints.settle
        self.generators = GlobalGenerators(settings.random_seed, saved=store.snapshot_random_states)
        self.saver = self._build_saver()
        self._group: Sequence[MicroBatch] = ()
        self.stuck = StuckWatch(run.logs, self.ranks.rank, stuck_seconds(settings, self.ranks), self._stuck_at)
        self._loaded = False
        self.quarantine = Quarantine(run.path / quarantine.FILE, settings.quarantine, self.ranks)
        self.left_out: set[int] = set()
        """Steps (from 0) whose batch is passed over since a return to a checkpoint."""

    def _build_step(self) -> TrainStep:
        """Forward, backward and update, with everything that takes part in them."""
        step = TrainStep(
            self.task,
            self.model,
            self.phases,
            self.settings,
            self.device,
            self.ranks,
            hooks=StepHooks(
                before_batch=[partial(hook, self) for hook in self.callbacks.on_batch_begin],
                after_batch=[partial(hook, self) for hook in self.callbacks.on_batch_end],
                after_backward=[partial(hook, self) for hook in self.callbacks.on_backward_end],
            ),
            split=lambda planned: self.train_source.halves(planned, self.epoch),
            memory=self.memory,
            mark=self.mark,
            module=self.module,
        )
        step.finite.report = self._skipped
        return step

    def _estimate_of_time(self) -> TimeLeft:
        """The time left, by when validation is due and when phases join in."""
        interval = self.settings.validation.interval
        steps = interval if isinstance(interval, int) else int(interval.split()[0]) * self.steps_per_epoch
        starts = [one.phase.start for one in self.phases if one.phase.start > 0]
        return TimeLeft(self.total_steps, None if self.validator is None else steps, starts)

    def _build_saver(self) -> Saver:
        """The parts of the run's state, by their names in a checkpoint, and what saves them."""
        weights = Weights(self.task, self.model, self.ema, self.settings.checkpoint.snapshot_features)
        if weights.left_out and self.ranks.is_main:
            logger.warning(
                "training.checkpoint.snapshot_features=false: this model's checkpoints can only be resumed, not used; "
                "leave it out to use them"
            )
        digests = self.train_source.digests()
        judged = None if self.validation_source is None else self.validation_source.digests()
        parts: Parts = {
            "data": None if digests is None else TrainingData(digests, self.settings.checkpoint.allow_changed_data),
            "validation data": None if judged is None else ValidationData(judged),
            "trainer": self.progress,
            "phases": self.phases,
            "raw": weights,
            "ema": self.ema,
            "precision": self.train_step.precision,
            "fitted": self.train_step,
            "meters": self.meters,
            "callbacks": self.callbacks,
            "random": self.generators,
            "task": self.task.own_state,
        }
        state = (parts, self.progress, weights, self.meters)
        known = {plain(one.name): one.better for one in self.metric_options if one.better}
        known |= {one.name: one.better for one in self.task.metrics or () if one.better}
        return Saver(self.checkpoints, *state, self.train_step, self.run.name, self.recipe_yaml, known)

    # ----------------------------------------------------- what callbacks see

    @property
    def step(self) -> int:
        """Optimizer steps done."""
        return self.progress.step

    @property
    def epoch(self) -> int:
        """Epochs done."""
        return self.progress.epoch

    @property
    def should_stop(self) -> bool:
        """A callback sets this to end training after the current step."""
        return self.progress.should_stop

    @should_stop.setter
    def should_stop(self, stop: bool) -> None:
        self.progress.should_stop = stop

    @property
    def averages(self) -> dict[str, Tensor]:
        """The moving averages of the weights, by name. Empty without `training.ema`."""
        return {} if self.ema is None else self.ema.state()

    @property
    def optimizers(self) -> Mapping[str, torch.optim.Optimizer]:
        """The optimizer of each phase."""
        return self.phases.optimizers

    @property
    def schedules(self) -> Mapping[str, Schedule]:
        """The learning-rate schedule of each phase."""
        return self.phases.schedules

    def emit(self, metrics: Mapping[str, float], split: str = "train") -> None:
        """Send metrics of the current step to the trackers."""
        self.reporter.emit(metrics, split)

    # ---------------------------------------------------------------- the run

    def fit(self, checkpoint: Checkpoint | None = None) -> dict[str, float]:
        """Train to the end, from the start or from a checkpoint; returns the last validation's metrics.

        Raises Interrupted after saving when SIGTERM, SIGHUP or Ctrl-C ended it, TrainingError when a loss is not
        finite or memory has run out.
        """
        with self.signals:
            self.stuck.start()
            try:
                try:
                    self._begin(checkpoint)
                    while not self.finished:
                        try:
                            self._train_epoch()
                        except NotFiniteError as error:
                            self._roll_back(error)
                            self._make_up()
                    self._end()
                except StopNow:
                    self._leave()
            except TrainingError as error:
                raise TrainingError(f"{error}; {self.saver.last_save()}") from error
            except (OSError, RuntimeError, MemoryError) as error:
                lost = self.ranks.lost(error)
                if lost is not None:
                    self.checkpoints.abandon()
                    saved = self.saver.last_save()
                    raise LostRankError(lost if lost.endswith(saved) else f"{lost}; {saved}") from error
                explained = memory_error(error, self.step) or self.run.full_disk_error(error, self.step)
                if explained is None:
                    raise
                raise TrainingError(f"{explained}; {self.saver.last_save()}") from error
            finally:
                self.stuck.leave()
                self.stuck.close()
                self.checkpoints.close()
                self.train_source.close()
                self.reporter.close()
                self.ledger.mark("save")
                self.ledger.write(self.step)
        if self.ranks.is_main and self.ledger.begun:
            logger.info("time: %s", told(read(self.run.path / FILE)))
        return self.progress.last_validation

    @property
    def finished(self) -> bool:
        """Whether the run is at its end."""
        if self.progress.should_stop:
            return True
        if self.settings.max_steps is not None:
            return self.progress.step >= self.settings.max_steps
        return self.progress.epoch >= self.settings.epochs

    def _begin(self, checkpoint: Checkpoint | None) -> None:
        if self.ranks.is_main:
            self.checkpoints.open()  # before anything of another process is replaced
        if checkpoint is not None:
            self.saver.restore(checkpoint)
            if self.progress.batches:
                recipe = parse(checkpoint.recipe_yaml, files.RECIPE).values if checkpoint.recipe_yaml else {}
                size = recipe["training"]["batch_size"] if recipe else None
                self.progress.consumed = self.train_source.consumed_by(self.epoch, self.progress.batches, size)
        elif self.settings.init_from is not None:
            initialise_from(self.settings.init_from, self.task, self.model, self.run)
            if self.ema is not None:
                self.ema.reset()
        self.train_source.leave_out(self.quarantine.samples)
        if ended := "" if checkpoint is None else self._told_end():
            if self.ranks.is_main:
                logger.info(ended)
        else:
            self._go_on(checkpoint)
        self.model.train()
        for hook in self.callbacks.on_train_begin:
            hook(self)
        if checkpoint is not None and self.finished and not self.progress.unfinished:
            return  # nothing is trained: what the run says of itself is true as it is
        describe(self.run, self.train_step, self.hyperparameters, self.recipe_yaml)  # when callbacks have frozen theirs
        self.generators.start()
        self.ledger.mark("start" if checkpoint is None else "recover")
        self.ledger.begin(self.step)
        self._make_up()

    def _told_end(self) -> str:
        """What is said of a resumed run of which nothing is left to train; "" where it goes on."""
        if self.progress.unfinished:
            return ""
        ended = told_end(self.settings, self.step, self.epoch)
        return ended or stopped_early(self.callbacks.callbacks, self.settings)

    def _go_on(self, checkpoint: Checkpoint | None) -> None:
        """Open what a run writes to that begins or, from `checkpoint`, goes on."""
        self._open_stream(checkpoint)
        if checkpoint is not None:
            done = number_of(self.epoch, "epoch")
            logger.info("resumed from %s at step %d, %s done", checkpoint.path, self.step, done)
            self.reporter.stream.event(self.step, "resumed", epoch=self.epoch, checkpoint=str(checkpoint.path))
        self.saver.check_space()

    def _make_up(self) -> None:
        """Do what remained of a step when a signal stopped the run between it and its validation."""
        if self.progress.unfinished:
            self._finish_step()

    def _open_stream(self, checkpoint: Checkpoint | None) -> None:
        """Begin to send metrics to the trackers, from `checkpoint` on where there is one."""
        stream = build_stream(
            self.settings.logging,
            self.run.path,
            names=self.task.metric_names(),
            total_steps=self.total_steps,
            resume_step=None if checkpoint is None else self.step,
            logged=self.progress.logged if checkpoint is not None and self._holds(checkpoint) else 0,
            is_main=self.ranks.is_main,
            hyperparameters=self.hyperparameters,
            metrics=self.task.metrics or (),
            selected=self.progress.best.metric,
            time_left=self.time_left,
            running_epoch=self._running_epoch,
        )
        self.reporter.start(stream)

    def _running_epoch(self) -> int | None:
        """The epoch that the console shows: none where the run has a single one."""
        return self.progress.running_epoch() if self.total_steps > self.steps_per_epoch else None

    def _skipped(self, problem: NotFinite) -> None:
        """Say what was found in a step that was left out. Raises TrainingError where that step left a trace."""
        if self.ranks.is_main:
            logger.warning("%s; the step was left out", problem)
        self.reporter.stream.event(problem.step, "skipped", what=problem.what, ids=[*problem.ids])
        for name, buffer in self.model.named_buffers():
            if buffer.is_floating_point() and buffer.isnan().any():
                raise TrainingError(
                    f"{problem}, and left NaN in {name} of the model, where a later step would go on from it: set "
                    "training.not_finite=rollback"
                )

    def _roll_back(self, error: NotFiniteError) -> None:
        """Go back to the newest checkpoint, and from there on without the batch of `error`; or raise it."""
        if self.settings.not_finite != "rollback":
            raise error
        if len(self.left_out) == MOST_LEFT_OUT:
            raise TrainingError(f"{error}; this is the {MOST_LEFT_OUT + 1}th return to a checkpoint") from error
        self.stuck.leave()
        self.mark("gap")
        self.ledger.mark("train")
        self.checkpoints.flush()
        self.ranks.wait()  # the first rank's last save is on the disk
        saved = [one for one in listing.scan(self.checkpoints.folder) if one.step < error.problem.step]
        checkpoint = load_first_intact(listing.newest_first(saved), self.settings.checkpoint.verify_integrity)
        if checkpoint is None:
            raise TrainingError(f"{error}; there is nothing to return to") from error
        self.left_out.add(error.problem.step - 1)
        for phase in self.phases:
            for parameter in phase.parameters:
                parameter.grad = None
        self.reporter.close()
        self.saver.restore(checkpoint)
        self._open_stream(checkpoint)
        self.generators.start()
        if self.ranks.is_main:
            logger.warning("%s; back to step %d, to train on without this batch", error.problem, self.step)
        facts = {"after": error.problem.step, "what": error.problem.what, "ids": [*error.problem.ids]}
        self.reporter.stream.event(self.step, "rolled back", checkpoint=str(checkpoint.path), **facts)
        self.ledger.restart(self.step)

    def _holds(self, checkpoint: Checkpoint) -> bool:
        """Whether a checkpoint is of this run's folder, not of another run that goes on here."""
        return checkpoint.path.parent.resolve() == self.checkpoints.folder.resolve()

    def _train_epoch(self) -> None:
        """The rest of the current epoch."""
        progress = self.progress
        if not progress.consumed:
            for on_epoch_begin in self.callbacks.on_epoch_begin:
                on_epoch_begin(self, progress.epoch)
        planned = self.train_source.epoch(progress.epoch, progress.consumed)
        groups = accumulation_groups(planned, self.settings.gradient_accumulation_steps)
        self.mark("gap")
        while not self.finished:
            self.ledger.mark("train")
            started = time.perf_counter()
            self.signals.enter()
            self._group = ()
            if self._loaded:
                self.stuck.enter()
            group = next(groups, None)
            self.stuck.leave()
            if not self._loaded:  # the first one waits for features of the whole corpus, which may take hours
                self.ranks.wait()
                self._loaded = True
            self.signals.leave()
            self.reporter.waited += time.perf_counter() - started
            self.ledger.mark("data")
            if group is None:
                if progress.consumed:
                    # after a resume: it has fewer samples than were consumed
                    logger.info("nothing remains of epoch %d; epoch %d begins", self.epoch + 1, self.epoch + 2)
                    self.progress.epoch, self.progress.consumed = self.epoch + 1, ()
                    self._end_epoch({})
                break
            self._step(group)
            progress.step += 1
            progress.consume(sum(planned.samples for planned in group), self.train_source.max_frames)
            for hook in self.callbacks.on_optimizer_step:
                hook(self)
            self._after_step(group[-1].last)
            if self.profiler is not None and self.profiler.end_step(sum(len(planned.ids) for planned in group)):
                self._report_profile()

    def _step(self, group: Sequence[MicroBatch]) -> None:
        self._group = group
        if self.progress.step not in self.left_out:
            self.stuck.enter()
            self.train_step(group, self.progress.step, self.ema)
            self.stuck.leave()

    def _stuck_at(self) -> str:
        ids = [name for planned in self._group for name in planned.ids]
        what = f"in step {self.step + 1} (batch: {', '.join(ids)})" if ids else f"loading step {self.step + 1}"
        if not ids and (name := self.train_source.loading()):
            what += f", at sample {name}"
        return f"{what}; {self.saver.latest_save()}; continue with: {self.run.resumed_with}"

    def _end_epoch(self, metrics: Mapping[str, float]) -> None:
        """Report the epoch that has ended. `metrics`: of the validation after it, if any."""
        self.progress.last_training = self.reporter.end_epoch()
        for hook in self.callbacks.on_epoch_end:
            hook(self, self.epoch - 1, {**self.progress.last_training, **metrics})

    def _after_step(self, epoch_done: bool) -> None:
        """Everything that follows an optimizer step. Most steps only pass through the comparisons."""
        progress = self.progress
        if epoch_done:
            progress.epoch, progress.consumed = progress.epoch + 1, ()
        if self.settings.logging.due(progress.step):
            self.ledger.mark("train")
            self.reporter.log(self.ledger.shares())
            self.ledger.write(progress.step)
        else:
            self.ledger.write_if_due(progress.step)
        self.reporter.stream.tick(progress.step)
        progress.unfinished = True
        left_out = self.quarantine.new(one for planned in self._group for one in planned.left_out)
        stop, any_left_out = self.ranks.sum([self.signals.received or 0.0, len(left_out)])
        if any_left_out:
            self._quarantine(left_out)
        if stop:
            raise StopNow
        self._finish_step()

    def _quarantine(self, left_out: Sequence[LeftOut]) -> None:
        """Leave samples out from now on. All ranks call it together, each with those that it met."""
        added = self.quarantine.add(left_out, self.step)
        self.train_source.leave_out({one.id: one.reason for one in added})
        for one in added:
            self.reporter.stream.event(self.step, "quarantined", id=one.id, reason=one.reason)

    def _finish_step(self) -> None:
        """Validation, end of epoch and saving, where they are due. A run stopped in here repeats it on resume."""
        epoch_done = not self.progress.consumed
        metrics: dict[str, float] = {}
        is_best = False
        if self.validator is not None and (self._due(self.settings.validation.interval, epoch_done) or self.finished):
            metrics, is_best = self._validate(self.validator)
        if epoch_done:
            self._end_epoch(metrics)
        checkpoint = self.settings.checkpoint
        due = self._due(checkpoint.interval, epoch_done) and not checkpoint.save_best_only
        self.progress.unfinished = False
        if due or is_best or self.finished:
            self.save(is_best)
        if self.finished and not epoch_done:
            self._end_within_epoch(metrics)
        if self.device.type == "cpu" and (metrics or due):
            return_freed_pages()

    def _end_within_epoch(self, metrics: Mapping[str, float]) -> None:
        """Report the part of an epoch after which training ends. What a resume restores is saved already, and a run
        that goes on from there is in the middle of the epoch."""
        if not self.callbacks.on_epoch_end:
            return
        self.checkpoints.flush()  # the state of callbacks is written as it was before
        part = self.meters.epoch_means(self.meters.state(), self.train_step.weights)
        for hook in self.callbacks.on_epoch_end:
            hook(self, self.epoch, {**{f"train_{name}": value for name, value in part.items()}, **metrics})

    def _due(self, interval: Interval, epoch_done: bool) -> bool:
        if isinstance(interval, int):
            return self.progress.step % interval == 0
        return epoch_done and self.progress.epoch % int(interval.split()[0]) == 0

    def _end(self) -> None:
        if self.profiler is not None and self.profiler.running:
            self.profiler.finish()
            self._report_profile()
        for hook in self.callbacks.on_train_end:
            hook(self)

    def _report_profile(self) -> None:
        assert self.profiler is not None
        memory_share = 1.0 if self.memory is None else self.memory.usage.share
        report_profile(self.profiler.profile, self.train_step, self.run, memory_share)

    def _leave(self) -> None:
        """Save where a signal stopped the run; where a loss of it that nobody has read is not finite, go back first."""
        try:
            self.save(is_best=False)
        except NotFiniteError as error:
            self._roll_back(error)
        self.checkpoints.close()
        raise Interrupted(
            f"stopped at step {self.step}; saved to {self.checkpoints.folder}; continue with: {self.run.resumed_with}",
            self.signals.received or 2,
            step=self.step,
            checkpoint=self.checkpoints.folder / listing.name_of(self.step),
            command=self.run.resume_command(),
        ) from None

    def _validate(self, validator: Validator) -> tuple[dict[str, float], bool]:
        """Validate; returns the metrics (`val_` and the task's own) and whether they are the best so far."""
        progress, began = self.progress, time.perf_counter()
        self.mark("gap")
        self.ledger.mark("train")
        for hook in self.callbacks.on_validation_begin:
            hook(self)
        try:
            validation = validator(progress.step, progress.best)
        except UnknownMetricError as error:
            # Before anything has noted this validation: resumed with the name put right, the run repeats it.
            self.save()
            raise InputError(
                f"{error}. Step {self.step} is saved to {self.checkpoints.folder}: go on with {self.run.resume_option}"
            ) from None
        except (OSError, TrainingError) as error:
            if is_full(error) and self.ranks.world_size == 1:
                self.save()  # as above; what is full need not be the disk of the run
            raise
        progress.averaged_is_better = validation.averaged
        self.emit(validation.metrics, split="validation")
        progress.last_validation = {f"val_{name}": value for name, value in validation.metrics.items()}
        progress.validated = progress.step
        metrics = validation.by_name()
        for schedule in self.schedules.values():
            if schedule.metric is not None:
                schedule.observe(metrics[schedule.metric])
        is_best = progress.best.observe(metrics, progress.step)
        for on_validation_end in self.callbacks.on_validation_end:
            on_validation_end(self, metrics)
        self.time_left.validated(time.perf_counter() - began)
        self.mark("pause")
        self.ledger.mark("validate")
        return metrics, is_best

    def save(self, is_best: bool = False) -> None:
        """Save a checkpoint of the current step (in the background)."""
        self.mark("gap")
        self.ledger.mark("train")
        self.reporter.stream.sync()
        if self.saver.save(is_best) and self.settings.logging.log_model:
            self.checkpoints.flush()
            self.reporter.stream.artifact(self.checkpoints.latest())
        self.mark("pause")
        self.ledger.mark("save")
        self.ledger.write(self.step)

    def restore_best(self) -> Path | None:
        """Load the weights of the best validation into the model; None where there was no validation."""
        return self.saver.restore_best()
