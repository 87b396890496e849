"""Validation: the loss over every validation sample, then the task's own metrics."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from phonate.compute.device import out_of_memory
from phonate.compute.distributed import standing_in
from phonate.config.metrics import LOSS, NEWEST, plain
from phonate.data.loading import MicroBatch
from phonate.training.ema import EMA
from phonate.training.generators import seed_torch
from phonate.training.memory import MicroBatchState
from phonate.training.meters import Meter
from phonate.training.metrics import Best, MetricOption, check_measured
from phonate.training.setup import Source
from phonate.training.signals import Signals, StopNow
from phonate.training.step import TrainStep
from phonate.training.task import CountedTerms, Dataset, Preview, counted

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Validation:
    """The result of a validation."""

    metrics: dict[str, float]
    averaged: bool
    """Whether they are those of the averaged weights."""

    def by_name(self) -> dict[str, float]:
        """The metrics under every name that settings may use: `loss` is `val_loss` too."""
        return {**{f"val_{name}": value for name, value in self.metrics.items()}, **self.metrics}


class Validator:
    """Validates the model of a run.

    Args:
        train_step: Whose model, losses and number format are used; the ranks share the work.
        source: Validation batches.
        dataset: The data set for `Task.evaluate`. None: the batches come from a caller's loader.
        ema: The average of the weights.
        signals: What may end a validation.
        options: Options that name metrics.
        show: Called with the task's previews.
    """

    def __init__(
        self,
        train_step: TrainStep,
        source: Source,
        dataset: Dataset | None,
        ema: EMA | None,
        signals: Signals,
        options: Sequence[MetricOption],
        show: Callable[[Mapping[str, Preview]], None],
    ) -> None:
        self.train_step = train_step
        self.task, self.model, self.ranks = train_step.task, train_step.model, train_step.ranks
        self.source = source
        self.dataset = dataset
        self.ema = ema
        self.signals = signals
        self.options = options
        self._terms_seen: set[str] = set()
        self.show = show

    def __call__(self, step: int, best: Best) -> Validation:
        """Validate the weights that `training.ema.validate_with` selects, after `step` optimizer steps.

        With `better` raw and averaged weights are validated and those better by the metric of `best`, or by the loss
        where the newest is the best, are reported.
        Raises UnknownMetricError.
        """
        choice = "raw" if self.ema is None else self.ema.settings.validate_with
        first = self._measure(step, averaged=choice != "raw")
        check_measured(self.options, first, self._terms_seen)
        if choice != "better":
            return Validation(first, averaged=choice != "raw")
        raw = self._measure(step, averaged=False, previews=False)
        newest = best.metric == NEWEST
        name = LOSS if newest else plain(best.metric)
        higher = best.greater_is_better and not newest
        better = first[name] >= raw[name] if higher else first[name] <= raw[name]
        taken = "average" if better else "newest"
        logger.info(
            "step %d: %s is %.6g by the average of the latest weights, %.6g by the newest; the %s will be used",
            *(step, name, first[name], raw[name], taken),
        )
        return Validation(first if better else raw, averaged=better)

    def _measure(self, step: int, averaged: bool, previews: bool = True) -> dict[str, float]:
        weights = self.ema.applied() if self.ema is not None and averaged else contextlib.nullcontext()
        self.model.eval()
        try:
            with weights, torch.no_grad(), self.signals.leavable():
                metrics = self._losses(step)
                if self.dataset is not None:
                    metrics.update(self._evaluate(self.dataset))
                metrics.update(self.task.derived(metrics))
                if previews and self.train_step.settings.validation.previews:
                    if self.ranks.is_main:
                        self.show(self.task.previews(self.model))
                    self.ranks.wait()
        finally:
            self.model.train()
        return metrics

    def _losses(self, step: int) -> dict[str, float]:
        """Means over every batch in every phase. Each validation sees the same crops and draws the same numbers."""
        meter, own = Meter(), self.train_step
        for i, planned in enumerate(self.source.epoch(0)):
            parts = own.recovery.load([planned], self._split)
            while parts:
                part = parts.pop(0)
                terms = self._terms(part, i)
                if terms is None:
                    parts[:0] = own.recovery.halves(part, step - 1, self._split)  # of the last step, as the log counts
                    continue
                for one in terms:
                    self._terms_seen.update(one)
                    # A filler batch of a rank that has fewer counts nothing, but every rank must add the same names.
                    meter.add({name: (total * planned.weight, n * planned.weight) for name, (total, n) in one.items()})
            if self.ranks.world_size > 1 and self.signals.received_by_any(self.ranks):
                raise StopNow
        return meter.means(own.loss_weights(max(0, step - 1)), self.ranks)

    def _split(self, planned: MicroBatch) -> tuple[MicroBatch, MicroBatch] | None:
        return self.source.halves(planned, 0)

    def _terms(self, part: MicroBatchState, number: int) -> list[CountedTerms] | None:
        """The loss terms of each phase for (a part of) batch `number`. None: out of memory."""
        own, terms = self.train_step, list[CountedTerms]()
        try:
            for phase in own.phases:
                seed_torch(own.device, own.settings.random_seed, "validation", number, self.ranks.rank)
                with own.precision.autocast(), standing_in(part.planned.weight != 1.0):
                    returned = own.measure(part.batch, phase.name)
                terms.append(counted(returned, part.planned.counts))
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            return None
        return terms

    def _evaluate(self, dataset: Dataset) -> dict[str, float]:
        """The task's own metrics over the whole data set, of which each rank evaluates its share."""
        share = range(self.ranks.rank, len(dataset.ids), self.ranks.world_size)
        sums = self.task.evaluate(self.model, dataset, share) if share else {}
        self.ranks.wait()
        totals: dict[str, tuple[float, float]] = {}
        for part in self.ranks.gather({name: (float(total), float(count)) for name, (total, count) in sums.items()}):
            for name, (total, count) in part.items():
                before = totals.get(name, (0.0, 0.0))
                totals[name] = (before[0] + total, before[1] + count)
        return {name: total / count for name, (total, count) in totals.items() if count}
