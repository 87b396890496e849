"""What the trainer reports: the log line of the last steps, the profile, and what is written at the start of a run."""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from phonate.compute.distributed import Ranks
from phonate.config.errors import TrainingError
from phonate.config.words import number_of
from phonate.training.memory import AdaptiveMemoryManager
from phonate.training.meters import Meter, Meters
from phonate.training.not_finite import ADVICE
from phonate.training.profiling import DATA_LIMIT, Profile
from phonate.training.run import Run
from phonate.training.settings import TrainingSettings
from phonate.training.setup import count_parameters, model_summary
from phonate.training.step import TrainStep
from phonate.training.task import Preview
from phonate.training.tracking import MetricStream

if TYPE_CHECKING:
    from phonate.training.state import Progress

logger = logging.getLogger(__name__)

LEAST_SCALE = 2.0**-14
"""A run whose gradients overflow only now and then never has a loss scale as small as this."""
LEAST_WAIT = 0.005
"""Seconds of waiting for data per step below which the log gives no advice."""


class Reporter:
    """Sends metrics to the trackers.

    Args:
        progress: Where the run is.
        train_step: Whose losses, gradient norms and learning rates are reported.
        meters: The losses.
        settings: The recipe's `training` part.
        ranks: The processes of the run; the first one reports.
        memory: Whose figures are reported too.
        own_loader: Whether the batches come from a caller's loader, which settings don't reach.
    """

    def __init__(
        self,
        progress: Progress,
        train_step: TrainStep,
        meters: Meters,
        settings: TrainingSettings,
        ranks: Ranks,
        memory: AdaptiveMemoryManager | None,
        own_loader: bool = False,
    ) -> None:
        self.own_loader = own_loader
        self.progress = progress
        self.train_step = train_step
        self.meters = meters
        self.settings = settings
        self.ranks = ranks
        self.memory = memory
        self.stream = MetricStream()
        """The trackers. None before `start`."""
        self.waited = 0.0
        """Seconds spent waiting for data since the last log line."""
        self._logged_at = (progress.step, time.perf_counter())
        self._began_at = progress.step
        self._advised_on_data = False

    def start(self, stream: MetricStream) -> None:
        """Send metrics to `stream` from now on."""
        self.stream = stream
        self._logged_at = (self.progress.step, time.perf_counter())
        self._began_at = self.progress.step

    def close(self) -> None:
        """Close the trackers."""
        self.stream.close()

    def emit(self, metrics: Mapping[str, float], split: str = "train") -> None:
        """Send metrics of the current step."""
        if self.ranks.is_main:
            self.stream.emit(self.progress.step, split, dict(metrics), epoch=self.progress.epoch)

    def show(self, previews: Mapping[str, Preview]) -> None:
        """Send sounds and pictures of the current step."""
        if self.ranks.is_main and previews:
            self.stream.media(self.progress.step, previews)

    def log(self, time_shares: Mapping[str, float]) -> None:
        """Send the training metrics since the last log line, and where time went; TrainingError when one is not
        finite."""
        step, (before, since) = self.progress.step, self._logged_at
        self.train_step.finite.flush()
        means = self._finite_means(self.meters.latest)
        self.meters.epoch.absorb(self.meters.latest)
        now = time.perf_counter()
        seconds = max(now - since, 1e-9)
        speed = {"steps_per_second": (step - before) / seconds, "samples_per_second": self._samples() / seconds}
        warming_up = before == self._began_at
        if warming_up and self._began_at % self.settings.logging.interval:
            speed = {}  # so few after a resume, the start of loading among them, say nothing of the others
        wait = min(self.waited / seconds, 1.0)
        watched = self.memory is not None and self.settings.logging.system
        self.emit(
            {
                **means,
                **self.train_step.phases.learning_rates(),
                **{name: float(value) for name, value in self.train_step.grad_norms.items()},
                **self._loss_scale(),
                **speed,
                "data_wait": wait,
                **(self.memory.metrics() if self.memory is not None and watched else {}),
                **time_shares,
            }
        )
        self.progress.logged = step
        long = self.waited > LEAST_WAIT * (step - before)
        if long and not warming_up and wait > DATA_LIMIT and not self._advised_on_data:
            self._advised_on_data = True
            logger.warning("%s", slow_data(wait, self.settings, self.own_loader))
        self.waited = 0.0
        self._logged_at = (step, now)

    def _samples(self) -> float:
        """Samples since the last log line, on all ranks."""
        samples, self.train_step.samples = self.train_step.samples, 0
        return self.ranks.sum([float(samples)])[0]

    def end_epoch(self) -> dict[str, float]:
        """Send the means over the epoch and begin the next; returns them, names beginning with `train_`."""
        self.train_step.finite.flush()  # names the batch, which means can't
        self.meters.epoch.absorb(self.meters.latest)
        means = self._finite_means(self.meters.epoch)
        self.meters.epoch.clear()
        if means:
            self.emit(means, split="epoch")
        return {f"train_{name}": value for name, value in means.items()}

    def _finite_means(self, meter: Meter) -> dict[str, float]:
        """Means over all ranks; TrainingError when one is not finite."""
        means = meter.means(self.train_step.weights, self.ranks)
        if not all(math.isfinite(value) for value in means.values()):
            raise TrainingError(
                f"the loss was not finite at step {self.progress.step} or since the log line of step "
                f"{self._logged_at[0]}: {means}. {ADVICE}"
            )
        return means

    def _loss_scale(self) -> dict[str, float]:
        """The loss scale of fp16; TrainingError when it shows that every step overflows."""
        scale = self.train_step.precision.scale
        if scale is not None and scale < LEAST_SCALE and self.settings.amp_loss_scale is None:
            raise TrainingError(
                f"step {self.progress.step}: gradients overflow in fp16 (loss scale {scale:g}), and nothing is learnt. "
                f"{ADVICE}"
            )
        return {} if scale is None else {"grad_scale": scale}


