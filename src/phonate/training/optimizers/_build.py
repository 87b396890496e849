"""From settings to an optimizer."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable
from types import MethodType
from typing import Any

import torch
from torch import nn

from phonate.config.errors import InputError
from phonate.training.optimizers import OPTIMIZERS
from phonate.training.settings import OptimizerSettings

OptimizerFactory = Callable[..., torch.optim.Optimizer]
"""Takes named parameters and keywords called as in `OptimizerSettings`; its signature says which it has."""

FUSED_DEVICES = frozenset({"cpu", "cuda", "mps"})
"""Where torch has fused kernels. On two CPU cores they are about three times as fast as the default loop."""


def build_optimizer(
    settings: OptimizerSettings,
    named_parameters: Iterable[tuple[str, nn.Parameter]],
    device: torch.device,
) -> torch.optim.Optimizer:
    """The optimizer that `settings` ask for, over `named_parameters`, which already are on `device`.

    Each group keeps its peak learning rate in `group["initial_lr"]`, for schedules and callbacks.

    Raises:
        InputError: an unknown optimizer, a number that the chosen one does not have, or no parameters.
    """
    factory = OPTIMIZERS.get(settings.type)
    keywords = _keywords(settings, factory)
    parameters = list(named_parameters)
    if not parameters:
        raise InputError("the model has no trainable parameters: is everything frozen?")
    if "fused" in inspect.signature(factory).parameters:
        keywords["fused"] = device.type in FUSED_DEVICES and all(
            parameter.is_floating_point() for _, parameter in parameters
        )
    _spare_the_compiler()
    optimizer = factory(parameters, **keywords)
    _step_without_compiler(optimizer)
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]
    return optimizer


def _spare_the_compiler() -> None:
    """Keep torch from importing its compiler with every optimizer.

    These methods import torch._dynamo, which takes more than a second, only to tell the compiler to leave them alone.
    A process that has not imported it by now compiles nothing that contains an optimizer.
    """
    if "torch._dynamo" in sys.modules:
        return
    for name in ("add_param_group", "zero_grad", "state_dict", "load_state_dict"):
        plain = getattr(getattr(torch.optim.Optimizer, name), "__wrapped__", None)
        if plain is not None and not hasattr(plain, "__dynamo_disable"):
            plain.__dynamo_disable = plain


def _step_without_compiler(optimizer: torch.optim.Optimizer) -> None:
    """The same for `step`, which imports the compiler to break its graphs. Hooks are called as ever."""
    breaks_graphs: Any = getattr(type(optimizer).step, "__wrapped__", None)
    plain = getattr(breaks_graphs, "__wrapped__", None)
    if plain is None or breaks_graphs.__code__.co_name != "_use_grad" or "torch._dynamo" in sys.modules:
        return
    hooked = torch.optim.Optimizer.profile_hook_step(torch.no_grad()(plain))
    optimizer.step = MethodType(hooked, optimizer)  # type: ignore[method-assign]


def _keywords(settings: OptimizerSettings, factory: OptimizerFactory) -> dict[str, Any]:
    """The numbers for `factory`: `lr`, `weight_decay` and what was chosen among the others."""
    fields = type(settings).model_fields
    chosen = {
        name: getattr(settings, name)
        for name in fields
        if name != "type" and (name in {"lr", "weight_decay"} or getattr(settings, name) != fields[name].default)
    }
    accepted = inspect.signature(factory).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in accepted.values()):
        return chosen
    for name in chosen:
        if name not in accepted:
            has = ", ".join(option for option in fields if option in accepted)
            raise InputError(f"training.optimizer.{name}: {settings.type} has no {name}; it has {has}")
    return chosen
