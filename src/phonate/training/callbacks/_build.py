"""Build callbacks from settings."""

from __future__ import annotations

import inspect
from typing import Any

from phonate.config.errors import InputError
from phonate.config.registry import nearest
from phonate.training.callbacks._base import Callback
from phonate.training.metrics import watches
from phonate.training.registries import CALLBACKS
from phonate.training.settings import CallbackSettings, TrainingSettings


def build_callbacks(settings: TrainingSettings) -> list[Callback]:
    """The callbacks in `training.callbacks`, then those enabled by other options.

    `training.early_stopping` and `training.feature_redraw_interval` are shorthands for two of them.

    Raises:
        InputError: an unknown callback or option, or a value that the callback rejects. The message names its position.
    """
    callbacks = [_build(entry, place) for place, entry in enumerate(settings.callbacks)]
    if settings.feature_redraw_interval is not None and not settings.fixed_projection:
        options = {"interval": settings.feature_redraw_interval}
        callbacks.append(CALLBACKS.get("feature_redraw")(**options))
    if settings.early_stopping is not None:
        callbacks.append(CALLBACKS.get("early_stopping")(**settings.early_stopping.model_dump()))
    return callbacks


def _build(entry: CallbackSettings, index: int) -> Callback:
    place = f"training.callbacks[{index}]"
    try:
        callback: type[Callback] = CALLBACKS.get(entry.type)
    except InputError as error:
        raise InputError(f"{place}.type: {error}") from error
    _check_options(callback, entry.options, place)
    try:
        built = callback(**entry.options)
    except (ValueError, TypeError) as error:
        raise InputError(f"{place}.options: {error}") from error
    for watch in watches([built]):
        watch.setting = f"{place}.options.metric"
    return built


def _check_options(callback: type[Callback], options: dict[str, Any], place: str) -> None:
    """Check `options` against the constructor's parameters."""
    parameters = inspect.signature(callback).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    for name in options:
        if name not in parameters:
            known = list(parameters)
            hint = nearest(name, known) if known else "it has none"
            raise InputError(f"{place}.options.{name}: no such option; {hint}")
    for name, parameter in parameters.items():
        if parameter.default is inspect.Parameter.empty and name not in options:
            raise InputError(f"{place}.options.{name}: required by {callback.__name__}")
