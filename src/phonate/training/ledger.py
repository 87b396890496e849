"""Where the time of a run went, over all its processes: RUN/time.jsonl; and how long it will still take.

Each process of a run begins with a line and adds one at each log line, validation and save, with its seconds so far by
kind, and every quarter of a minute in between. So little is unknown after a kill: what came after the last line counts
as idle.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from phonate.config.errors import TrainingError
from phonate.config.words import duration

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Line:
    """What a process adds to the file."""

    began: float
    step: int
    seconds: dict[str, float]


_LINE = TypeAdapter(_Line)

KINDS = {
    "start": "preparing",  # until the first step: transcripts, recordings, an aligner, model, checks
    "recover": "resuming",  # the same in a process that resumes
    "train": "training",  # steps
    "data": "waiting for data",
    "validate": "validating",
    "save": "saving",  # checkpoints, as far as training waited for them
    "compile": "compiling",  # by torch.compile
    "lost": "done in vain",  # after the checkpoint from which a later process went on
    "idle": "not running",
}
"""What a second of a run is, in the order in which it is told, and in words."""
FILE = "time.jsonl"
OFTEN = 15.0
"""Seconds after which a line is due, where nothing else has written one."""


class Ledger:
    """Assigns the seconds of this process to kinds.

    Args:
        path: The file, RUN/time.jsonl. None: nothing is kept or written, as in ranks other than the first.
        began: When the process began its work (`time.time`).
        compiles: Whether the model is compiled, in the middle of steps.
    """

    def __init__(self, path: Path | None, began: float | None = None, compiles: bool = False) -> None:
        now = time.time()
        self._path = path
        self._began = now if began is None else began
        self._seconds: dict[str, float] = {}
        self._last = time.perf_counter() - (now - self._began)
        self._compiling = _compile_seconds() if compiles else None
        self._before: dict[str, float] = {}
        self._written = 0.0
        self.begun = False
        """Whether the first line is written: something was, or will be, trained."""

    def mark(self, kind: str) -> None:
        """Assign the time since the last mark to `kind`."""
        now = time.perf_counter()
        seconds = now - self._last
        if kind == "train" and self._compiling is not None:
            before, self._compiling = self._compiling, _compile_seconds()
            compiled = min(self._compiling - before, seconds)
            self._seconds["compile"] = self._seconds.get("compile", 0.0) + compiled
            seconds -= compiled
        self._seconds[kind] = self._seconds.get(kind, 0.0) + seconds
        self._last = now

    def restart(self, step: int) -> None:
        """Go on from the checkpoint of step `step`, to which this process has returned, as a new process would."""
        self.mark("recover")
        recovered = self._seconds.pop("recover")
        now = time.time()
        self._began, self._seconds = now - recovered, {"recover": recovered}
        self.begin(step)

    def begin(self, step: int) -> None:
        """Write the first line of this process, which goes on from step `step`."""
        self.begun = True
        self.write(step)
        if self._path is not None:
            total = read(self._path, logger.warning)
            self._before = {kind: total.get(kind, 0.0) - self._seconds.get(kind, 0.0) for kind in KINDS}

    def shares(self) -> dict[str, float]:
        """Percent of the time since the run began, all processes together, by `time/<kind>`; they add up to 100."""
        total = {kind: self._before.get(kind, 0.0) + self._seconds.get(kind, 0.0) for kind in KINDS}
        whole = sum(total.values())
        return {f"time/{kind}": 100.0 * value / whole for kind, value in total.items() if value > 0.0}

    def write_if_due(self, step: int) -> None:
        """Add a line where the last one was a while ago; the time since the last mark went into steps."""
        if time.perf_counter() - self._written >= OFTEN:
            self.mark("train")
            self.write(step)

    def write(self, step: int) -> None:
        """Add a line: `step` steps are done. None of a process that did not begin: a checkpoint was refused, say."""
        if self._path is None or not self.begun:
            return
        self._written = self._last
        line = _Line(self._began, step, self._seconds)
        try:
            with self._path.open("ab") as file:
                file.write(json.dumps(asdict(line)).encode() + b"\n")
        except OSError as error:
            raise TrainingError(f"{self._path}: can't write: {error.strerror}; fix this, then resume") from error


def _compile_seconds() -> float:
    """Seconds that torch's compiler has taken in this process."""
    from torch._dynamo.utils import cumulative_time_spent_ns

    return cumulative_time_spent_ns.get("entire_frame_compile", 0) / 1e9  # the others are parts of it


def read(path: Path, tell: Callable[[str], None] = logger.debug) -> dict[str, float]:
    """Seconds by kind, all processes together, from RUN/time.jsonl: they add up to the time from the first process's
    beginning to the last line. Empty where there is no file. `tell`: is told of lines that can't be read."""
    total: dict[str, float] = {}
    done: list[tuple[int, dict[str, float]]] = []  # steps done after a stretch, and its seconds
    began = end = None
    before: Mapping[str, float] = {}
    for line in _lines(path, tell):
        if not {"start", "recover"} & line.seconds.keys():  # earlier versions had lines of a resume that was refused
            continue
        if line.began != began:
            if end is not None:
                total["idle"] = total.get("idle", 0.0) + max(0.0, line.began - end)
                for number, (step, seconds) in enumerate(done):
                    if step > line.step:
                        done[number] = (line.step, {"lost": sum(seconds.values())})
            began, before = line.began, {}
        done.append((line.step, {kind: value - before.get(kind, 0.0) for kind, value in line.seconds.items()}))
        before, end = line.seconds, line.began + sum(line.seconds.values())
    for _, seconds in done:
        for kind, value in seconds.items():
            total[kind] = total.get(kind, 0.0) + value
    return {kind: total[kind] for kind in KINDS if total.get(kind, 0.0) > 0.0}


