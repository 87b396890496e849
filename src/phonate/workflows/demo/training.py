"""How the demo trains: as a process of its own, so that it is stopped as a person or a scheduler would stop it.

Before and after the stop it is the same command.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from phonate.config.errors import PhonateError
from phonate.training.run import Run

Say = Callable[[str], None]

_FEWEST_STEPS_A_MINUTE, _MOST_STEPS = 75, 4000
"""However slow the dry run was: other programs may have held it up."""
_STOPPED = 128 + signal.SIGTERM
_POLL_SECONDS = 0.2


def quoted(text: object) -> str:
    """As an override's value, whatever it looks like: a speaker may be called 1234."""
    return json.dumps(str(text), ensure_ascii=False)


def train_stop_resume(recipe: Sequence[str], output: Path, minutes: float, say: Say) -> None:
    """Train `recipe` (its name and overrides) to about the middle, stop it by SIGTERM, and resume it."""
    steps = affordable_steps(recipe, output, minutes, say)
    command = _command(recipe, output, steps)
    say(f"\ntraining for {steps} steps:\n  phonate {' '.join(command)}\n")
    stopped_at = _train_and_stop(command, output, steps // 2)
    say(f"\nstopped by SIGTERM at step {stopped_at}; the same command goes on from there\n")
    _run(command)


def train_through(recipe: Sequence[str], output: Path, minutes: float, say: Say) -> None:
    """Train `recipe` (its name and overrides) without a stop."""
    command = _command(recipe, output, affordable_steps(recipe, output, minutes, say))
    say(f"\ntraining:\n  phonate {' '.join(command)}\n")
    _run(command)


def _command(recipe: Sequence[str], output: Path, steps: int) -> list[str]:
    interval = max(20, steps // 10)
    return [
        "train",
        *recipe,
        f"training.max_steps={steps}",
        f"training.scheduler.warmup_steps={steps // 20}",
        f"training.validation.interval={interval}",
        f"training.checkpoint.interval={interval}",
        f"training.logging.interval={max(5, steps // 100)}",
        "--output",
        str(output),
        "--resume",
        "auto",
    ]


def affordable_steps(recipe: Sequence[str], output: Path, minutes: float, say: Say) -> int:
    """How many steps this machine does in `minutes`, as a dry run says."""
    say("preparing the recordings and measuring how fast this machine trains")
    command = ["train", *recipe, "training.scheduler.warmup_steps=0", "--dry-run", "--json", "--output", str(output)]
    finished = subprocess.run(_phonate(command), stdout=subprocess.PIPE, text=True, check=False)
    if finished.returncode != 0:
        raise PhonateError("the dry run failed; what it said is above")
    seconds = json.loads(finished.stdout)["metrics"]["seconds_per_step"]
    steps = round(60 * minutes / seconds, -1)
    return int(min(max(steps, _FEWEST_STEPS_A_MINUTE * minutes, 20), _MOST_STEPS))


def _phonate(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "phonate", *arguments]


def _run(command: Sequence[str]) -> None:
    if subprocess.run(_phonate(command), check=False).returncode != 0:
        raise PhonateError("training failed; what it said is above")


def _train_and_stop(command: Sequence[str], output: Path, step: int) -> int:
    """Start training, send SIGTERM once `step` is done, and wait; returns the step that was saved."""
    with subprocess.Popen(_phonate(command)) as training:
        try:
            while training.poll() is None and _reached(output) < step:
                time.sleep(_POLL_SECONDS)
            training.send_signal(signal.SIGTERM)
            code = training.wait()
        except BaseException:
            training.terminate()
            raise
    if code != _STOPPED:
        raise PhonateError(f"training ended with exit code {code} before it was stopped; what it said is above")
    from phonate.training.checkpoints import listing

    return listing.scan(output / "checkpoints")[-1].step


def _reached(output: Path) -> int:
    """The last step that the metrics tell of."""
    from phonate.training.tracking.jsonl import read_metrics

    return max((int(line["step"]) for line in read_metrics(Run(output).metrics)), default=0)
