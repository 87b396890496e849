"""Redraw random features (Performer projections) during training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phonate.config.errors import InputError
from phonate.config.randomness import derived_seed
from phonate.training.callbacks._base import Callback, TrainerView

if TYPE_CHECKING:
    from torch import nn


def redrawable(module: nn.Module) -> list[nn.Module]:
    """The outermost modules with `redraw_features()`: each redraws the features of its submodules."""
    if callable(getattr(module, "redraw_features", None)):
        return [module]
    return [found for child in module.children() for found in redrawable(child)]


class FeatureRedrawCallback(Callback):
    """Calls `redraw_features()` of every module that has it, every `interval` optimizer steps.

    The draws are a function of (random seed, step), so they are the same after a resume and on every rank,
    and the global generators are not touched. A model without such a module is an error.
    """

    def __init__(self, interval: int = 1000) -> None:
        if interval < 1:
            raise ValueError("interval: must be at least 1 optimizer step")
        self.interval = interval
        self.modules: list[nn.Module] = []

    def on_train_begin(self, trainer: TrainerView) -> None:
        """Find the modules."""
        self.modules = redrawable(trainer.model)
        if not self.modules:
            raise InputError(
                "feature_redraw: no module of this model has redraw_features(); remove "
                "training.feature_redraw_interval and the callback feature_redraw"
            )

    def on_optimizer_step(self, trainer: TrainerView) -> None:
        """Redraw every `interval` steps."""
        if trainer.step % self.interval == 0:
            self.redraw(trainer)

    def redraw(self, trainer: TrainerView) -> None:
        """Redraw now, with a generator seeded by (random seed, step)."""
        import torch

        devices = [trainer.device] if trainer.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(derived_seed(trainer.settings.random_seed, "features", trainer.step))
            for module in self.modules:
                module.redraw_features()  # type: ignore[operator]  # looked for in redrawable()
