"""One optimizer step, in plain torch: forward and backward over its micro-batches, clipping, update.

Read `TrainStep.__call__` first, then `_forward_backward`, `_micro_batch` and `_update`. What happens when a forward or
backward pass fails (`_gradients`) comes after them.

Ranks exchange gradients within the backward pass, where a rank that runs out of memory can't begin anew, as the others
wait for it. A batch that is longer or has more items than any before is therefore computed by each rank apart; then
they ask each other whether all are done, begin anew together where one is not, and add up their gradients.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from phonate.compute.device import out_of_memory
from phonate.compute.distributed import Ranks, is_sharded, like, standing_in, whole
from phonate.config.errors import InputError, TrainingError
from phonate.config.randomness import derived_seed
from phonate.config.registry import nearest
from phonate.data.loading import MicroBatch
from phonate.training.memory import AdaptiveMemoryManager, MicroBatchState, Recovery, Split
from phonate.training.optimizers import build_optimizer
from phonate.training.precision import Precision
from phonate.training.schedules import Schedule, build_schedule
from phonate.training.settings import EMASettings, TrainingSettings
from phonate.training.task import Batch, Count, CountedTerms, Coupling, Phase, Task, Terms, counted

logger = logging.getLogger(__name__)

# -------------------------------------- Gradient accumulation: the micro-batches of one optimizer step


def accumulation_groups(planned: Iterator[MicroBatch], times: int) -> Iterator[list[MicroBatch]]:
    """The micro-batches `planned` for an epoch, grouped by optimizer step; the last step may have fewer.

    `times`: how many micro-batches of the plan a step has. One that stands for several counts as so many.
    """
    group: list[MicroBatch] = []
    for one in planned:
        group.append(one)
        if sum(member.planned for member in group) >= times:
            yield group
            group = []
    if group:
        yield group


# -------- Random generators: torch's, seeded from keys, and the global ones of Python, numpy and torch


def seed_torch(device: torch.device, *keys: int | str) -> None:
    """Seed torch's generators from keys, so that dropout and the like are a function of (seed, step, ...).

    (torch.manual_seed formats a stack trace for CUDA at each call: 50 times the cost.)
    """
    seed = derived_seed(*keys)
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.init()  # type: ignore[no-untyped-call]  # there are no generators before
        torch.cuda.default_generators[device.index or 0].manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)


def seed_global_generators(seed: int) -> None:
    """Seed Python's and numpy's global generators. phonate never draws from them; plug-ins and callers may."""
    random.seed(seed)
    np.random.seed(seed % 2**32)


def global_generators() -> dict[str, Any]:
    """The states of Python's, numpy's and torch's global generators."""
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=False),
        "torch": torch.get_rng_state(),
    }


def restore_global_generators(states: Mapping[str, Any]) -> None:
    """Restore the states."""
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])