def slow_data(wait: float, settings: TrainingSettings, own_loader: bool = False) -> str:
    """Advice for a run that waits for data for the share `wait` of the time."""
    performance = settings.performance
    remedies = [
        f"set training.performance.num_workers (now {performance.num_workers}) to 2 to 4, or lower where the "
        "processors are all busy",
        "prepare the corpus with `phonate data prepare`",
        "raise training.batch_size if there is memory",
    ]
    if own_loader:
        remedies = [
            "give the DataLoader num_workers of 2 to 4, or fewer where all cores are busy, and persistent_workers=True",
            "move slow work out of the data set, into files prepared beforehand",
            "raise the loader's batch_size if there is memory",
        ]
    elif performance.profile_batches is None:
        remedies.append("see where the time goes with training.performance.profile_batches=100")
    return f"slow data: {wait:.0%} of the time went into waiting for batches; {', '.join(remedies)}"


def report_profile(profile: Profile | None, train_step: TrainStep, run: Run, memory_share: float) -> None:
    """Log a profile, with advice, and write it to RUN/profile/interbatch-rankN.json. None: nothing was profiled."""
    if profile is None:
        return
    advice = profile.advice(train_step.precision.name, train_step.device.type, memory_share)
    (run.path / "profile").mkdir(exist_ok=True)
    report = {**dataclasses.asdict(profile), "advice": advice}
    run.write_json(f"profile/interbatch-rank{train_step.ranks.rank}.json", report)
    if train_step.ranks.is_main:
        logger.info("profile of %d steps\n%s\n%s", profile.steps, profile.table(), "\n".join(advice))


def describe(run: Run, train_step: TrainStep, hyperparameters: Mapping[str, Any], recipe_yaml: str) -> None:
    """Write to the run's folder what it is, and log the sizes that matter."""
    settings, model, ranks = train_step.settings, train_step.model, train_step.ranks
    every, trainable = count_parameters(model), count_parameters(model, trainable_only=True)
    logger.info(
        "%s: %.2f million trainable parameters%s, on %s in %s; %s",
        hyperparameters.get("task", "model"),
        trainable / 1e6,
        f" of {every / 1e6:.2f} million" if trainable < every else "",
        train_step.device,
        train_step.precision.name,
        effective_batch(settings, ranks.world_size),
    )
    if ranks.is_main:
        run.describe(hyperparameters, recipe_yaml, model_summary(model))


def told_end(settings: TrainingSettings, step: int, epoch: int) -> str:
    """What is said of a run that is resumed after its last step, and how it is trained on; "" before that."""
    steps, epochs = settings.max_steps, settings.epochs
    name, last, most = ("epochs", epoch, epochs) if steps is None else ("max_steps", step, steps)
    if last < most:
        return ""
    state = f"past training.{name}={most} already, so nothing is trained" if last > most else "finished"
    longer = f"add training.{name}={2 * last} to train as long again (any number above {last} trains on)"
    return f"this run is {state}; {longer}"


def effective_batch(settings: TrainingSettings, world_size: int) -> str:
    """What one optimizer step learns from, all ranks together."""
    times = settings.gradient_accumulation_steps
    if settings.max_duration is not None:
        total, part = f"at most {settings.max_duration * times:g} s", f"{settings.max_duration:g} s"
    elif settings.max_length is not None:
        total, part = f"at most {settings.max_length * times} tokens", str(settings.max_length)
    else:
        total, part = number_of(settings.batch_size * times, "sample"), str(settings.batch_size)
    accumulation = f" ({times} times {part}, accumulated)" if times > 1 else ""
    return f"each step learns from {total}{accumulation}{f', over {world_size} ranks' if world_size > 1 else ''}"
