"""How long a run will still take, by the wall time that it took so far."""

from __future__ import annotations

from collections.abc import Iterable

from phonate.training.ledger import duration

UNKNOWN = "–"
LEAST_STEPS = 5
LEAST_SECONDS = 5.0
"""Of which steps tell how long others take."""


class TimeLeft:
    """Estimates the time until a run ends: steps, waiting and saves by their mean, and the validations to come.

    The first step of a process warms it up and does not count. Where steps become dearer later, as with a discriminator
    that joins in, or no validation has shown yet how long one takes, the estimate is a lower bound, and says so.

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
        self._slowest = 0.0
        """Seconds of a step before they became dearer the last time."""

    def step(self, step: int, now: float) -> None:
        """`step` steps are done at the time `now` in seconds."""
        if self._first is None or step <= self._latest[0]:  # or training went back to a checkpoint
            self._first = (step, now)
        elif any(self._first[0] <= start < step for start in self._dearer_from):
            self._slowest = max(self._slowest, self._seconds_per_step() or 0.0)
            self._first = (step, now)
        self._latest = (step, now)

    def validated(self, seconds: float) -> None:
        """A validation after the latest step took so long."""
        self._validations.append(seconds)
        if self._first is not None:
            self._first = (self._first[0], self._first[1] + seconds)

    def _seconds_per_step(self) -> float | None:
        """The mean since the measurement began; None where that is too short."""
        if self._first is None:
            return None
        steps, seconds = self._latest[0] - self._first[0], self._latest[1] - self._first[1]
        return seconds / steps if steps >= LEAST_STEPS and seconds >= LEAST_SECONDS else None

    def __str__(self) -> str:
        """`9.8 min`, `at least 9.8 min` for a lower bound, or an en dash where it can't be told yet."""
        done, measured = self._latest[0], self._seconds_per_step()
        each = measured or self._slowest
        if not each:
            return UNKNOWN
        validations = self._validations_from(done)
        mean = sum(self._validations) / len(self._validations) if self._validations else 0.0
        unknown = validations and not self._validations
        dearer = measured is None or any(start >= done for start in self._dearer_from if start < self._total)
        seconds = (self._total - done) * each + validations * mean
        return f"{'at least ' if unknown or dearer else ''}{duration(seconds)}"

    def _validations_from(self, step: int) -> int:
        """Validations that follow when `step` steps are done, that after this step included."""
        if self._interval is None:
            return 0
        due = self._total // self._interval - (step - 1) // self._interval
        return due + (self._total % self._interval > 0)
