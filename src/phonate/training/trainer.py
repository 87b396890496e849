"""The trainer: one loop for every task.

Reading order: `fit` (the whole run), `_train_epoch` (the loop), `_after_step` and `_finish_step` (what happens
between steps), `save`. The step itself is in `step.py`; what a checkpoint holds, so that a resumed run is the same
run, is in `state.py`.

Exact resume rests on three rules. The order of samples is a pure function of (seed, epoch); what is random about a
sample or a step comes from generators keyed by (seed, epoch, sample id) and (seed, step); and a checkpoint stores
how many batches were *consumed*, whatever the loader has fetched ahead.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from phonate.compute.distributed import Ranks
from phonate.config.errors import CheckpointError, InputError, Interrupted, TrainingError
from phonate.data.batches.loading import MicroBatch
from phonate.training import state
from phonate.training.callbacks import Callback, CallbackList
from phonate.training.checkpoints import Checkpoint, CheckpointManager, listing
from phonate.training.ema import EMA
from phonate.training.memory.manager import memory_manager
from phonate.training.memory.recovery import told_as_mistake
from phonate.training.meter import Meter
from phonate.training.optimizers import build_optimizer
from phonate.training.reporting import describe, finite_means, log, tell_profile
from phonate.training.run import Run
from phonate.training.schedules import build_schedule
from phonate.training.settings import Interval, TrainingSettings
from phonate.training.setup import (
    Source,
    batch_source,
    build_model,
    callbacks_of,
    check_task,
    check_watched,
    hyperparameters,
    initialise_from,
    profiler_of,
)
from phonate.training.signals import Signals, StopNow
from phonate.training.state import seed_global_generators
from phonate.training.step import PhaseState, TrainStep, seed_torch, unmarked
from phonate.training.task import Dataset, Preview, Task
from phonate.training.tracking import MetricStream, build_stream, check_trackers
from phonate.training.validation import Best, named, validate

logger = logging.getLogger("phonate")


class Trainer:
    """Trains a task's model. `train` and `validation` replace the batches that are planned from its samples."""

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
        recipe_yaml: str = "",
    ) -> None:
        self.task = task
        self.settings = settings
        self.run = run
        self.device = device or torch.device("cpu")
        self.ranks = ranks or Ranks()
        self.recipe_yaml = recipe_yaml
        check_task(task, settings, self.ranks)
        check_trackers(settings.logging)

        self.step = 0
        """Optimizer steps done."""
        self.epoch = 0
        """Epochs done."""
        self.batch = 0
        """Micro-batches consumed in the current epoch."""
        self.should_stop = False
        """A callback sets this to end training after the current step."""
        self.unfinished = False
        """A signal stopped the run after a step and before the validation and saving that belong to it."""
        self.last_validation: dict[str, float] = {}
        """Metrics of the latest validation, names beginning with `val_`."""
        self.last_training: dict[str, float] = {}
        """Means of the latest epoch, names beginning with `train_`."""
        self._saved_step = -1

        seed_global_generators(settings.random_seed)
        self.validation_dataset: Dataset | None = None
        self.train_source, self.validation_source = (train, validation) if train is not None else self._plan_sources()
        seed_torch(self.device, settings.random_seed, "model")
        self.model = build_model(task, self.device)
        if settings.performance.compile_model:
            self.model.compile()
        self.steps_per_epoch = math.ceil(self.train_source.steps(0) / settings.gradient_accumulation_steps)
        self.total_steps = settings.max_steps or settings.epochs * self.steps_per_epoch
        self.phases = self._build_phases()
        self.optimizers = {one.phase.name: one.optimizer for one in self.phases}
        self.schedules = {one.phase.name: one.schedule for one in self.phases}
        self.callbacks = CallbackList([*callbacks_of(settings, run), *callbacks])
        check_watched(settings, self.callbacks.callbacks, validated=self.validation_source is not None)
        watched = settings.performance.memory_management
        self.memory = memory_manager(self.device) if watched else None
        self.profiler = profiler_of(settings, self.device)
        self.mark = unmarked if self.profiler is None else self.profiler.mark
        self.train_step = self._build_step()
        self.ema = EMA(self.model, settings.ema) if settings.ema else None
        self.averaged_is_better = settings.ema is not None and settings.ema.validate_with != "raw"
        self.epoch_meter = Meter()
        self.best = Best(settings.best_metric, settings.validation.greater_is_better)
        store = settings.checkpoint
        self.checkpoints = CheckpointManager(run.path / store.save_dir, store, run=run.path)
        self.signals = Signals(
            immediate=self.ranks.world_size == 1,
            announce=self.ranks.is_main,
            checkpoints=self.checkpoints.folder,
        )
        self.stream: MetricStream | None = None
        self.waited = 0.0
        """Seconds spent waiting for data since the last log line."""
        self.told_slow_data = False
        """Whether the log has said that data are slow."""
        self.logged_at = (0, time.perf_counter())
        """Step and time of the last log line."""

    def _build_step(self) -> TrainStep:
        """Forward, backward and update, with what takes part in them."""
        return TrainStep(
            self.task,
            self.model,
            self.phases,
            self.settings,
            self.device,
            self.ranks,
            after_backward=[partial(hook, self) for hook in self.callbacks.on_backward_end],
            before_batch=[partial(hook, self) for hook in self.callbacks.on_batch_begin],
            after_batch=[partial(hook, self) for hook in self.callbacks.on_batch_end],
            split=self._halves,
            memory=self.memory,
            mark=self.mark,
        )

    def _halves(self, planned: MicroBatch) -> tuple[MicroBatch, MicroBatch] | None:
        """The halves of a micro-batch of this epoch that memory had no room for."""
        return self.train_source.halves(planned, self.epoch)

    def _plan_sources(self) -> tuple[Source, Source | None]:
        """The batches of the task's samples; without validation samples none for validation."""
        make = partial(batch_source, settings=self.settings, ranks=self.ranks, device=self.device)
        train, samples = make(self.task.dataset("train")), self.task.dataset("validation")
        if not len(samples.ids):
            return train, None
        self.validation_dataset = samples
        return train, make(samples, validation=True)

    @property
    def averages(self) -> dict[str, Tensor]:
        """The moving averages of the weights, by name. Empty without `training.ema`."""
        return {} if self.ema is None else self.ema.state()

    def _build_phases(self) -> list[PhaseState]:
        states = []
        for phase in self.task.phases:
            named = list(phase.parameters(self.model))
            if not named:
                raise InputError(f"phase {phase.name!r} has no trainable parameters")
            optimizer_settings = phase.optimizer or self.settings.optimizer
            optimizer = build_optimizer(optimizer_settings, named, self.device)
            schedule = build_schedule(
                self.settings.scheduler, optimizer_settings.lr, self.total_steps, self.steps_per_epoch
            )
            states.append(PhaseState(phase, [p for _, p in named], optimizer, schedule))
        return states

    # ---------------------------------------------------------------- the run

    def fit(self, checkpoint: Checkpoint | None = None) -> dict[str, float]:
        """Train to the end, from the start or from a checkpoint; returns the last validation's metrics.

        Raises Interrupted after saving when SIGTERM, SIGHUP or Ctrl-C ended it, TrainingError when a loss is not
        finite.
        """
        with self.signals:
            try:
                self._begin(checkpoint)
                while not self.finished:
                    self._train_epoch()
                self._end()
            except StopNow:
                self._leave()
            except TrainingError:
                self._tell_failed_save()
                raise
            except (RuntimeError, MemoryError) as error:
                if (mistake := told_as_mistake(error, self.step)) is None:
                    raise
                self._tell_failed_save()
                raise mistake from error
            finally:
                self.checkpoints.close()
                self.train_source.close()
                if self.stream is not None:
                    self.stream.close()
        return self.last_validation

    @property
    def finished(self) -> bool:
        """Whether the run is at its end."""
        if self.should_stop:
            return True
        if self.settings.max_steps is not None:
            return self.step >= self.settings.max_steps
        return self.epoch >= self.settings.epochs

    def _begin(self, checkpoint: Checkpoint | None) -> None:
        if self.ranks.is_main:
            self.checkpoints.open()  # before anything of another process is replaced
        if checkpoint is not None:
            state.restore(self, checkpoint)
            logger.info("resumed from %s at step %d, epoch %d", checkpoint.path, self.step, self.epoch)
        elif self.settings.init_from is not None:
            initialise_from(self.settings.init_from, self.task, self.model, self.run)
            if self.ema is not None:
                self.ema.reset()
        self.stream = build_stream(
            self.settings.logging,
            self.run.path,
            names=self.task.metric_names(),
            total_steps=self.total_steps,
            resume_step=None if checkpoint is None else self.step,
            is_main=self.ranks.is_main,
            hyperparameters=hyperparameters(self.settings, self.recipe_yaml),
        )
        if checkpoint is not None:
            self.stream.event(self.step, "resumed", epoch=self.epoch, checkpoint=str(checkpoint.path))
        if self.ranks.is_main:  # the weights, and about twice as much for the optimizer
            raw = self.task.saved(self.model)
            self.checkpoints.check_space({"weights": raw, "first moment": raw, "second moment": raw})
        self.logged_at = (self.step, time.perf_counter())
        describe(self)
        self.model.train()
        for hook in self.callbacks.on_train_begin:
            hook(self)
        state.start_global_generators(self.settings.random_seed, checkpoint)
        if self.unfinished:  # the run was stopped between a step and its validation
            self._finish_step()

    def _tell_failed_save(self) -> None:
        """A save that failed in the background must not hide the error that ends the run."""
        try:
            self.checkpoints.flush()
        except CheckpointError as error:
            logger.error("%s", error)

    def _train_epoch(self) -> None:
        """The rest of the current epoch."""
        if self.batch == 0:
            for hook in self.callbacks.on_epoch_begin:
                hook(self, self.epoch)
        groups = self.accumulation_groups(self.epoch, self.batch)
        self.mark("gap")
        while not self.finished:
            started = time.perf_counter()
            self.signals.enter()
            group = next(groups, None)
            self.signals.leave()
            self.waited += time.perf_counter() - started
            if group is None:
                break
            self.train_step(group, self.step, self.ema)
            self.step += 1
            self.batch += len(group)
            for hook in self.callbacks.on_optimizer_step:
                hook(self)
            self._after_step()
            if self.profiler is not None and self.profiler.end_step(sum(len(planned.ids) for planned in group)):
                tell_profile(self)

    def accumulation_groups(self, epoch: int, start: int) -> Iterator[list[MicroBatch]]:
        """The micro-batches of each optimizer step of `epoch`, from micro-batch `start` on; the last step may have
        fewer."""
        size = self.settings.gradient_accumulation_steps
        group: list[MicroBatch] = []
        for planned in self.train_source.epoch(epoch, start):
            group.append(planned)
            if len(group) == size:
                yield group
                group = []
        if group:
            yield group

    def _after_step(self) -> None:
        """Everything that follows an optimizer step. Most steps only pass through the comparisons."""
        if self.batch >= self.train_source.steps(self.epoch):
            self.epoch, self.batch = self.epoch + 1, 0
        if self.settings.logging.due(self.step):
            log(self)
        assert self.stream is not None
        self.stream.tick(self.step)
        self.unfinished = True
        if self.stop_requested():
            raise StopNow
        self._finish_step()

    def stop_requested(self) -> bool:
        """Whether a signal asked any rank to stop. All ranks must ask at the same point."""
        return self.ranks.sum([self.signals.received or 0.0])[0] > 0

    def _finish_step(self) -> None:
        """Validation, end of epoch and saving, where they are due. A run stopped in here repeats it on resume."""
        epoch_done = self.batch == 0
        metrics: dict[str, float] = {}
        is_best = False
        if self.validation_source is not None and (
            self._due(self.settings.validation.interval, epoch_done) or self.finished
        ):
            metrics, is_best = self._validate()
        if epoch_done:
            self._end_epoch(metrics)
        checkpoint = self.settings.checkpoint
        due = self._due(checkpoint.interval, epoch_done) and not checkpoint.save_best_only
        self.unfinished = False
        if due or is_best or self.finished:
            self.save(is_best)

    def _due(self, interval: Interval, epoch_done: bool) -> bool:
        if isinstance(interval, int):
            return self.step % interval == 0
        return epoch_done and self.epoch % int(interval.split()[0]) == 0

    def _end_epoch(self, metrics: Mapping[str, float]) -> None:
        """Means over the epoch, to the stream and to the callbacks."""
        self.train_step.check_losses()  # names the batch, which means can't
        self.epoch_meter.absorb(self.train_step.meter)
        means = finite_means(self, self.epoch_meter)
        self.epoch_meter.clear()
        self.last_training = {f"train_{name}": value for name, value in means.items()}
        if means:
            self.emit(means, split="epoch")
        for hook in self.callbacks.on_epoch_end:
            hook(self, self.epoch - 1, {**self.last_training, **metrics})

    def _end(self) -> None:
        if self.profiler is not None and self.profiler.running:
            self.profiler.finish()
            tell_profile(self)
        for hook in self.callbacks.on_train_end:
            hook(self)

    def _leave(self) -> None:
        """Save where a signal stopped the run, and say how to go on."""
        number = self.signals.received or 2
        self.save(is_best=False)
        self.checkpoints.close()
        where = self.checkpoints.folder
        raise Interrupted(
            f"stopped at step {self.step}; saved to {where}; continue with --resume auto",
            number,
            step=self.step,
            checkpoint=where / listing.name_of(self.step),
            command=self.run.resume_command(),
        )

    # ------------------------------------------------- validation and metrics

    def _validate(self) -> tuple[dict[str, float], bool]:
        """Validate; returns the metrics (`val_` and the task's own) and whether they are the best so far."""
        assert self.validation_source is not None
        self.mark("gap")
        for hook in self.callbacks.on_validation_begin:
            hook(self)
        metrics = validate(self)
        self.emit(metrics, split="validation")
        known = named(metrics)
        self.last_validation = {f"val_{name}": value for name, value in metrics.items()}
        for schedule in self.schedules.values():
            if schedule.metric is not None:
                schedule.observe(known[schedule.metric])
        value = known[self.best.metric]
        is_best = self.best.improved(value)
        if is_best:
            self.best.value, self.best.step = value, self.step
        for hook in self.callbacks.on_validation_end:
            hook(self, known)
        self.mark("pause")
        return known, is_best

    def emit(self, metrics: Mapping[str, float], split: str = "train") -> None:
        """Send metrics of the current step to the stream."""
        if self.ranks.is_main and self.stream is not None:
            self.stream.emit(self.step, split, dict(metrics), epoch=self.epoch)

    def show(self, previews: Mapping[str, Preview]) -> None:
        """Send sounds and pictures of the current step to the stream."""
        if self.ranks.is_main and self.stream is not None and previews:
            self.stream.media(self.step, previews)

    # ------------------------------------------------------------- save, resume

    def save(self, is_best: bool = False) -> None:
        """Save a checkpoint of the current step (in the background)."""
        if self.step == self._saved_step and not is_best:
            return
        self._saved_step = self.step
        self.mark("gap")
        self._save(is_best)
        self.mark("pause")

    def _save(self, is_best: bool) -> None:
        self.train_step.check_losses()  # weights that a bad batch has spoilt are not saved over good ones
        counted = state.meters(self)
        if not self.ranks.is_main:
            return
        weights, raw = state.weights(self)
        self.checkpoints.save_checkpoint(
            step=self.step,
            epoch=self.epoch,
            weights=weights,
            state=state.collect(self, raw, counted),
            metrics={**(state.epoch_so_far(self, counted) or self.last_training), **self.last_validation},
            learning_rate=self.phases[0].lr,
            model_name=type(self.model).__name__,
            experiment_name=self.run.name,
            recipe_yaml=self.recipe_yaml,
            architecture=str(self.model),
            best_metric=None if self.best.value is None else (self.best.metric, self.best.value),
            greater_is_better=self.best.greater_is_better,
            is_best=is_best,
            export=self.task.inference_metadata(self.model),
        )
        if self.settings.logging.log_model and self.stream is not None:
            self.checkpoints.flush()
            self.stream.artifact(self.checkpoints.latest())

    def restore_best(self) -> Path | None:
        """Put the weights of the best validation into the model; None where there was no validation."""
        self.checkpoints.flush()
        self.ranks.barrier()  # the first rank's last save is on the disk
        if self.best.value is None:
            return None
        best = self.checkpoints.load_best_checkpoint()
        self.task.restore(self.model, {**self.task.saved(self.model), **best.weights})
        logger.info("restored the weights of step %d (%s %.6g)", self.best.step, self.best.metric, self.best.value)
        return best.path
