"""The trainer: one loop for every task.

Reading order: `fit` (the whole run), `_train_epoch` (the loop), `_after_step` and `_finish_step` (what happens between
steps), `save`. The step itself is in `step.py`; the parts of a run that a resume restores are in `state.py`.

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

from phonate.compute.distributed import Ranks
from phonate.compute.memory import return_freed_pages
from phonate.config.errors import InputError, Interrupted, TrainingError
from phonate.config.metrics import plain
from phonate.config.resolve import Resolved
from phonate.training.callbacks import Callback, CallbackList
from phonate.training.checkpoints import Checkpoint, CheckpointManager, listing
from phonate.training.memory.manager import memory_manager
from phonate.training.memory.recovery import memory_error
from phonate.training.metrics import Best, UnknownMetricError
from phonate.training.optimization_settings import Interval
from phonate.training.reporting import Reporter, describe, report_profile
from phonate.training.run import Run
from phonate.training.saving import Saver
from phonate.training.schedules import Schedule
from phonate.training.settings import TrainingSettings
from phonate.training.setup import (
    Source,
    build_model,
    check_settings,
    check_watched,
    initialise_from,
    plan_sources,
    profiler_of,
    set_matmul_precision,
    with_own_callbacks,
)
from phonate.training.signals import Signals, StopNow
from phonate.training.state import Parts, Progress, TrainingData, Weights, batch_size_of
from phonate.training.steps.accumulation import accumulation_groups
from phonate.training.steps.ema import EMA
from phonate.training.steps.generators import GlobalGenerators, seed_global_generators, seed_torch
from phonate.training.steps.meter import Meters
from phonate.training.steps.phases import build_phases
from phonate.training.steps.step import StepHooks, TrainStep, no_mark
from phonate.training.task import Dataset, Task
from phonate.training.tracking import build_stream
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
    ) -> None:
        self.task = task
        self.run = run
        self.device = device or torch.device("cpu")
        self.ranks = ranks or Ranks()
        checked = check_settings(task, settings, self.ranks, begins=False, callbacks=callbacks)
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
            train, validation, dataset = plan_sources(task, settings, self.ranks, self.device)
        self.train_source, self.validation_source = train, validation
        seed_torch(self.device, settings.random_seed, "model")
        self.model = build_model(task, self.device)
        if settings.performance.compile_model:
            self.model.compile()
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
        self.checkpoints = CheckpointManager(run.path / store.save_dir, store, run=run.path)
        self.signals = Signals(self.ranks.world_size == 1, self.ranks.is_main, self.checkpoints.folder)
        self.validator = None if validation is None else self._build_validator(validation, dataset)
        self.generators = GlobalGenerators(settings.random_seed, saved=store.snapshot_random_states)
        self.saver = self._build_saver()

    def _build_step(self) -> TrainStep:
        """Forward, backward and update, with everything that takes part in them."""
        return TrainStep(
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
        )

    def _build_validator(self, source: Source, dataset: Dataset | None) -> Validator:
        options, show = self.metric_options, self.reporter.show
        return Validator(self.train_step, source, dataset, self.ema, self.signals, options, show)

    def _build_saver(self) -> Saver:
        """The parts of the run's state, by their names in a checkpoint, and what saves them."""
        weights = Weights(self.task, self.model, self.ema, self.settings.checkpoint.snapshot_features)
        digests = self.train_source.digests()
        parts: Parts = {
            "data": None if digests is None else TrainingData(digests, self.settings.checkpoint.allow_changed_data),
            "trainer": self.progress,
            "phases": self.phases,
            "raw": weights,
            "ema": self.ema,
            "precision": self.train_step.precision,
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
            try:
                self._begin(checkpoint)
                while not self.finished:
                    self._train_epoch()
                self._end()
            except StopNow:
                self._leave()
            except TrainingError as error:
                raise TrainingError(f"{error}; {self.saver.last_save()}") from error
            except (RuntimeError, MemoryError) as error:
                if (explained := memory_error(error, self.step)) is None:
                    raise
                raise TrainingError(f"{explained}; {self.saver.last_save()}") from error
            finally:
                self.checkpoints.close()
                self.train_source.close()
                self.reporter.close()
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
                size = batch_size_of(checkpoint.recipe_yaml)
                self.progress.consumed = self.train_source.consumed_by(self.epoch, self.progress.batches, size)
        elif self.settings.init_from is not None:
            initialise_from(self.settings.init_from, self.task, self.model, self.run)
            if self.ema is not None:
                self.ema.reset()
        stream = build_stream(
            self.settings.logging,
            self.run.path,
            names=self.task.metric_names(),
            total_steps=self.total_steps,
            resume_step=None if checkpoint is None else self.step,
            logged=self.progress.logged if checkpoint is not None and self._holds(checkpoint) else 0,
            is_main=self.ranks.is_main,
            hyperparameters=self.hyperparameters,
        )
        self.reporter.start(stream)
        if checkpoint is not None:
            stream.event(self.step, "resumed", epoch=self.epoch, checkpoint=str(checkpoint.path))
        self.saver.check_space()
        describe(self.run, self.train_step, self.hyperparameters, self.recipe_yaml)
        self.model.train()
        for hook in self.callbacks.on_train_begin:
            hook(self)
        self.generators.start()
        if self.progress.unfinished:  # the run was stopped between a step and its validation
            self._finish_step()

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
            started = time.perf_counter()
            self.signals.enter()
            group = next(groups, None)
            self.signals.leave()
            self.reporter.waited += time.perf_counter() - started
            if group is None:
                if progress.consumed:
                    self._leave_epoch()
                break
            self.train_step(group, progress.step, self.ema)
            progress.step += 1
            progress.consume(sum(planned.samples for planned in group), self.train_source.max_frames)
            for hook in self.callbacks.on_optimizer_step:
                hook(self)
            self._after_step(group[-1].last)
            if self.profiler is not None and self.profiler.end_step(sum(len(planned.ids) for planned in group)):
                self._report_profile()

    def _leave_epoch(self) -> None:
        """End an epoch of which nothing remains after a resume, because it has fewer samples than were consumed."""
        logger.info("nothing remains of epoch %d; epoch %d begins", self.epoch, self.epoch + 1)
        self.progress.epoch, self.progress.consumed = self.epoch + 1, ()
        self._end_epoch({})

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
            self.reporter.log()
        self.reporter.stream.tick(progress.step)
        progress.unfinished = True
        if self.signals.received_by_any(self.ranks):
            raise StopNow
        self._finish_step()

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
        if self.device.type == "cpu" and (metrics or due):
            return_freed_pages()

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
        """Save where a signal stopped the run."""
        self.save(is_best=False)
        self.checkpoints.close()
        raise Interrupted(
            f"stopped at step {self.step}; saved to {self.checkpoints.folder}; continue with --resume auto",
            self.signals.received or 2,
            step=self.step,
            checkpoint=self.checkpoints.folder / listing.name_of(self.step),
            command=self.run.resume_command(),
        )

    def _validate(self, validator: Validator) -> tuple[dict[str, float], bool]:
        """Validate; returns the metrics (`val_` and the task's own) and whether they are the best so far."""
        progress = self.progress
        self.mark("gap")
        for hook in self.callbacks.on_validation_begin:
            hook(self)
        try:
            found = validator(progress.step, progress.best)
        except UnknownMetricError as error:
            # Before anything has noted this validation: resumed with the name put right, the run repeats it.
            self.save()
            raise InputError(
                f"{error}. Step {self.step} is saved to {self.checkpoints.folder}: go on with --resume auto"
            ) from None
        progress.averaged_is_better = found.averaged
        self.emit(found.metrics, split="validation")
        progress.last_validation = {f"val_{name}": value for name, value in found.metrics.items()}
        metrics = found.named()
        for schedule in self.schedules.values():
            if schedule.metric is not None:
                schedule.observe(metrics[schedule.metric])
        is_best = progress.best.observe(metrics, progress.step)
        for on_validation_end in self.callbacks.on_validation_end:
            on_validation_end(self, metrics)
        self.mark("pause")
        return metrics, is_best

    def save(self, is_best: bool = False) -> None:
        """Save a checkpoint of the current step (in the background)."""
        self.mark("gap")
        self.reporter.stream.sync()
        if self.saver.save(is_best) and self.settings.logging.log_model:
            self.checkpoints.flush()
            self.reporter.stream.artifact(self.checkpoints.latest())
        self.mark("pause")

    def restore_best(self) -> Path | None:
        """Load the weights of the best validation into the model; None where there was no validation."""
        return self.saver.restore_best()
