"""Losses and gradients that are not finite (`training.not_finite`): found, named, and left out or refused."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from phonate.compute.distributed import Ranks
from phonate.config.errors import TrainingError
from phonate.training.task import CountedTerms

GRADIENT = "the gradient norm"
ADVICE = (
    "Lower training.optimizer.lr, set training.mixed_precision=fp32, or look at the recordings with phonate data check"
)
MOST_LEFT_OUT = 10
"""So many steps in a row, or returns to a checkpoint, end a run: it learns nothing."""


@dataclass(frozen=True)
class NotFinite:
    """A loss or a gradient norm that is not finite."""

    what: str
    value: float
    step: int
    """The step, as it is counted in the log: 1 is the first."""
    ids: Sequence[str]
    """The samples of the batch, those of all ranks where ranks look together."""
    terms: Sequence[str] = ()
    """The loss terms that are not finite. Empty: only their sum is not, or the gradient."""

    def __str__(self) -> str:
        shown = ", ".join(self.ids[:8]) + (f" and {len(self.ids) - 8} more" if len(self.ids) > 8 else "")
        where = "" if self.what == GRADIENT else f"{', '.join(self.terms) or 'the sum of terms'}; "
        return f"{self.what} is {self.value} at step {self.step} ({where}batch: {shown})"


class NotFiniteError(TrainingError):
    """A loss or a gradient is not finite, and the step is not left out."""

    def __init__(self, problem: NotFinite) -> None:
        super().__init__(f"{problem}. {ADVICE}")
        self.problem = problem


@dataclass(frozen=True)
class _Unread:
    """A number on the device."""

    what: str
    step: int
    ids: Sequence[str]
    value: Tensor
    terms: Mapping[str, Tensor]

    def read(self) -> NotFinite:
        bad = [name for name, total in self.terms.items() if not total.isfinite().all()]
        return NotFinite(self.what, self.value.item(), self.step + 1, self.ids, bad)


class FiniteCheck:
    """Checks losses and gradient norms: at once on a CPU; on other devices, where reading a number would wait for the
    device, and on several ranks, which must agree, they are collected until `flush`.

    Args:
        device: Where the numbers are.
        policy: `training.not_finite`.
        ranks: The processes of the run.
    """

    def __init__(self, device: torch.device, policy: str = "stop", ranks: Ranks | None = None) -> None:
        self.skips = policy == "skip"
        """Whether steps are left out in which a number is not finite."""
        self.report: Callable[[NotFinite], None] = lambda problem: None
        """Called with what was found in each step that was left out."""
        self._ranks = ranks or Ranks()
        self._reads_at_once = device.type == "cpu" and self._ranks.world_size == 1
        self._unread: list[_Unread] = []
        self._latest = self._in_a_row = 0

    def loss(self, value: Tensor, step: int, ids: Sequence[str], terms: CountedTerms) -> Tensor:
        """Check the loss of a micro-batch of step `step` (from 0), which is made of `terms`; returns what the backward
        pass begins from. Raises NotFiniteError."""
        if self._reads_at_once and math.isfinite(value.item()):
            return value
        unread = _Unread(
            "loss", step, ids, value.detach(), {name: total.detach() for name, (total, _) in terms.items()}
        )
        if not self._reads_at_once:
            self._unread.append(unread)
            # exactly `value` where that is finite; else every gradient is NaN, on all ranks, whatever the graph
            return value * (1.0 + 0.0 * value.detach()) if self.skips else value
        self._react(unread.read())
        return value * math.nan

    def gradient(self, norm: Tensor, step: int, ids: Sequence[str]) -> Tensor | bool:
        """Check the norm of the gradients of a phase, the same on all ranks; returns whether they must not be used,
        where that is not known on the host as a scalar on the device. Raises NotFiniteError."""
        if self._reads_at_once and math.isfinite(norm.item()):
            return False
        unread = _Unread(GRADIENT, step, ids, norm.detach(), {})
        if not self._reads_at_once:
            self._unread.append(unread)
            return ~norm.isfinite() if self.skips else False
        if self._latest != step + 1:  # else its loss was reported
            self._react(unread.read())
        return True

    def counted(self, terms: CountedTerms) -> CountedTerms:
        """Loss terms as they are added up: those that are not finite do not count in steps that may be left out."""
        if not self.skips:
            return terms
        if self._reads_at_once:
            return {name: (total, count) for name, (total, count) in terms.items() if math.isfinite(total.item())}
        finite = {name: total.detach().isfinite() for name, (total, _) in terms.items()}
        return {
            name: (torch.where(finite[name], total.detach(), 0.0), finite[name].float() * count)
            for name, (total, count) in terms.items()
        }

    def flush(self) -> None:
        """Check everything collected since the last call, which waits for the device; all ranks call it together.
        Raises NotFiniteError for the first number that is not finite, on all ranks."""
        unread, self._unread = self._unread, []
        problems: list[NotFinite] = []
        if unread and not torch.stack([one.value.float() for one in unread]).isfinite().all():
            problems = [one.read() for one in unread if not one.value.isfinite()]
        if self._ranks.world_size > 1:
            problems = _joined(self._ranks.gather([vars(one) for one in problems]))
        for one in problems:
            if not (self.skips and one.what == GRADIENT and self._latest == one.step):
                self._react(one)

    def _react(self, problem: NotFinite) -> None:
        if not self.skips:
            raise NotFiniteError(problem)
        if problem.step != self._latest:
            self._in_a_row = self._in_a_row + 1 if problem.step == self._latest + 1 else 1
            self._latest = problem.step
        self.report(problem)
        if self._in_a_row >= MOST_LEFT_OUT:
            raise TrainingError(f"{problem}, as in the {MOST_LEFT_OUT - 1} steps before: nothing is learnt. {ADVICE}")


def _joined(by_rank: Sequence[Sequence[Mapping[str, Any]]]) -> list[NotFinite]:
    """What the ranks have found, by step, with the samples of all that are concerned."""
    by_place: dict[tuple[int, bool], NotFinite] = {}
    for one in (NotFinite(**fields) for rank in by_rank for fields in rank):
        place = one.step, one.what == GRADIENT
        before = by_place.get(place, one)
        ids, terms = dict.fromkeys([*before.ids, *one.ids]), dict.fromkeys([*before.terms, *one.terms])
        by_place[place] = replace(before, ids=list(ids), terms=list(terms))
    return [by_place[place] for place in sorted(by_place)]