class GlobalGenerators:
    """The global generators as part of a run's state.

    Args:
        seed: Of a run that begins.
        saved: Whether checkpoints hold their states (`training.checkpoint.snapshot_random_states`).
    """

    def __init__(self, seed: int, saved: bool) -> None:
        self._seed = seed
        self._saved = saved
        self._restored: Mapping[str, Any] | None = None

    def state(self) -> dict[str, Any] | None:
        """The state of each."""
        return global_generators() if self._saved else None

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Begin with these states."""
        self._restored = state

    def start(self) -> None:
        """Seed the generators, or restore their states. Called right before the first step, because a library may draw
        from them when it is first imported, as rich does."""
        if self._restored is None:
            seed_global_generators(self._seed)
        else:
            restore_global_generators(self._restored)


# ---------------------------------------- Losses and gradients that are not finite (`training.not_finite`)

GRADIENT = "the gradient norm"
ADVICE = (
    "Lower training.optimizer.lr or training.gradient_clipping, set training.mixed_precision: fp32, or check the "
    "recordings with `phonate data check`"
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

    def __init__(self, found: NotFinite) -> None:
        super().__init__(f"{found}. {ADVICE}")
        self.found = found


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
        self.report: Callable[[NotFinite], None] = lambda found: None
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
        self._found(unread.read())
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
            self._found(unread.read())
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
        found: list[NotFinite] = []
        if unread and not torch.stack([one.value.float() for one in unread]).isfinite().all():
            found = [one.read() for one in unread if not one.value.isfinite()]
        if self._ranks.world_size > 1:
            found = _joined(self._ranks.gather([vars(one) for one in found]))
        for one in found:
            if not (self.skips and one.what == GRADIENT and self._latest == one.step):
                self._found(one)

    def _found(self, found: NotFinite) -> None:
        if not self.skips:
            raise NotFiniteError(found)
        if found.step != self._latest:
            self._in_a_row = self._in_a_row + 1 if found.step == self._latest + 1 else 1
            self._latest = found.step
        self.report(found)
        if self._in_a_row >= MOST_LEFT_OUT:
            raise TrainingError(f"{found}, as in the {MOST_LEFT_OUT - 1} steps before: nothing is learnt. {ADVICE}")


def _joined(found: Sequence[Sequence[Mapping[str, Any]]]) -> list[NotFinite]:
    """What the ranks have found, by step, with the samples of all that are concerned."""
    by_place: dict[tuple[int, bool], NotFinite] = {}
    for one in (NotFinite(**fields) for rank in found for fields in rank):
        place = one.step, one.what == GRADIENT
        before = by_place.get(place, one)
        ids, terms = dict.fromkeys([*before.ids, *one.ids]), dict.fromkeys([*before.terms, *one.terms])
        by_place[place] = replace(before, ids=list(ids), terms=list(terms))
    return [by_place[place] for place in sorted(by_place)]


# --------------------------------------------------------------- Running sums and counts of loss terms


class Meter:
    """Adds up (sum, count) pairs by name. On a GPU the sums stay there, so that no step waits for the host."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor | float] = {}
        self.counts: dict[str, Tensor | float] = {}

    def add(self, terms: CountedTerms) -> None:
        """Add the terms of one micro-batch."""
        for name, (total, count) in terms.items():
            self.sums[name] = self.sums.get(name, 0.0) + _summand(total)
            self.counts[name] = self.counts.get(name, 0.0) + _summand(count)

    def means(self, weights: Mapping[str, float], ranks: Ranks) -> dict[str, float]:
        """Mean of each term over all ranks, and `loss`, their weighted sum. Empty when nothing was added."""
        names = sorted(self.sums)
        numbers = ranks.sum([float(self.sums[n]) for n in names] + [float(self.counts[n]) for n in names])
        half = len(names)
        means = {name: numbers[i] / numbers[half + i] for i, name in enumerate(names) if numbers[half + i]}
        if means:
            means = {"loss": sum(weights.get(name, 1.0) * value for name, value in means.items()), **means}
        return means

    def absorb(self, other: Meter) -> None:
        """Add what `other` has counted and clear it."""
        for name in other.sums:
            self.sums[name] = self.sums.get(name, 0.0) + other.sums[name]
            self.counts[name] = self.counts.get(name, 0.0) + other.counts[name]
        other.clear()

    def clear(self) -> None:
        """Forget all counts."""
        self.sums.clear()
        self.counts.clear()

    def become(self, other: Meter) -> None:
        """Take the counts of `other`, which keeps them."""
        self.sums, self.counts = dict(other.sums), dict(other.counts)

    def copy(self) -> Meter:
        """A meter with the same counts."""
        other = Meter()
        other.sums.update(self.sums)
        other.counts.update(self.counts)
        return other

    def state(self) -> dict[str, list[float]]:
        """Sums and counts as JSON."""
        return {name: [float(self.sums[name]), float(self.counts[name])] for name in self.sums}

    def restore(self, state: Mapping[str, list[float]]) -> None:
        """Restore sums and counts."""
        self.sums = {name: pair[0] for name, pair in state.items()}
        self.counts = {name: pair[1] for name, pair in state.items()}


class Meters:
    """The losses since the last log line, and those of the epoch before them; each rank counts its own.

    Both are state of a run, so that means over an epoch are exact after a resume within it.
    """

    def __init__(self, latest: Meter, ranks: Ranks) -> None:
        """`latest`: since the last log line."""
        self.latest = latest
        self.epoch = Meter()
        self.ranks = ranks

    def state(self) -> list[Any]:
        """Both meters of each rank. All ranks call it together."""
        return self.ranks.gather([self.latest.state(), self.epoch.state()])

    def restore(self, state: Sequence[Sequence[Mapping[str, list[float]]]]) -> None:
        """Each rank restores its own counts; where the number of ranks has changed, the first one takes them all."""
        meters = (self.latest, self.epoch)
        if len(state) == self.ranks.world_size:
            for meter, counted in zip(meters, state[self.ranks.rank], strict=True):
                meter.restore(counted)
            return
        for number, meter in enumerate(meters):
            for pair in state:
                # all ranks have the same names: they are summed together
                part = Meter()
                part.restore(pair[number] if self.ranks.is_main else {name: [0.0, 0.0] for name in pair[number]})
                meter.absorb(part)

    def epoch_means(self, state: Sequence[Any], weights: Mapping[str, float]) -> dict[str, float]:
        """Means of the current epoch over all ranks, from the result of `state`. Empty at its beginning."""
        whole = Meter()
        for one in (one for pair in state for one in pair):
            part = Meter()
            part.restore(one)
            whole.absorb(part)
        return whole.means(weights, Ranks())


