"""One optimizer step: forward and backward over its micro-batches, clip, update. Plain torch."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from phonate.compute.distributed import Ranks
from phonate.compute.memory import out_of_memory
from phonate.config.errors import InputError, TrainingError
from phonate.config.randomness import derived_seed
from phonate.config.registry import nearest
from phonate.data.batches.loading import MicroBatch
from phonate.training.ema import EMA
from phonate.training.memory.manager import AdaptiveMemoryManager
from phonate.training.memory.recovery import MicroBatchState, Recovery, Split
from phonate.training.meter import Meter
from phonate.training.precision.precision import Precision
from phonate.training.schedules import Schedule
from phonate.training.settings import TrainingSettings
from phonate.training.task import Batch, Coupling, Phase, Task, Terms, move

NOTHING = contextlib.nullcontext()
GRADIENT = "the gradient's norm"


class Failure(Enum):
    """What can be done otherwise in another attempt."""

    MEMORY = "memory"
    PRECISION = "precision"


@dataclass
class PhaseState:
    """A phase with what it optimises."""

    phase: Phase
    parameters: list[nn.Parameter]
    optimizer: torch.optim.Optimizer
    schedule: Schedule

    @property
    def lr(self) -> float:
        """The learning rate of the latest step."""
        return float(self.optimizer.param_groups[0]["lr"])


class LossModule(nn.Module):
    """The task's loss as a module, so that DistributedDataParallel sees one forward per micro-batch whichever parts
    of the model the loss calls."""

    def __init__(self, task: Task, model: nn.Module) -> None:
        super().__init__()
        self.task = task
        self.model = model

    def forward(self, batch: Batch, phase: str) -> Terms:
        """`Task.loss`."""
        return self.task.loss(self.model, batch, phase)


def seed_torch(device: torch.device, *keys: int | str) -> None:
    """Seed torch's generators from keys: dropout and its like become a function of (seed, step, ...).

    (torch.manual_seed formats a stack trace for CUDA's sake at each call: 50 times the cost.)
    """
    seed = derived_seed(*keys)
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.init()  # type: ignore[no-untyped-call]  # there are no generators before
        torch.cuda.default_generators[device.index or 0].manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)


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


def unmarked(stage: str) -> None:
    """Nobody measures."""


def _why_whole(task: Task, ranks: Ranks) -> str | None:
    """Why the batches of this run can't be split when memory runs out. None: they can."""
    if task.coupling is not Coupling.NONE:
        return "the loss of an item depends on the other items"
    if ranks.world_size > 1:
        return f"the other ranks wait for rank {ranks.rank} within the step"
    return None


class TrainStep:
    """Runs optimizer steps. Holds the phases; everything else belongs to the trainer."""

    def __init__(
        self,
        task: Task,
        model: nn.Module,
        phases: Sequence[PhaseState],
        settings: TrainingSettings,
        device: torch.device,
        ranks: Ranks,
        after_backward: Sequence[Callable[[], None]] = (),
        before_batch: Sequence[Callable[[Batch], None]] = (),
        after_batch: Sequence[Callable[[Batch, dict[str, float]], None]] = (),
        split: Split | None = None,
        memory: AdaptiveMemoryManager | None = None,
        mark: Callable[[str], None] = unmarked,
    ) -> None:
        self.task = task
        self.model = model
        self.phases = list(phases)
        self.settings = settings
        self.device = device
        self.ranks = ranks
        self.after_backward = after_backward
        self.before_batch = before_batch
        self.after_batch = after_batch
        self.mark = mark
        """Told where a stage of the step ends (see `interbatch.py`)."""
        self.recovery = Recovery(device, split, _why_whole(task, ranks), memory)
        self.check_memory: Callable[[], object] = memory.check if memory is not None else lambda: None
        self.reads_losses = device.type == "cpu"
        """Whether a loss can be looked at without waiting for a device."""
        self.unread: list[tuple[str, int, Sequence[str], Tensor]] = []
        """Else: what it is, step, ids and value of each loss and gradient norm since `check_losses`."""
        self._at = 0
        """The micro-batch that is being computed."""
        self.stepped = False
        """Whether a step was done since this process began."""
        self.precision = Precision(settings.mixed_precision, device, settings.amp_loss_scale, settings.grad_scaler)
        self.weights = self.loss_weights(0)
        """Of the latest step."""
        self.compute: Callable[[Batch, str], Terms] = partial(task.loss, model)
        if ranks.world_size > 1:
            self.compute = ranks.wrap(LossModule(task, model))
        self._unknown = settings.loss.weights.keys() - task.loss_weights(0).keys()
        """Terms that the recipe weighs and that no phase has returned yet."""
        self.meter = Meter()
        self.grad_norms: dict[str, Tensor] = {}

    def __call__(self, window: Sequence[MicroBatch], step: int, ema: EMA | None) -> None:
        """Optimizer step number `step` (from 0) on the micro-batches of `window`."""
        self.task.step = step
        self.weights = self.loss_weights(step)
        parts = [MicroBatchState(planned, move(planned.batch, self.device)) for planned in window]
        self.mark("data")
        due = [state for state in self.phases if step >= state.phase.start and step % state.phase.every == 0]
        for state in due:
            with self._only(state) if len(self.phases) > 1 else NOTHING:
                self._gradients(state, parts, step, last=state is due[-1])
                self._update(state, parts, step)
        if self._unknown:
            self._check_weights(step)
        self.precision.update()
        self.stepped = True
        if ema is not None:
            ema.update(step + 1)
        self.recovery.warn(step, parts)
        self.mark("step")

    def loss_weights(self, step: int) -> Mapping[str, float]:
        """The weights of loss terms in step `step`: the task's, then the recipe's."""
        return {**self.task.loss_weights(step), **self.settings.loss.weights}

    def check_losses(self) -> None:
        """Look at the losses and gradient norms that nobody has looked at yet: a device is waited for. Raises
        TrainingError, naming the first batch where one was not finite."""
        unread, self.unread = self.unread, []
        if unread and not torch.stack([value.float() for *_, value in unread]).isfinite().all():
            what, step, ids, value = next(one for one in unread if not one[-1].isfinite())
            raise not_finite(what, value.item(), step, ids, {})

    def _check_weights(self, step: int) -> None:
        """Refuse a weight of a term that there is not, as soon as every phase has shown its terms."""
        if any(step < state.phase.start or step % state.phase.every for state in self.phases):
            return  # a phase that is not due
        terms = sorted({*self.meter.sums, *self.task.loss_weights(step)})
        for name in self._unknown - self.meter.sums.keys():
            raise InputError(f"training.loss.weights.{name}: the loss has no such term; {nearest(name, terms)}")
        self._unknown = set()

    def _gradients(self, state: PhaseState, parts: list[MicroBatchState], step: int, last: bool) -> None:
        """The gradients of one phase. Where memory runs out, the micro-batch is halved and the phase begun anew; where
        the first step fails in a 16-bit format that nobody asked for by name, it is begun anew in fp32."""
        counted = self.meter.copy()
        while failure := self._failure(state.phase.name, parts, step, last):
            # Here the exception is gone, and with its frames all that the failed attempt had made.
            self.meter = counted.copy()
            for parameter in state.parameters:
                parameter.grad = None
            if failure is Failure.MEMORY:
                at = self._at
                parts[at:at] = self.recovery.halves(parts.pop(at), step)

    def _failure(self, phase: str, parts: Sequence[MicroBatchState], step: int, last: bool) -> Failure | None:
        """Forward and backward passes of one phase; if one fails, that of micro-batch `_at`, why."""
        try:
            self._forward_backward(phase, parts, step, last)
        except (RuntimeError, MemoryError, TypeError) as error:
            if out_of_memory(error):
                return Failure.MEMORY
            # Ranks would have to fall back together, and one that has failed can't ask the others.
            if self.stepped or self.ranks.world_size > 1 or not self.precision.fall_back(error):
                raise
            return Failure.PRECISION
        return None

    def _forward_backward(self, phase: str, parts: Sequence[MicroBatchState], step: int, last: bool) -> None:
        """The gradients of one phase; `last` says whether it is the last one of this step."""
        totals = self._totals(phase, parts)
        final = len(parts) - 1
        for i, part in enumerate(parts):
            self._at = i
            self.check_memory()
            if not part.begun:
                part.begun = True
                for hook in self.before_batch:
                    hook(part.batch)
            seed_torch(self.device, self.settings.random_seed, "step", step, phase, i, self.ranks.rank)
            with self._gradients_stay_local(i < final):
                with self.precision.autocast():
                    terms = self.compute(part.batch, phase)
                if part.planned.weight != 1.0:  # a rank without items of its own: it takes part and adds nothing
                    terms = {name: (total * part.planned.weight, 0.0) for name, (total, _) in terms.items()}
                loss = weighted_loss(terms, totals, self.weights)
                if not self.reads_losses:
                    self.unread.append(("loss", step, part.planned.ids, loss.detach()))
                elif not math.isfinite(value := loss.item()):
                    raise not_finite("loss", value, step, part.planned.ids, terms)
                self.mark("forward")
                # DDP averages over ranks; the totals already count all ranks, so the sum is wanted.
                self.precision.backward(loss * self.ranks.world_size if self.ranks.world_size > 1 else loss)
            self.mark("backward")
            self.meter.add(terms)
            if self.after_batch:
                self._tell(part, terms, last)
                self.mark("gap")

    def _tell(self, part: MicroBatchState, terms: Terms, last: bool) -> None:
        """Give the callbacks the means of a micro-batch, once the last phase has found its own."""
        for name, (total, count) in terms.items():
            if counted := float(count):
                part.means[name] = total.item() / counted
        if not last or part.told:
            return
        part.told = True
        means = dict(part.means)
        if means:
            means["loss"] = sum(self.weights.get(name, 1.0) * mean for name, mean in means.items())
        for hook in self.after_batch:
            hook(part.batch, means)

    def _update(self, state: PhaseState, parts: Sequence[MicroBatchState], step: int) -> None:
        """Gradients -> weights."""
        if self.settings.distributed.sync_gradient_barrier:
            self.ranks.barrier()
        self.precision.unscale(state.optimizer)
        for hook in self.after_backward:
            hook()
        logging = self.settings.logging
        if logging.log_gradients and logging.due(step + 1):
            self.grad_norms.update(module_norms(self.model))
        if self.settings.gradient_clipping is not None:
            norm = clip(state.parameters, self.settings.gradient_clipping)
            self._check_gradient(norm, parts, step)
            self.grad_norms["grad_norm" if len(self.phases) == 1 else f"grad_norm/{state.phase.name}"] = norm
        lr = state.schedule.lr(step)
        for group in state.optimizer.param_groups:
            group["lr"] = lr
        self.precision.step(state.optimizer)
        for parameter in state.parameters:
            parameter.grad = None

    def _check_gradient(self, norm: Tensor, parts: Sequence[MicroBatchState], step: int) -> None:
        """A finite loss can have a gradient that is not; the next batch, whose loss it spoils, is not to blame.

        In fp16 such steps are usual, and left out.
        """
        if self.precision.name == "fp16":
            return
        ids = [name for part in parts for name in part.planned.ids]
        if not self.reads_losses:
            self.unread.append((GRADIENT, step, ids, norm))
        elif not math.isfinite(value := norm.item()):
            raise not_finite(GRADIENT, value, step, ids, {})

    def _totals(self, phase: str, parts: Sequence[MicroBatchState]) -> dict[str, float] | None:
        """Counts of each term over the micro-batches and ranks of this step; None for one undivided batch."""
        if len(parts) == 1 and self.ranks.world_size == 1:
            return None
        totals: dict[str, float] = {}
        for i, part in enumerate(parts):
            self._at = i
            # asked of the batch as it was loaded, so that a GPU is not waited for
            counts = self.task.counts(part.planned.batch, phase) or self._counted_by_running(part.batch, phase)
            for name, count in counts.items():
                totals[name] = totals.get(name, 0.0) + part.planned.weight * float(count)
        names = sorted(totals)
        return dict(zip(names, self.ranks.sum([totals[name] for name in names]), strict=True))

    @torch.no_grad()
    def _counted_by_running(self, batch: Batch, phase: str) -> dict[str, Any]:
        """The counts of a task that can't say them beforehand. Buffers that move in a forward pass are put back."""
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
        return NOTHING

    @contextlib.contextmanager
    def _only(self, active: PhaseState) -> Iterator[None]:
        """Within this block only the phase's own parameters get gradients."""
        mine = {id(p) for p in active.parameters}
        others = [
            p
            for state in self.phases
            if state is not active
            for p in state.parameters
            if p.requires_grad and id(p) not in mine
        ]
        for p in others:
            p.requires_grad_(False)
        try:
            yield
        finally:
            for p in others:
                p.requires_grad_(True)


@torch.no_grad()
def clip(parameters: Sequence[nn.Parameter], max_norm: float) -> Tensor:
    """Scale gradients down to a global L2 norm of at most `max_norm`; returns the norm before.

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


def not_finite(what: str, value: float, step: int, ids: Sequence[str], terms: Terms) -> TrainingError:
    """The error for a number that is not finite: which step, which term, which samples, and what to try."""
    bad = [name for name, (total, _) in terms.items() if not torch.isfinite(total.detach()).all()]
    shown = ", ".join(ids[:8]) + (f" and {len(ids) - 8} more" if len(ids) > 8 else "")
    where = "" if what == GRADIENT else f"{', '.join(bad) or 'the sum of terms'}; "
    return TrainingError(
        f"{what} is {value} at step {step} ({where}batch: {shown}). Lower "
        f"training.optimizer.lr or training.gradient_clipping, set training.mixed_precision: fp32, or check these "
        f"recordings with `phonate data check`; the last checkpoint is intact"
    )