def newest_step(path: Path) -> int:
    """Steps that were done at the last line; 0 where there is none."""
    return max((line.step for line in [*_lines(path, logger.debug)][-1:]), default=0)


def _lines(path: Path, tell: Callable[[str], None]) -> Iterator[_Line]:
    if not path.is_file():
        return
    for number, text in enumerate(path.read_bytes().split(b"\n"), start=1):
        if not text:
            continue
        try:
            yield _LINE.validate_json(text)
        except ValidationError:  # the process was killed while it wrote, or the file was damaged
            tell(f"{path}:{number}: not a line of times; skipped")


def running(seconds: Mapping[str, float]) -> float:
    """The seconds in which training was running."""
    return sum(value for kind, value in seconds.items() if kind != "idle")


def told(seconds: Mapping[str, float]) -> str:
    """`1 h 23 min, of which 81 % training, 12 % validating`: what took at least half a percent of the time while
    training was running; and for how long it was not."""
    whole = running(seconds)
    shares = sorted(((value / whole, kind) for kind, value in seconds.items() if kind != "idle"), reverse=True)
    parts = (f"{100 * share:.0f} % {KINDS[kind]}" for share, kind in shares if share > 0.005)
    return f"{duration(whole)}, of which {', '.join(parts)}{idle(seconds)}"


def idle(seconds: Mapping[str, float]) -> str:
    """How long training was not running between beginning and end, as the rest of a sentence; empty for hardly."""
    pause = seconds.get("idle", 0.0)
    return f" (not running for {duration(pause)} in between)" if pause > 0.005 * running(seconds) else ""


# --------------------------- How long a run will still take, by the wall time that it took so far

UNKNOWN = "–"
LEAST_STEPS = 5
LEAST_SECONDS = 5.0
"""Of which steps tell how long others take."""


class TimeLeft:
    """Estimates the time until a run ends: steps, waiting and saves by their mean, and the validations to come.

    The first step of a process warms it up and does not count. Where steps become dearer later, as with a discriminator
    that joins in, or no validation has shown yet how long one takes, the estimate leaves that out, and says so.

    Args:
        total_steps: Optimizer steps of the whole run.
        validation_interval: Steps from one validation to the next; another one ends the run. None: there is none.
        dearer_from: Steps (from 0) from which on more is computed in each.
    """

    def __init__(
        self, total_steps: int, validation_interval: int | None = None, dearer_from: Iterable[int] = ()
    ) -> None:
        self._total = total_steps
        self._interval = validation_interval
        self._dearer_from = sorted(dearer_from)
        self._validations: list[float] = []
        """Seconds of each."""
        self._first: tuple[int, float] | None = None
        """Steps done when the measurement began, and when that was, later by what validations took since."""
        self._latest = (0, 0.0)
        """The same of the latest step."""

    def step(self, step: int, now: float) -> None:
        """`step` steps are done at the time `now` in seconds."""
        back = step <= self._latest[0]  # to a checkpoint
        if self._first is None or back or any(self._first[0] <= start < step for start in self._dearer_from):
            self._first = (step, now)
        self._latest = (step, now)

    def validated(self, seconds: float) -> None:
        """A validation after the latest step took so long."""
        self._validations.append(seconds)
        if self._first is not None:
            self._first = (self._first[0], self._first[1] + seconds)

    @property
    def measured(self) -> tuple[int, float]:
        """Steps since the measurement began, and the seconds of all of them."""
        if self._first is None:
            return 0, 0.0
        return self._latest[0] - self._first[0], self._latest[1] - self._first[1]

    def _seconds_per_step(self) -> float | None:
        """The mean since the measurement began; None where that is too short."""
        steps, seconds = self.measured
        return seconds / steps if steps >= LEAST_STEPS and seconds >= LEAST_SECONDS else None

    def __str__(self) -> str:
        """`9.8 min`, `9.8 min at this speed` before steps become dearer, `9.8 min without validation` before the first,
        or an en dash where it can't be told yet."""
        done, each = self._latest[0], self._seconds_per_step()
        if each is None:
            return UNKNOWN
        validations = self._validations_from(done)
        mean = sum(self._validations) / len(self._validations) if self._validations else 0.0
        unknown = validations > 0 and not self._validations
        dearer = any(done <= start < self._total for start in self._dearer_from)
        seconds = (self._total - done) * each + validations * mean
        if unknown and seconds < 0.5:
            return UNKNOWN
        left_out = " without validation" if unknown else ""
        return f"{duration(seconds)}{' at this speed' if dearer else ''}{left_out}"

    def _validations_from(self, step: int) -> int:
        """Validations that follow when `step` steps are done, that after this step included."""
        if self._interval is None:
            return 0
        due = self._total // self._interval - (step - 1) // self._interval
        return due + (self._total % self._interval > 0)