def _summand(value: Tensor | float) -> Tensor | float:
    """`value` as it is added up: a number, or, where that would make a device wait, a tensor of its widest floats."""
    if not isinstance(value, Tensor):
        return float(value)
    if value.device.type == "cpu":
        return value.item()
    return value.detach().float() if value.device.type == "mps" else value.detach().double()


# ----------- Exponential moving average of the weights (Polyak & Juditsky 1992, SIAM J. Control 30(4))


class EMA:
    """A second copy of the trainable weights that follows the first: `average = lerp(average, weight, 1 - decay)`."""

    def __init__(self, model: nn.Module, settings: EMASettings) -> None:
        self.settings = settings
        self.names = [name for name, p in model.named_parameters() if p.requires_grad]
        self.weights = [p for p in model.parameters() if p.requires_grad]
        self.averages = [p.detach().clone() for p in self.weights]

    @torch.no_grad()
    def reset(self) -> None:
        """Start again from the current weights."""
        for average, weight in zip(self.averages, self.weights, strict=True):  # torch can't copy lists of DTensors
            average.copy_(weight)

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Update with the weights after optimizer step `step` (the first one is 1)."""
        decay = self.settings.decay
        if self.settings.warmup:
            decay = min(decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(self.averages, [w.data for w in self.weights], 1.0 - decay)

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Inside this block the model has the averages as weights."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        for i, weight in enumerate(self.weights):
            if is_sharded(weight):  # FSDP gathers from the memory that the weight has
                before = weight.detach().clone()
                weight.detach().copy_(self.averages[i])
                self.averages[i] = before
            else:
                weight.data, self.averages[i] = self.averages[i], weight.data

    def state(self) -> dict[str, Tensor]:
        """The averages by parameter name."""
        return dict(zip(self.names, self.averages, strict=True))

    def restore(self, state: Mapping[str, Tensor] | None) -> None:
        """Restore the averages. None (saved without an average): they start from the weights."""
        if state is None:
            self.reset()
            return
        for name, average in zip(self.names, self.averages, strict=True):
            average.copy_(like(state[name], average))


# ------- The phases of a training step, each with its parameters, optimizer and learning-rate schedule


@dataclass
class PhaseState:
    """A phase with what it optimises."""

    phase: Phase
    parameters: list[nn.Parameter]
    optimizer: torch.optim.Optimizer
    schedule: Schedule
    name: str = field(init=False)
    """The phase's name."""

    def __post_init__(self) -> None:
        self.name = self.phase.name

    @property
    def lr(self) -> float:
        """The learning rate of the latest step."""
        return float(self.optimizer.param_groups[0]["lr"])

    def due(self, step: int) -> bool:
        """Whether the phase runs in optimizer step `step`."""
        return step >= self.phase.start and step % self.phase.every == 0


