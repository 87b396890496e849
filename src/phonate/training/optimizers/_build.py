"""Build an optimizer from settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from phonate.config.errors import InputError
from phonate.training.optimization_settings import OptimizerSettings
from phonate.training.registries import OPTIMIZERS

OptimizerFactory = Callable[..., torch.optim.Optimizer]
"""Takes named parameters, and keywords named as in `OptimizerSettings`; its signature lists the supported ones."""

FUSED_DEVICES = frozenset({"cpu", "cuda", "mps"})
"""Devices with fused kernels in torch. On two CPU cores they are about three times as fast as the default loop."""


def build_optimizer(
    settings: OptimizerSettings,
    named_parameters: Iterable[tuple[str, nn.Parameter]],
    device: torch.device,
) -> torch.optim.Optimizer:
    """Build the optimizer for `settings` over `named_parameters`, which must already be on `device`.

    Each group keeps its peak learning rate in `group["initial_lr"]`, for schedules and callbacks.

    Raises:
        InputError: an unknown optimizer, an option that the chosen optimizer does not support, or no parameters.
    """
    factory: OptimizerFactory = OPTIMIZERS.get(settings.type)
    keywords = _keywords(settings, factory)
    parameters = list(named_parameters)
    if not parameters:
        raise InputError("the model has no trainable parameters: is everything frozen?")
    if "fused" in inspect.signature(factory).parameters:
        keywords["fused"] = device.type in FUSED_DEVICES and all(
            parameter.is_floating_point() for _, parameter in parameters
        )
    optimizer = factory(parameters, **keywords)
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]
    return optimizer


def _keywords(settings: OptimizerSettings, factory: OptimizerFactory) -> dict[str, Any]:
    """Keyword arguments for `factory`: `lr`, `weight_decay` and every other setting that is not at its default."""
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
