"""Training within a time limit, as a person would do it: `phonate train` as a process, stopped by a signal and resumed.

The number of steps, by which the learning rate falls, follows from the clock. A recipe of few steps begins with those;
of others it is estimated by a dry run. At the stop it is estimated again from the steps that were really done, and cut
short when the limit is reached all the same.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from phonate.compute.system import OWN_GROUP, STOP, STOP_EVENT
from phonate.config.errors import PhonateError, RecipeError
from phonate.config.resolve import parse_overrides
from phonate.training.checkpoints import listing
from phonate.training.plan import Plan, plan
from phonate.training.run import Run
from phonate.training.tracking import read_metrics

Say = Callable[[str], None]

_MIN_STEPS, _MAX_STEPS = 20, 4000
_FEW_STEPS = 200
"""Steps of a recipe that are begun with at once: to measure the speed first would take as long as many of them."""
_STOPPED = 128 + STOP
_POLL_SECONDS = 0.2
_LINES = 25
"""Lines of training metrics."""
_BEHIND = 0.75
"""Share of the planned steps below which a plan is made anew."""
_FINISH_STEPS = 0.05
"""Share of the steps so far that a run adds when it is out of time, so that its learning rate still falls."""


def as_value(text: object) -> str:
    """As the value of an override for a text, in quotes only where YAML would read something else: `null`, `[a]`."""
    plain = str(text)
    try:
        (override,) = parse_overrides([f"text={plain}"])
    except RecipeError:
        return json.dumps(plain, ensure_ascii=False)
    return plain if override.for_text().value == plain else json.dumps(plain, ensure_ascii=False)


@dataclass(frozen=True)
class Limit:
    """How long training may take."""

    seconds: float
    """Of all training together."""
    deadline: float | None = None
    """The time (`time.monotonic`) at which training must be over. None: there is none."""

    def share(self, part: float, of_the_rest: float = 1.0) -> float:
        """`part` of the seconds, but at most the share `of_the_rest` of the time until the deadline."""
        seconds = part * self.seconds
        if self.deadline is not None:
            seconds = min(seconds, of_the_rest * (self.deadline - time.monotonic()))
        return max(3.0, seconds)


@dataclass(frozen=True)
class Machine:
    """What the demo computes on."""

    device: str = "cpu"
    threads: int | None = None
    """Threads of the processor. None: torch's choice, which is all cores; beside other programs, where threads wait for
    each other, a training step then takes many times as long as with one."""


@dataclass(frozen=True)
class Training:
    """A run of the demo.

    Args:
        recipe: its name and overrides.
        output: the run's folder.
        machine: what to compute on.
    """

    recipe: Sequence[str]
    output: Path
    machine: Machine

    @cached_property
    def plan(self) -> Plan:
        """What is trained."""
        return plan(self.recipe[0], self.recipe[1:], device=self.machine.device, output=self.output)

    def stopped_and_resumed(self, limit: Limit, part: float, say: Say) -> None:
        """Train for `part` of the limit, with a stop at half the time and a resume."""
        self.plan.check()
        step_seconds = 0.0 if self._own_steps else self._seconds_per_step(say)
        seconds = limit.share(part)
        steps = self._own_steps or _affordable(seconds, step_seconds)
        deadline = time.monotonic() + seconds
        command = self._command(steps, steps)
        limits = f"{steps} steps or {seconds:.0f} s; half way the demo stops it by SIGTERM, as a cluster would"
        say(f"\ntraining for at most {limits}:\n  phonate {shlex.join(command)}\n")
        half_time = deadline - seconds / 2
        half = _watch(command, self.output, lambda now, step: now >= half_time or step >= steps // 2)
        self._resume(half, steps, deadline, say)

    def straight(self, limit: Limit, part: float, say: Say) -> None:
        """Train for `part` of the limit, stopping only where half the time did much less than half the steps."""
        self.plan.check()
        step_seconds = self._seconds_per_step(say)
        seconds = limit.share(part, of_the_rest=part)
        steps = _affordable(seconds, step_seconds)
        command = self._command(steps, steps)
        say(f"\ntraining for about {seconds:.0f} s, {steps} steps:\n  phonate {shlex.join(command)}\n")
        deadline = time.monotonic() + seconds
        half_time, behind = deadline - seconds / 2, _BEHIND * steps / 2
        half = _watch(command, self.output, lambda now, step: now >= deadline or (now >= half_time and step < behind))
        if not half.finished:
            self._resume(half, steps, deadline, say)

    def _resume(self, half: _Progress, planned: int, deadline: float, say: Say) -> None:
        """Continue after a stop with as many steps as the time left allows, at the speed so far."""
        left = deadline - time.monotonic() - half.startup
        steps = half.step + max(_MIN_STEPS // 2, min(_MAX_STEPS, round(left * half.rate)))
        steps = min(steps, self._own_steps or steps)
        command = self._command(steps, planned)
        fewer = f"; the time left allows {steps} steps, not {planned}"
        say(f"\nresuming{' by the same command' if steps == planned else fewer}:\n  phonate {shlex.join(command)}\n")
        self._finish(steps, planned, deadline, say)

    def _finish(self, steps: int, planned: int, deadline: float, say: Say) -> None:
        """Train to step `steps`; when time runs out first, stop it and let it do a few last steps."""
        progress = _watch(self._command(steps, planned), self.output, lambda now, _: now >= deadline)
        if progress.finished or progress.step >= steps:
            return
        last = progress.step + max(2, round(_FINISH_STEPS * progress.step))
        last = min(last, self._own_steps or last)
        say(f"\nout of time at step {progress.step}; finishing at step {last}\n")
        _watch(self._command(last, planned), self.output)

    @cached_property
    def _own_steps(self) -> int | None:
        """The recipe's steps, where they are few."""
        steps = self.plan.settings.max_steps
        return steps if steps is not None and steps <= _FEW_STEPS else None

    def _command(self, steps: int, planned: int) -> list[str]:
        """The command for `steps` steps; intervals follow the number that was `planned` at first."""
        interval = max(10, planned // 10)
        measured = [
            f"training.scheduler.warmup_steps={planned // 20}",
            f"training.validation.interval={interval}",
            f"training.checkpoint.interval={interval}",
        ]
        return [
            "train",
            *self.recipe,
            *([] if steps == self._own_steps else [f"training.max_steps={steps}"]),
            *([] if self._own_steps else measured),
            f"training.logging.interval={max(5, planned // _LINES)}",
            "training.logging.system=false",
            *([f"training.performance.threads={self.machine.threads}"] if self.machine.threads else []),
            "--device",
            self.machine.device,
            "--output",
            str(self.output),
            "--resume",  # also at the start, for the folder holds the corpus
            "auto",
        ]

    def _seconds_per_step(self, say: Say) -> float:
        """The seconds of a training step, by a dry run. Raises InputError where the recipe can't be trained."""
        say("preparing the recordings and measuring the speed of training")
        command = [*self._command(_MAX_STEPS, 0), "--dry-run", "--json"]
        finished = subprocess.run(_phonate(command), stdout=subprocess.PIPE, text=True, check=False)
        if finished.returncode != 0:
            raise PhonateError("the dry run failed; its error is printed above")
        return float(json.loads(finished.stdout)["metrics"]["seconds_per_step"])


def _affordable(seconds: float, step_seconds: float) -> int:
    return max(_MIN_STEPS, min(_MAX_STEPS, round(seconds / step_seconds)))


@dataclass(frozen=True)
class _Progress:
    """What a training process did."""

    finished: bool
    """Whether it ended by itself."""
    step: int
    startup: float
    """Seconds before its first steps were done."""
    rate: float
    """Steps a second after that, validations and saves included."""


def _phonate(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "phonate", *arguments]


def _watch(
    command: Sequence[str], output: Path, stops: Callable[[float, int], bool] = lambda now, step: False
) -> _Progress:
    """Run a training command; have it stop when `stops(time.monotonic(), step)`, and wait for its save."""
    started = time.monotonic()
    before = first = reached = max(_reached(output), _saved(output))
    first_seen = started
    # Its last line says what to do next, which the demo says itself.
    with subprocess.Popen(_phonate(command), stdout=subprocess.DEVNULL, creationflags=OWN_GROUP) as training:
        try:
            stopping = False
            while training.poll() is None:
                now, reached = time.monotonic(), _reached(output)
                if first == before and reached > before:
                    first, first_seen = reached, now
                if not stopping and reached > before and stops(now, reached):  # with at least one step to save
                    training.send_signal(STOP_EVENT)
                    stopping = True
                time.sleep(_POLL_SECONDS)
        except BaseException:
            training.terminate()
            raise
    # A process that is done training ends by the signal itself.
    if training.returncode not in ({0, _STOPPED, -STOP} if stopping else {0}):
        raise PhonateError("training failed; its error is printed above")
    step = listing.scan(output / "checkpoints")[-1].step
    elapsed = time.monotonic() - first_seen
    rate = (step - first) / elapsed if step > first else (step - before) / (time.monotonic() - started)
    return _Progress(training.returncode != _STOPPED, step, first_seen - started, rate)


def _saved(output: Path) -> int:
    """The step of the last checkpoint, which may be ahead of the metrics."""
    return max((one.step for one in listing.scan(output / "checkpoints")), default=0)


def _reached(output: Path) -> int:
    return max((int(line["step"]) for line in read_metrics(Run(output).metrics)), default=0)
