"""Optimizers by name. `build_optimizer` is imported on first access, because it imports torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from phonate.training.registries import OPTIMIZERS

if TYPE_CHECKING:
    from phonate.training.optimizers._build import OptimizerFactory, build_optimizer

__all__ = ["OPTIMIZERS", "OptimizerFactory", "build_optimizer"]


def __getattr__(name: str) -> Any:
    if name in {"OptimizerFactory", "build_optimizer"}:
        from phonate.training.optimizers import _build

        return getattr(_build, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
