"""The phases of a training step, each with its parameters, optimizer and learning-rate schedule."""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from phonate.compute.distributed import like
from phonate.config.errors import InputError
from phonate.training.optimizers import build_optimizer
from phonate.training.schedules import Schedule, build_schedule
from phonate.training.settings import TrainingSettings
from phonate.training.task import Phase, Task

logger = logging.getLogger(__name__)


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

    def parameters_of(self, name: str) -> Sequence[nn.Parameter]:
        """The parameters of the phase `name`."""
        return next(one.parameters for one in self._states if one.name == name)

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


_TRY = 50
"""Steps up to which a run is a try, of which nobody expects that it has learnt."""


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
    if warmup >= total_steps > _TRY:
        logger.warning(
            "the run ends after %d steps, within the warm-up of %d: the learning rate does not reach "
            "training.optimizer.lr; lower training.scheduler.warmup_steps",
            total_steps,
            warmup,
        )
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
