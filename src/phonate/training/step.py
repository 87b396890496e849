"""One optimizer step, in plain torch: forward and backward over its micro-batches, clipping, update.

Read `TrainStep.__call__` first, then `_forward_backward`, `_micro_batch` and `_update`. What happens when a forward or
backward pass fails (`_gradients`) comes after them.

Ranks exchange gradients within the backward pass, where a rank that runs out of memory can't begin anew, as the others
wait for it. A batch that is longer or has more items than any before is therefore computed by each rank apart; then
they ask each other whether all are done, begin anew together where one is not, and add up their gradients.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from phonate.compute.device import out_of_memory
from phonate.compute.distributed import Ranks, standing_in, whole
from phonate.config.errors import InputError, TrainingError
from phonate.config.registry import nearest
from phonate.data.loading import MicroBatch
from phonate.training.ema import EMA
from phonate.training.generators import seed_torch
from phonate.training.memory import AdaptiveMemoryManager, MicroBatchState, Recovery, Split
from phonate.training.meters import Meter
from phonate.training.not_finite import FiniteCheck
from phonate.training.phases import Phases, PhaseState
from phonate.training.precision import Precision
from phonate.training.settings import TrainingSettings
from phonate.training.task import Batch, Count, CountedTerms, Coupling, Task, Terms, counted

NO_CONTEXT = contextlib.nullcontext()


def no_mark(stage: str) -> None:
    """No profiler."""


@dataclass(frozen=True)
class StepHooks:
    """What callbacks run within a step."""

    before_batch: Sequence[Callable[[Batch], None]] = ()
    """Before the first forward pass of each micro-batch."""
    after_batch: Sequence[Callable[[Batch, dict[str, float]], None]] = ()
    """After its last backward pass, with the means of its loss terms."""
    after_backward: Sequence[Callable[[], None]] = ()
    """When the gradients of a phase are complete and unscaled, before clipping."""


class TrainStep:
    """Runs optimizer steps.

    Args:
        task: The task.
        model: Its model, on `device`.
        phases: What is optimised.
        settings: The recipe's `training` part.
        device: Where to compute.
        ranks: The processes of the run.
        hooks: The callbacks' hooks.
        split: Halves a micro-batch, for when memory runs out. None: it can't be halved.
        memory: Watches the device's memory.
        mark: Called with the name of each stage of a step as it ends (see `profiling.stages`).
        module: The loss as a module, where its weights are divided over ranks.
    """

    def __init__(
        self,
        task: Task,
        model: nn.Module,
        phases: Phases,
        settings: TrainingSettings,
        device: torch.device,
        ranks: Ranks,
        *,
        hooks: StepHooks | None = None,
        split: Split | None = None,
        memory: AdaptiveMemoryManager | None = None,
        mark: Callable[[str], None] = no_mark,
        module: LossModule | None = None,
    ) -> None:
        self.task = task
        self.model = model
        self.phases = phases
        self.settings = settings
        self.device = device
        self.ranks = ranks
        self.hooks = hooks or StepHooks()
        self.mark = mark
        self.recovery = Recovery(device, split, _why_whole(task, settings, ranks), memory)
        self.check_memory: Callable[[], object] = memory.check if memory is not None else lambda: None
        self.finite = FiniteCheck(device, settings.not_finite, ranks)
        self.precision = Precision(settings.mixed_precision, device, settings.amp_loss_scale, settings.grad_scaler)
        self.measure: Callable[[Batch, str], Terms] = partial(task.loss, model) if module is None else module
        """`Task.loss`, for no gradients."""
        self.compute: Callable[[Batch, str], Terms] = self.measure
        """`Task.loss`, for gradients that all ranks have."""
        if ranks.world_size > 1:
            self.compute = ranks.wrap(module or LossModule(task, model))
        self._rearranges = ranks.world_size > 2 and _rearranges(self.compute)
        """Whether the next backward pass of `compute` is the one after which it adds gradients up in another order."""
        self.weights = self.loss_weights(0)
        """Of the latest step."""
        self.meter = Meter()
        """Losses since the last log line."""
        self.samples = 0
        """Samples since then, on this rank."""
        self.grad_norms: dict[str, Tensor] = {}
        self._stepped = False
        self._apart: bool | None = False
        """Whether the ranks compute the gradients of this phase apart and add them up then, because for one of them the
        batch is larger than any before. None: they have not agreed on it yet."""
        self._unseen = settings.loss.weights.keys() - task.loss_weights(0).keys()
        """Terms that the recipe weighs and that no phase has returned yet."""

    def __call__(self, group: Sequence[MicroBatch], step: int, ema: EMA | None) -> None:
        """Optimizer step number `step` (from 0) on the micro-batches of `group`."""
        self.task.step = step
        if self.settings.performance.compile_model == "cuda_graphs":
            # what the graphs of the step before gave may be overwritten
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        self.weights = self.loss_weights(step)
        parts = self.recovery.load(group)
        self.samples += sum(
            self.task.samples(planned.batch, len(planned.ids)) for planned in group if planned.weight == 1.0
        )
        self.mark("data")
        due = self.phases.due(step)
        for phase in due:
            with self.phases.only(phase):
                self._gradients(phase, parts, step, last=phase is due[-1])
                self._update(phase, parts, step)
            if self.ranks.world_size > 1:
                self.recovery.note_fitting(phase.name, parts)
        if self._unseen:
            self._check_weights(step)
        self.precision.update()
        self._stepped = True
        if ema is not None:
            ema.update(step + 1)
        self.recovery.learn(step, parts)
        self.mark("step")

    def _forward_backward(self, phase: PhaseState, parts: Sequence[MicroBatchState], step: int, last: bool) -> None:
        """Add the gradients of one phase over all micro-batches; `last` says whether it is the step's last phase."""
        totals = self._totals(phase.name, parts)
        if self._apart:
            self.ranks.share(self.model.buffers())  # as DDP does
        final = len(parts) - 1
        for i, part in enumerate(parts):
            self.check_memory()
            seed = (self.settings.random_seed, "step", step, phase.name, i, self.ranks.rank)
            try:
                with self._gradients_stay_local(i < final):
                    terms = self._micro_batch(phase.name, part, step, totals, seed)
            except (RuntimeError, MemoryError, TypeError) as error:
                self._retry(error, i)
            self.meter.add(self.finite.counted(terms))
            if self.hooks.after_batch:
                self._report(part, terms, last)
                self.mark("gap")

    def _micro_batch(
        self,
        phase: str,
        part: MicroBatchState,
        step: int,
        totals: Mapping[str, float] | None,
        seed: tuple[int | str, ...],
    ) -> CountedTerms:
        """Forward and backward pass of one micro-batch; returns its loss terms."""
        part.begin(self.hooks.before_batch)
        seed_torch(self.device, *seed)
        with self.precision.autocast(), standing_in(part.planned.weight != 1.0):
            returned = (self.measure if self._apart else self.compute)(part.batch, phase)
        terms = counted(returned, part.planned.counts)
        if part.planned.weight != 1.0:  # a rank without items of its own: it takes part and adds nothing
            terms = {name: (total * part.planned.weight, 0.0) for name, (total, _) in terms.items()}
        counts = {name: count for name, (_, count) in terms.items()}
        if totals is not None:
            counts = {name: self._total(totals, name, count) for name, (_, count) in returned.items()}
        loss = weighted_loss(terms, counts, self.weights)
        loss = self.finite.loss(loss, step, part.planned.ids, terms)
        self.mark("forward")
        # DDP averages over ranks; the totals already count all ranks, so the sum is wanted.
        averaged = self.ranks.world_size > 1 and not self._apart
        # DDP takes note of what a backward pass uses, and would expect that of its own next one, of another phase
        beside = self._apart and isinstance(self.compute, DistributedDataParallel)
        self.precision.backward(
            loss * self.ranks.world_size if averaged else loss, self.phases.parameters_of(phase) if beside else None
        )
        self.mark("backward")
        return terms

    def _update(self, phase: PhaseState, parts: Sequence[MicroBatchState], step: int) -> None:
        """Gradients -> weights."""
        if self.settings.distributed.sync_gradient_barrier:
            self.ranks.barrier()
        self.precision.unscale(phase.optimizer)
        for hook in self.hooks.after_backward:
            hook()
        logging = self.settings.logging
        if logging.log_gradients and logging.due(step + 1):
            self.grad_norms.update(module_norms(self.model))
        unusable: Tensor | bool = False
        if self.settings.gradient_clipping is not None or self.finite.skips:
            norm = clip(phase.parameters, self.settings.gradient_clipping or math.inf)
            if self.precision.name != "fp16":  # there overflows are usual, and the scaler leaves such steps out
                ids = [name for part in parts for name in part.planned.ids]
                unusable = self.finite.gradient(norm, step, ids)
            self.grad_norms["grad_norm" if len(self.phases) == 1 else f"grad_norm/{phase.name}"] = norm
        lr = phase.schedule.lr(step)
        for group in phase.optimizer.param_groups:
            group["lr"] = lr
        self.precision.step(phase.optimizer, unusable)
        for parameter in phase.parameters:
            parameter.grad = None

    def _totals(self, phase: str, parts: Sequence[MicroBatchState]) -> dict[str, float] | None:
        """Counts over the micro-batches and ranks of this step: of each unit, and of each term that has a count of its
        own. None for one undivided batch."""
        if len(parts) == 1 and self.ranks.world_size == 1:
            return None
        self._apart = None
        totals: dict[str, float] = {}
        for i, part in enumerate(parts):
            counts: dict[str, Count] = dict(part.planned.counts or {})
            if part.planned.counts is None or self.task.own_counts:
                try:
                    counts |= self._counted_by_running(part, phase)
                except (RuntimeError, MemoryError, TypeError) as error:
                    self._retry(error, i)
            for name, count in counts.items():
                totals[name] = totals.get(name, 0.0) + part.planned.weight * float(count)
        names = sorted(totals)
        larger = float(self.ranks.world_size > 1 and self.recovery.is_larger(phase, parts))
        *sums, any_larger = self.ranks.sum([*(totals[name] for name in names), larger])
        self._apart = any_larger > 0
        return dict(zip(names, sums, strict=True))

    @torch.no_grad()
    def _counted_by_running(self, part: MicroBatchState, phase: str) -> dict[str, Count]:
        """The terms' own counts, which the loss returns. Buffers that a forward pass changes are put back."""
        buffers = [(buffer, buffer.clone()) for buffer in self.model.buffers()]
        with self.precision.autocast(), standing_in(part.planned.weight != 1.0):
            terms = self.measure(part.batch, phase)
        for buffer, before in buffers:
            buffer.copy_(before)
        return {_own(name): count for name, (_, count) in terms.items() if not isinstance(count, str)}

    def _total(self, totals: Mapping[str, float], name: str, count: Count | str) -> float:
        """The count of a term over the step. Raises TrainingError for a number that nobody expected."""
        key = count if isinstance(count, str) else _own(name)
        if key not in totals:
            raise TrainingError(
                f"the loss term {name!r} has a number as its count: name a unit that the data set counts, or set "
                f"{type(self.task).__name__}.own_counts to True"
            )
        return totals[key]

    def _gradients_stay_local(self, more_to_come: bool) -> AbstractContextManager[Any]:
        """Ranks exchange gradients once a step, in the backward pass of the last micro-batch.

        DDP can't skip an exchange where the graph was promised to be static; averaging in each pass adds up to the
        same gradient.
        """
        static = self.settings.distributed.static_graph
        if more_to_come and not static and isinstance(self.compute, DistributedDataParallel):
            return self.compute.no_sync()
        return NO_CONTEXT

    def _report(self, part: MicroBatchState, terms: CountedTerms, last: bool) -> None:
        """Call `after_batch` with the means of a micro-batch, once the last phase has added its own."""
        for name, (total, count) in terms.items():
            if counted := float(count):
                part.means[name] = total.item() / counted
        if not last or part.reported:
            return
        part.reported = True
        means = dict(part.means)
        if means:
            means["loss"] = sum(self.weights.get(name, 1.0) * mean for name, mean in means.items())
        for hook in self.hooks.after_batch:
            hook(part.batch, means)

    # ------------------------------------------------------------- recovery

    def state(self) -> list[Any] | None:
        """What fitted into the memory of each rank, where there are several: gradients are added up in another order
        when ranks compute apart, so a resumed run must do that in the same steps. All ranks call it together."""
        return self.ranks.gather(self.recovery.state()) if self.ranks.world_size > 1 else None

    def restore(self, state: Sequence[Any] | None) -> None:
        """Restore it, for as many ranks."""
        if state is not None and len(state) == self.ranks.world_size:
            self.recovery.restore(state[self.ranks.rank])

    def _gradients(self, phase: PhaseState, parts: list[MicroBatchState], step: int, last: bool) -> None:
        """`_forward_backward`, begun anew with a micro-batch in halves where memory ran out, and in fp32 where the
        first step failed in a 16-bit format that was chosen automatically."""
        before = self.meter.copy()
        buffers = [buffer.clone() for buffer in self.model.buffers()] if self._rearranges else []
        while True:
            failed: TrainingError | None = None
            try:
                done = self._attempt(phase, parts, step, last)
            except TrainingError as error:
                if not self._apart:
                    raise
                done, failed = False, error
            if self._apart:
                done = self._added_up(phase, done, failed)
            if done and not (self._rearranges and self._apart is False):
                return
            if done:  # once in a process; its gradients would not be, to the bit, those of a run that was not resumed
                self._rearranges = False
                for buffer, value in zip(self.model.buffers(), buffers, strict=True):
                    buffer.copy_(value)
            self.meter.become(before)
            for parameter in phase.parameters:
                parameter.grad = None

    def _attempt(self, phase: PhaseState, parts: list[MicroBatchState], step: int, last: bool) -> bool:
        """`_forward_backward`; False where it must be begun anew, from `parts` as they then are."""
        try:
            self._forward_backward(phase, parts, step, last)
        except _Retry as retry:
            too_large = retry.too_large
        else:
            return True
        # Outside the except block the traceback is released, so the tensors of the failed attempt are freed.
        for parameter in phase.parameters:
            parameter.grad = None
        if too_large is not None:
            amid = self.ranks.world_size > 1 and self._apart is False
            why = f"the other ranks wait for rank {self.ranks.rank} within the step" if amid else None
            parts[too_large:too_large] = self.recovery.halves(parts.pop(too_large), step, forbidden=why)
        return False

    def _added_up(self, phase: PhaseState, done: bool, failed: TrainingError | None) -> bool:
        """Add up the gradients that the ranks have computed apart; False where one of them must begin anew, so that all
        do. Raises TrainingError, on all ranks, where one has `failed`."""
        has = [float(parameter.grad is not None) for parameter in phase.parameters]
        not_done, any_failed, *have = self.ranks.sum([float(not done), float(failed is not None), *has])
        if any_failed:
            told = [one for one in self.ranks.gather(None if failed is None else str(failed)) if one]
            raise failed or TrainingError(told[0])
        if not_done:
            return False
        for parameter, ranks_with in zip(phase.parameters, have, strict=True):
            if ranks_with:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                self.ranks.add_up(parameter.grad)
        return True

    def _retry(self, error: Exception, part: int) -> NoReturn:
        """Raise `_Retry` where a phase can be begun anew after `error` in micro-batch number `part`; else `error`."""
        if out_of_memory(error):
            raise _Retry(too_large=part) from error
        # Ranks would have to fall back together, and one that has failed can't ask the others.
        if self._stepped or self.ranks.world_size > 1 or not self.precision.fall_back(error):
            raise error
        raise _Retry(too_large=None) from error

    # ------------------------------------------------------------- weights of loss terms

    def loss_weights(self, step: int) -> Mapping[str, float]:
        """The weights of loss terms in step `step`: the task's, then the recipe's, times the share that is due."""
        weights = {**self.task.loss_weights(step), **self.settings.loss.weights}
        shares = self.task.loss_shares(step)
        return {name: weight * shares.get(name, 1.0) for name, weight in weights.items()} if shares else weights

    def _check_weights(self, step: int) -> None:
        """Refuse a weight of an unknown term as soon as every phase has shown its terms."""
        if not all(phase.due(step) for phase in self.phases):
            return
        terms = sorted({*self.meter.sums, *self.task.loss_weights(step)})
        for name in self._unseen - self.meter.sums.keys():
            raise InputError(f"training.loss.weights.{name}: the loss has no such term; {nearest(name, terms)}")
        self._unseen = set()


