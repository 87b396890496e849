"""Losses by name, and the two ways in which they are combined: a recipe's `build_loss` and `LossManager`.

Names are imported when they are first used, so that looking up the name of a loss needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phonate.training.losses.composite import CompositeLoss as CompositeLoss
    from phonate.training.losses.composite import build_loss as build_loss
    from phonate.training.losses.manager import LossManager as LossManager
    from phonate.training.losses.registry import LossRegistry as LossRegistry
    from phonate.training.losses.registry import compute as compute
    from phonate.training.registries import LOSSES as LOSSES

_HOMES = {
    "CompositeLoss": "phonate.training.losses.composite",
    "LOSSES": "phonate.training.registries",
    "LossManager": "phonate.training.losses.manager",
    "LossRegistry": "phonate.training.losses.registry",
    "build_loss": "phonate.training.losses.composite",
    "compute": "phonate.training.losses.registry",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
