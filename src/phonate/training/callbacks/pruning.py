"""Magnitude pruning during training."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from phonate.config.errors import InputError
from phonate.training.callbacks._base import Callback, TrainerView

if TYPE_CHECKING:
    from torch import Tensor, nn


class PruningCallback(Callback):
    """Sets the smallest weights of each matrix to 0 and keeps them there (Zhu & Gupta 2018).

    The pruned share rises from 0 at `start` to `amount` at `end` along the cubic of equation 1, in steps
    every `interval` steps; biases, normalisation weights and frozen ones are not pruned. The masks are saved in the
    checkpoint.

    Args:
        amount: Final share of weights that are 0.
        start: Optimizer step at which pruning begins.
        end: Step at which `amount` is reached. Null: at `start`.
        interval: Steps between prunings.
    """

    def __init__(self, amount: float, start: int = 1, end: int | None = None, interval: int = 100) -> None:
        if not 0 < amount < 1:
            raise ValueError("amount: must be between 0 and 1")
        if start < 1 or interval < 1 or (end is not None and end < start):
            raise ValueError("start, end, interval: must satisfy 1 <= start <= end and interval >= 1")
        self.amount = amount
        self.start = start
        self.end = start if end is None else end
        self.interval = interval
        self.masks: dict[str, Tensor] = {}
        self._packed: dict[str, str] = {}
        self._weights: dict[str, nn.Parameter] = {}

    def share(self, step: int) -> float:
        """The share of each matrix that is 0 after `step`."""
        if step < self.start:
            return 0.0
        if step >= self.end:
            return self.amount
        return self.amount * (1 - (1 - (step - self.start) / (self.end - self.start)) ** 3)

    def on_train_begin(self, trainer: TrainerView) -> None:
        """Find the matrices, and apply the masks of a resumed run."""
        self._weights = {name: p for name, p in trainer.model.named_parameters() if p.dim() > 1}
        if not any(p.requires_grad for p in self._weights.values()):
            raise InputError("pruning: the model has no trainable weight matrices")
        for name, packed in self._packed.items():
            if name not in self._weights:
                raise InputError(f"pruning: the checkpoint prunes {name}, which the model does not have")
            self.masks[name] = _unpack(packed, self._weights[name])
        self._packed = {}

    def on_optimizer_step(self, trainer: TrainerView) -> None:
        """Prune when due, and reset pruned weights that the optimizer changed."""
        import torch

        step = trainer.step
        due = step % self.interval == 0 or step in {self.start, self.end}
        if due and self.start <= step <= self.end:
            self._prune(step)
            trainer.emit({"sparsity": self.sparsity()})
        if self.masks:
            with torch.no_grad():
                averages = trainer.averages
                for name, mask in self.masks.items():
                    self._weights[name].mul_(mask)
                    if name in averages:
                        averages[name].mul_(mask)

    def _prune(self, step: int) -> None:
        import torch

        for name, weight in self._weights.items():
            count = int(self.share(step) * weight.numel())
            if count == 0 or not weight.requires_grad:  # frozen by freeze_layers, or not trained at all
                continue
            order = weight.detach().abs().flatten().argsort(stable=True)
            mask = torch.ones(weight.numel(), dtype=torch.bool, device=weight.device)
            mask[order[:count]] = False
            self.masks[name] = mask.view_as(weight)

    def sparsity(self) -> float:
        """The share of masked weights, over all matrices that are trained."""
        trained = [weight for name, weight in self._weights.items() if weight.requires_grad or name in self.masks]
        total = sum(weight.numel() for weight in trained)
        masked = sum(int((~mask).sum()) for mask in self.masks.values())
        return masked / total

    def state_dict(self) -> dict[str, Any]:
        """The masks, one bit per weight, in base64."""
        return {"masks": {name: _pack(mask) for name, mask in self.masks.items()} or dict(self._packed)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Store the masks until `on_train_begin`."""
        self._packed = dict(state["masks"])


def _pack(mask: Tensor) -> str:
    import numpy as np

    return base64.b64encode(np.packbits(mask.cpu().numpy().ravel()).tobytes()).decode()


def _unpack(packed: str, weight: Tensor) -> Tensor:
    import numpy as np
    import torch

    bits = np.unpackbits(np.frombuffer(base64.b64decode(packed), dtype=np.uint8), count=weight.numel())
    return torch.from_numpy(bits.astype(bool)).view(weight.shape).to(weight.device)
