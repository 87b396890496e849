"""Exponential moving average of the weights (Polyak & Juditsky 1992, SIAM J. Control 30(4))."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from phonate.compute.distributed import is_sharded, like
from phonate.training.settings import EMASettings


class EMA:
    """A second copy of the trainable weights that follows the first: `average = lerp(average, weight, 1 - decay)`."""

    def __init__(self, model: nn.Module, settings: EMASettings) -> None:
        self.settings = settings
        self.names = [name for name, p in model.named_parameters() if p.requires_grad]
        self.weights = [p for p in model.parameters() if p.requires_grad]
        self.averages = [p.detach().clone() for p in self.weights]

    @torch.no_grad()
    def reset(self) -> None:
        """Start again from the current weights."""
        for average, weight in zip(self.averages, self.weights, strict=True):  # torch can't copy lists of DTensors
            average.copy_(weight)

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Update with the weights after optimizer step `step` (the first one is 1)."""
        decay = self.settings.decay
        if self.settings.warmup:
            decay = min(decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(self.averages, [w.data for w in self.weights], 1.0 - decay)

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Inside this block the model has the averages as weights."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        for i, weight in enumerate(self.weights):
            if is_sharded(weight):  # FSDP gathers from the memory that the weight has
                before = weight.detach().clone()
                weight.detach().copy_(self.averages[i])
                self.averages[i] = before
            else:
                weight.data, self.averages[i] = self.averages[i], weight.data

    def state(self) -> dict[str, Tensor]:
        """The averages by parameter name."""
        return dict(zip(self.names, self.averages, strict=True))

    def restore(self, state: Mapping[str, Tensor] | None) -> None:
        """Restore the averages. None (saved without an average): they start from the weights."""
        if state is None:
            self.reset()
            return
        for name, average in zip(self.names, self.averages, strict=True):
            average.copy_(like(state[name], average))
