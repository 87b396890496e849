"""Built-in callbacks and their base class. Importing this package does not import torch.

The built-in callbacks are imported on first access.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from phonate.training.callbacks._base import Callback, CallbackList, TrainerView
from phonate.training.callbacks._build import build_callbacks
from phonate.training.registries import CALLBACKS

if TYPE_CHECKING:
    from phonate.training.callbacks.dynamic_lr import DynamicLRCallback
    from phonate.training.callbacks.early_stopping import EarlyStoppingCallback
    from phonate.training.callbacks.feature_redraw import FeatureRedrawCallback
    from phonate.training.callbacks.freeze_layers import FreezeLayersCallback
    from phonate.training.callbacks.gradient_clipping import GradientClippingCallback
    from phonate.training.callbacks.lr_monitor import LRMonitorCallback
    from phonate.training.callbacks.pruning import PruningCallback

_HOMES = {
    "DynamicLRCallback": "dynamic_lr",
    "EarlyStoppingCallback": "early_stopping",
    "FeatureRedrawCallback": "feature_redraw",
    "FreezeLayersCallback": "freeze_layers",
    "GradientClippingCallback": "gradient_clipping",
    "LRMonitorCallback": "lr_monitor",
    "PruningCallback": "pruning",
}

__all__ = [
    "CALLBACKS",
    "Callback",
    "CallbackList",
    "DynamicLRCallback",
    "EarlyStoppingCallback",
    "FeatureRedrawCallback",
    "FreezeLayersCallback",
    "GradientClippingCallback",
    "LRMonitorCallback",
    "PruningCallback",
    "TrainerView",
    "build_callbacks",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
