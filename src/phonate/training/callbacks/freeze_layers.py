"""Freeze parameters."""

from __future__ import annotations

import logging
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from phonate.config.errors import InputError
from phonate.config.registry import nearest
from phonate.training.callbacks._base import Callback, TrainerView

if TYPE_CHECKING:
    from torch import nn

logger = logging.getLogger(__name__)


class FreezeLayersCallback(Callback):
    """Freezes the parameters whose names match, for the whole run or until a step.

    Args:
        patterns: Names of parameters or modules, with wildcards: "encoder" (everything inside), "encoder.layers.0",
            "*.bias". A pattern without a match is an error.
        until_step: Optimizer step at which they are unfrozen. Null: never.
    """

    def __init__(self, patterns: list[str], until_step: int | None = None) -> None:
        if isinstance(patterns, str) or not patterns:
            raise ValueError("patterns: must be a list of names, such as [encoder, '*.bias']")
        if until_step is not None and until_step < 1:
            raise ValueError("until_step: must be at least 1 optimizer step")
        self.patterns = list(patterns)
        self.until_step = until_step
        self.frozen: list[nn.Parameter] = []

    def on_train_begin(self, trainer: TrainerView) -> None:
        """Find the parameters, and freeze them unless the run is past `until_step`."""
        parameters = {name: p for name, p in trainer.model.named_parameters() if p.requires_grad}
        names = {name for pattern in self.patterns for name in matching(pattern, list(parameters))}
        if len(names) == len(parameters):
            raise InputError("freeze_layers: the patterns match every parameter; nothing is left to train")
        if self.until_step is not None and trainer.step >= self.until_step:
            return
        self.frozen = [parameters[name] for name in sorted(names)]
        logger.info("frozen: %d of %d parameter tensors", len(names), len(parameters))
        self._train(False)

    def on_backward_end(self, trainer: TrainerView) -> None:
        """Drop the gradients of frozen parameters, so that no optimizer updates them (not even by weight decay)."""
        for parameter in self.frozen:
            parameter.grad = None

    def on_optimizer_step(self, trainer: TrainerView) -> None:
        """Unfreeze at `until_step`."""
        if self.frozen and self.until_step is not None and trainer.step >= self.until_step:
            logger.info("unfrozen at step %d: %d parameter tensors", trainer.step, len(self.frozen))
            self._train(True)
            self.frozen = []

    def on_train_end(self, trainer: TrainerView) -> None:
        """Make the parameters trainable again."""
        self._train(True)
        self.frozen = []

    def _train(self, wanted: bool) -> None:
        import torch.distributed

        # DDP expects a gradient for every parameter it was built with, so with DDP the gradients are
        # computed and dropped. In a single process they are not computed at all.
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return
        for parameter in self.frozen:
            parameter.requires_grad_(wanted)


def matching(pattern: str, names: list[str]) -> list[str]:
    """The parameter names that `pattern` matches, by their own name or a parent module's. Raises InputError if none."""
    found = [name for name in names if fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")]
    if not found:
        modules = {name.rsplit(".", depth)[0] for name in names for depth in range(name.count(".") + 1)}
        raise InputError(f"freeze_layers: {pattern!r} matches no parameter; {nearest(pattern, sorted(modules))}")
    return found
