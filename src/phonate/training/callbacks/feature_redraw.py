"""Redraw random features (Performer projections) during training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from phonate.config.errors import InputError
from phonate.config.randomness import derived_seed
from phonate.training.callbacks._base import Callback, TrainerView

if TYPE_CHECKING:
    from torch import nn

DEFAULT_INTERVAL = 1000
"""Optimizer steps between redraws."""
NOTHING_TO_REDRAW = (
    "feature_redraw: no module of this model has redraw_features(); remove training.feature_redraw_interval and the "
    "callback feature_redraw"
)


def redrawable(module: nn.Module) -> list[nn.Module]:
    """The outermost modules with `redraw_features()`: each redraws the features of its submodules."""
    if callable(getattr(module, "redraw_features", None)):
        return [module]
    return [found for child in module.children() for found in redrawable(child)]


def redrawn_by_default(module: nn.Module) -> bool:
    """Whether the module's features are redrawn if the recipe sets no interval: its `auto_redraw` is true."""
    return bool(getattr(module, "auto_redraw", False))


class FeatureRedrawCallback(Callback):
    """Calls `redraw_features()` of every module that has it, every `interval` optimizer steps.

    A module's own `redraw_interval` takes precedence. The draws are a function of (random seed, step), so they are the
    same after a resume and on every rank, and the global generators are not touched. A model without such a module is
    an error.

    Args:
        interval: Optimizer steps between redraws. Null: 1000, only for modules with `auto_redraw`, and a model without
            any is not an error.
    """

    def __init__(self, interval: int | None = DEFAULT_INTERVAL) -> None:
        if interval is not None and interval < 1:
            raise ValueError("interval: must be at least 1 optimizer step")
        self.interval = interval
        self.modules: list[tuple[nn.Module, int]] = []
        """Each module and the steps between its redraws."""

    def on_train_begin(self, trainer: TrainerView) -> None:
        """Find the modules."""
        found = redrawable(trainer.model)
        if self.interval is None:
            found = [module for module in found if redrawn_by_default(module)]
        elif not found:
            raise InputError(NOTHING_TO_REDRAW)
        usual = self.interval or DEFAULT_INTERVAL
        self.modules = [(module, getattr(module, "redraw_interval", None) or usual) for module in found]

    def on_optimizer_step(self, trainer: TrainerView) -> None:
        """Redraw the modules that are due."""
        due = [module for module, interval in self.modules if trainer.step % interval == 0]
        if due:
            self.redraw(trainer, due)

    def redraw(self, trainer: TrainerView, modules: Sequence[nn.Module] | None = None) -> None:
        """Redraw `modules` (None: all) now, with a generator seeded by (random seed, step)."""
        import torch

        devices = [trainer.device] if trainer.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(derived_seed(trainer.settings.random_seed, "features", trainer.step))
            for module in [module for module, _ in self.modules] if modules is None else modules:
                module.redraw_features()  # type: ignore[operator]  # looked for in redrawable()