class Phases(Sequence[PhaseState]):
    """The phases of a run, in the order in which they run within a step.

    Args:
        states: The phases.
        save_optimizers: Whether checkpoints hold the optimizers' state.
        save_schedules: Whether checkpoints hold the schedules' state.
    """

    def __init__(self, states: Sequence[PhaseState], save_optimizers: bool = True, save_schedules: bool = True) -> None:
        self._states = tuple(states)
        self._all = contextlib.nullcontext()
        self._save_optimizers = save_optimizers
        self._save_schedules = save_schedules
        self.optimizers = {one.name: one.optimizer for one in states}
        self.schedules = {one.name: one.schedule for one in states}

    def __getitem__(self, index: Any) -> Any:
        return self._states[index]

    def __iter__(self) -> Iterator[PhaseState]:
        return iter(self._states)

    def __len__(self) -> int:
        return len(self._states)

    def due(self, step: int) -> list[PhaseState]:
        """The phases that run in optimizer step `step`."""
        return [one for one in self._states if one.due(step)]

    def learning_rates(self) -> dict[str, float]:
        """`learning_rate`, or `learning_rate/<phase>` where there are several."""
        if len(self) == 1:
            return {"learning_rate": self._states[0].lr}
        return {f"learning_rate/{one.name}": one.lr for one in self._states}

    def only(self, active: PhaseState) -> contextlib.AbstractContextManager[None]:
        """Within this block only the parameters of `active` get gradients."""
        return self._all if len(self._states) == 1 else self._frozen_but(active)

    @contextlib.contextmanager
    def _frozen_but(self, active: PhaseState) -> Iterator[None]:
        mine = {id(p) for p in active.parameters}
        others = [
            p
            for state in self._states
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

    def state(self) -> dict[str, Any]:
        """By phase: the optimizer's type and state, and the schedule's state."""
        return {
            one.name: {
                "type": type(one.optimizer).__name__,
                **({"optimizer": one.optimizer.state_dict()} if self._save_optimizers else {}),
                **({"schedule": one.schedule.state()} if self._save_schedules else {}),
            }
            for one in self._states
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore optimizers and schedules. Raises InputError where a checkpoint has not what a resume needs."""
        for one in self._states:
            saved = state.get(one.name, {})
            if "optimizer" not in saved:
                raise InputError(f"it has no optimizer state for {one.name!r} (snapshot_optimizer: false?)")
            if saved["type"] != type(one.optimizer).__name__:
                raise InputError(
                    f"training.optimizer.type: it was saved with {saved['type']}, whose state "
                    f"{type(one.optimizer).__name__} can't use"
                )
            _restore_optimizer(one.optimizer, saved["optimizer"])
            if "schedule" in saved:
                one.schedule.restore(saved["schedule"])


def build_phases(
    task: Task,
    model: nn.Module,
    settings: TrainingSettings,
    device: torch.device,
    total_steps: int,
    steps_per_epoch: int,
) -> Phases:
    """The task's phases with optimizers and schedules. Raises InputError for a phase without parameters."""
    warmup = settings.scheduler.warmup_steps
    if warmup >= total_steps:
        logger.warning("warm-up (%d steps) is not over at the end of the run (%d)", warmup, total_steps)
    states = []
    for phase in task.phases:
        named = list(phase.parameters(model))
        if not named:
            raise InputError(f"phase {phase.name!r} has no trainable parameters")
        chosen = phase.optimizer or settings.optimizer
        optimizer = build_optimizer(chosen, named, device)
        schedule = build_schedule(settings.scheduler, chosen.lr, total_steps, steps_per_epoch)
        states.append(PhaseState(phase, [p for _, p in named], optimizer, schedule))
    return Phases(states, settings.checkpoint.snapshot_optimizer, settings.checkpoint.snapshot_scheduler)


def _restore_optimizer(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Restore the state but keep the options: they are the recipe's and may have been changed for the resume."""
    options = {"initial_lr", *inspect.signature(type(optimizer)).parameters} - {"params", "lr"}
    options_now = [{name: group[name] for name in options & group.keys()} for group in optimizer.param_groups]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state = {
        number: {name: like(value, parameters[number]) for name, value in values.items()}
        for number, values in saved["state"].items()
    }
    optimizer.load_state_dict({**saved, "state": state})
    for group, own in zip(optimizer.param_groups, options_now, strict=True):
        group.update(own)


# ------------------------------------------------------------------ One optimizer step, in plain torch

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
            self.recovery.note_fitting(phase.name, parts)
        if self._unseen:
            self._check_weights(step)
        self.precision.update()
        self._stepped = True
        if ema is not None:
            ema.update(step + 1)
        self.recovery.learn(step, parts)
        self.mark("step")

    def state(self) -> list[Any] | None:
        """What fitted into the memory of each rank, where there are several: gradients are added up in another order
        when ranks compute apart, so a resumed run must do that in the same steps. All ranks call it together."""
        return self.ranks.gather(self.recovery.state()) if self.ranks.world_size > 1 else None

    def restore(self, state: Sequence[Any] | None) -> None:
        """Restore it, for as many ranks."""
        if state is not None and len(state) == self.ranks.world_size:
            self.recovery.restore(state[self.ranks.rank])

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
        self.precision.backward(loss * self.ranks.world_size if averaged else loss)
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