class _Retry(Exception):
    """The gradients of a phase must be computed anew."""

    def __init__(self, too_large: int | None) -> None:
        super().__init__()
        self.too_large = too_large
        """Number of the micro-batch that did not fit into memory. None: only the number format changed."""


class LossModule(nn.Module):
    """The task's loss as a module, so that DistributedDataParallel and FSDP see one forward per micro-batch whichever
    parts of the model the loss calls."""

    def __init__(self, task: Task, model: nn.Module) -> None:
        super().__init__()
        self.task = task
        self.model = model

    def forward(self, batch: Batch, phase: str) -> Terms:
        """`Task.loss`."""
        return self.task.loss(self.model, batch, phase)


def _rearranges(module: object) -> bool:
    """Whether `module` is a DDP that after its first backward pass arranges gradients in the order in which they were
    ready. How they lie decides in which order those of three ranks and more are added up."""
    if not isinstance(module, DistributedDataParallel):
        return False
    return bool(module.static_graph or not module.find_unused_parameters)


def _why_whole(task: Task, settings: TrainingSettings, ranks: Ranks) -> str | None:
    """Why the batches of this run can't be split when memory runs out. None: they can."""
    if task.coupling is not Coupling.NONE:
        return "the loss of an item depends on the other items"
    if ranks.sharded:
        return f"rank {ranks.rank} has parts of the weights that the other ranks wait for"
    if ranks.world_size > 1 and settings.distributed.static_graph:
        return "with training.distributed.static_graph all ranks must have as many parts"
    return None


