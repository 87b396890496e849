"""One optimizer step, in plain torch: forward and backward over its micro-batches, clipping, update.

Read `TrainStep.__call__` first, then `_forward_backward`, `_micro_batch` and `_update`. What happens when a forward or
backward pass fails (`_gradients`) comes after them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from phonate.compute.distributed import Ranks
from phonate.compute.memory import out_of_memory
from phonate.config.errors import InputError, TrainingError
from phonate.config.registry import nearest
from phonate.data.batches.loading import MicroBatch
from phonate.training.memory.manager import AdaptiveMemoryManager
from phonate.training.memory.recovery import MicroBatchState, Recovery, Split
from phonate.training.precision.precision import Precision
from phonate.training.settings import TrainingSettings
from phonate.training.steps.ema import EMA
from phonate.training.steps.finite import GRADIENT, FiniteCheck
from phonate.training.steps.generators import seed_torch
from phonate.training.steps.meter import Meter
from phonate.training.steps.phases import Phases, PhaseState
from phonate.training.task import Batch, Coupling, Task, Terms

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
    ) -> None:
        self.task = task
        self.model = model
        self.phases = phases
        self.settings = settings
        self.device = device
        self.ranks = ranks
        self.hooks = hooks or StepHooks()
        self.mark = mark
        self.recovery = Recovery(device, split, _why_whole(task, ranks), memory)
        self.check_memory: Callable[[], object] = memory.check if memory is not None else lambda: None
        self.finite = FiniteCheck(device)
        self.precision = Precision(settings.mixed_precision, device, settings.amp_loss_scale, settings.grad_scaler)
        self.compute: Callable[[Batch, str], Terms] = partial(task.loss, model)
        if ranks.world_size > 1:
            self.compute = ranks.wrap(_LossModule(task, model))
        self.weights = self.loss_weights(0)
        """Of the latest step."""
        self.meter = Meter()
        """Losses since the last log line."""
        self.samples = 0
        """Samples since then, on this rank."""
        self.grad_norms: dict[str, Tensor] = {}
        self._stepped = False
        self._unseen = settings.loss.weights.keys() - task.loss_weights(0).keys()
        """Terms that the recipe weighs and that no phase has returned yet."""

    def __call__(self, group: Sequence[MicroBatch], step: int, ema: EMA | None) -> None:
        """Optimizer step number `step` (from 0) on the micro-batches of `group`."""
        self.task.step = step
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
        final = len(parts) - 1
        for i, part in enumerate(parts):
            self.check_memory()
            seed = (self.settings.random_seed, "step", step, phase.name, i, self.ranks.rank)
            try:
                with self._gradients_stay_local(i < final):
                    terms = self._micro_batch(phase.name, part, step, totals, seed)
            except (RuntimeError, MemoryError, TypeError) as error:
                self._retry(error, i)
            self.meter.add(terms)
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
    ) -> Terms:
        """Forward and backward pass of one micro-batch; returns its loss terms."""
        part.begin(self.hooks.before_batch)
        seed_torch(self.device, *seed)
        with self.precision.autocast():
            terms = self.compute(part.batch, phase)
        if part.planned.weight != 1.0:  # a rank without items of its own: it takes part and adds nothing
            terms = {name: (total * part.planned.weight, 0.0) for name, (total, _) in terms.items()}
        loss = weighted_loss(terms, totals, self.weights)
        self.finite.check("loss", loss, step, part.planned.ids, terms)
        self.mark("forward")
        # DDP averages over ranks; the totals already count all ranks, so the sum is wanted.
        self.precision.backward(loss * self.ranks.world_size if self.ranks.world_size > 1 else loss)
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
        if self.settings.gradient_clipping is not None:
            norm = clip(phase.parameters, self.settings.gradient_clipping)
            if self.precision.name != "fp16":  # there overflows are usual, and the scaler leaves such steps out
                self.finite.check(GRADIENT, norm, step, [name for part in parts for name in part.planned.ids])
            self.grad_norms["grad_norm" if len(self.phases) == 1 else f"grad_norm/{phase.name}"] = norm
        lr = phase.schedule.lr(step)
        for group in phase.optimizer.param_groups:
            group["lr"] = lr
        self.precision.step(phase.optimizer)
        for parameter in phase.parameters:
            parameter.grad = None

    def _totals(self, phase: str, parts: Sequence[MicroBatchState]) -> dict[str, float] | None:
        """Counts of each term over the micro-batches and ranks of this step; None for one undivided batch."""
        if len(parts) == 1 and self.ranks.world_size == 1:
            return None
        totals: dict[str, float] = {}
        for i, part in enumerate(parts):
            # asked of the batch as it was loaded, so that a GPU is not waited for
            counts = self.task.counts(part.planned.batch, phase)
            if not counts:
                try:
                    counts = self._counted_by_running(part.batch, phase)
                except (RuntimeError, MemoryError, TypeError) as error:
                    self._retry(error, i)
            for name, count in counts.items():
                totals[name] = totals.get(name, 0.0) + part.planned.weight * float(count)
        names = sorted(totals)
        return dict(zip(names, self.ranks.sum([totals[name] for name in names]), strict=True))

    @torch.no_grad()
    def _counted_by_running(self, batch: Batch, phase: str) -> dict[str, Any]:
        """The counts of a task that can't give them beforehand. Buffers that a forward pass changes are put back."""
        buffers = [(buffer, buffer.clone()) for buffer in self.model.buffers()]
        with self.precision.autocast():
            counts = {name: count for name, (_, count) in self.task.loss(self.model, batch, phase).items()}
        for buffer, before in buffers:
            buffer.copy_(before)
        return counts

    def _gradients_stay_local(self, more_to_come: bool) -> AbstractContextManager[Any]:
        """Ranks exchange gradients once a step, in the backward pass of the last micro-batch.

        DDP can't skip an exchange where the graph was promised to be static; averaging in each pass adds up to the
        same gradient.
        """
        static = self.settings.distributed.static_graph
        if more_to_come and not static and isinstance(self.compute, DistributedDataParallel):
            return self.compute.no_sync()
        return NO_CONTEXT

    def _report(self, part: MicroBatchState, terms: Terms, last: bool) -> None:
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

    def _gradients(self, phase: PhaseState, parts: list[MicroBatchState], step: int, last: bool) -> None:
        """`_forward_backward`, begun anew with a micro-batch in halves where memory ran out, and in fp32 where the
        first step failed in a 16-bit format that was chosen automatically."""
        before = self.meter.copy()
        while True:
            try:
                return self._forward_backward(phase, parts, step, last)
            except _Retry as retry:
                too_large = retry.too_large
            # Outside the except block the traceback is released, so the tensors of the failed attempt are freed.
            self.meter.become(before)
            for parameter in phase.parameters:
                parameter.grad = None
            if too_large is not None:
                parts[too_large:too_large] = self.recovery.halves(parts.pop(too_large), step)

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


class _LossModule(nn.Module):
    """The task's loss as a module, so that DistributedDataParallel sees one forward per micro-batch whichever parts of
    the model the loss calls."""

    def __init__(self, task: Task, model: nn.Module) -> None:
        super().__init__()
        self.task = task
        self.model = model

    def forward(self, batch: Batch, phase: str) -> Terms:
        """`Task.loss`."""
        return self.task.loss(self.model, batch, phase)


def _why_whole(task: Task, ranks: Ranks) -> str | None:
    """Why the batches of this run can't be split when memory runs out. None: they can."""
    if task.coupling is not Coupling.NONE:
        return "the loss of an item depends on the other items"
    if ranks.world_size > 1:
        return f"the other ranks wait for rank {ranks.rank} within the step"
    return None


def weighted_loss(terms: Terms, totals: Mapping[str, float] | None, weights: Mapping[str, float]) -> Tensor:
    """Sum over terms of weight * sum / count, with the step's `totals` as counts where the step has several parts."""
    parts = []
    for name, (total, count) in terms.items():
        weight = weights.get(name, 1.0)
        divisor = count if totals is None else totals[name]
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
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
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
            norms[f"grad_norm/{name}"] = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    return norms