def _own(name: str) -> str:
    """The name of the own count of a term, beside units."""
    return f"of {name}"


def weighted_loss(terms: CountedTerms, counts: Mapping[str, Count], weights: Mapping[str, float]) -> Tensor:
    """Sum over terms of weight * sum / count, with the `counts` of the whole step."""
    parts = []
    for name, (total, _) in terms.items():
        weight, divisor = weights.get(name, 1.0), counts[name]
        if isinstance(divisor, Tensor):
            parts.append(total * torch.where(divisor > 0, weight / divisor, 0.0))
        else:
            parts.append(total * (weight / divisor if divisor else 0.0))
    if not parts:
        raise TrainingError("the task returned no loss term; loss() must return at least one")
    return parts[0] if len(parts) == 1 else torch.stack(parts).sum()


@torch.no_grad()
def clip(parameters: Sequence[nn.Parameter], max_norm: float) -> Tensor:
    """Scale gradients down to a global L2 norm of at most `max_norm`; returns the norm before, a scalar.

    On a CPU, where reading the norm costs nothing, gradients that are short enough are left alone.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:
        return torch.zeros(())
    norm = norm_of(gradients)
    if norm.device.type == "cpu":
        if not norm.item() <= max_norm:
            torch._foreach_mul_(gradients, max_norm / (norm.item() + 1e-6))
    else:
        torch._foreach_mul_(gradients, torch.clamp(max_norm / (norm + 1e-6), max=1.0))
    return norm


@torch.no_grad()
def module_norms(model: nn.Module) -> dict[str, Tensor]:
    """L2 norm of the gradient of each top-level module that has one, as `grad_norm/<module>`."""
    norms = {}
    for name, module in model.named_children():
        gradients = [p.grad for p in module.parameters() if p.grad is not None]
        if gradients:
            norms[f"grad_norm/{name}"] = norm_of(gradients)
    return norms


def norm_of(tensors: Sequence[Tensor]) -> Tensor:
    """The L2 norm of all values of `tensors`, a scalar."""
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm([*tensors])))
    return whole(norm)
