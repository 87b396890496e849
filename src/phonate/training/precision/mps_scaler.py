"""Loss scaling for fp16 on Apple's GPUs (Micikevicius et al. 2018, arXiv:1710.03740, section 3.2).

Rules, methods and state are those of `torch.amp.GradScaler`, so a checkpoint of either can be resumed with the other.
It uses only ordinary tensor operations, because torch's scaler supports MPS only from version 2.13.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

_LARGEST = torch.finfo(torch.float32).max


class _Stage(Enum):
    READY = "ready"
    UNSCALED = "unscaled"
    STEPPED = "stepped"


class MPSGradScaler:
    """Scales the loss so that small gradients do not underflow in fp16, and adapts the scale to overflows.

    For each optimizer in a step: `scale(loss).backward()`, `unscale_`, `step`; then `update` once.

    Args:
        init_scale: Initial scale.
        growth_factor: Factor of its growth after `growth_interval` steps without overflow.
        backoff_factor: Factor of its reduction after an overflow.
        growth_interval: Steps without overflow before it grows.

    Raises:
        ValueError: a factor is out of range.
    """

    def __init__(
        self,
        init_scale: float = 65536.0,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
    ) -> None:
        if growth_factor <= 1.0:
            raise ValueError("growth_factor: must be above 1")
        if not 0.0 < backoff_factor < 1.0:
            raise ValueError("backoff_factor: must be between 0 and 1")
        if init_scale <= 0.0 or growth_interval < 1:
            raise ValueError("init_scale and growth_interval: must be above 0")
        self._scale = init_scale
        self._growth_factor = growth_factor
        self._backoff_factor = backoff_factor
        self._growth_interval = growth_interval
        self._growth_tracker = 0
        self._stages: dict[int, _Stage] = {}
        self._overflow: dict[int, Tensor] = {}
        """For each optimizer, whether a gradient was not finite (a tensor on the device)."""

    def scale(self, loss: Tensor) -> Tensor:
        """`loss` times the scale."""
        return loss * self._scale

    def get_scale(self) -> float:
        """The scale."""
        return self._scale

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the optimizer's gradients by the scale, and record whether any is not finite.

        Raises RuntimeError when called twice in a step or after `step`, and ValueError for fp16 gradients: the master
        weights, and so their gradients, must be fp32.
        """
        stage = self._stages.get(id(optimizer), _Stage.READY)
        if stage is not _Stage.READY:
            raise RuntimeError(f"call unscale_() once per step and optimizer, before step(); this one is {stage.value}")
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if any(gradient.dtype is torch.float16 for gradient in gradients):
            raise ValueError("gradients in fp16 can't be unscaled; keep the weights in fp32 and use autocast")
        self._overflow[id(optimizer)] = _unscaled(gradients, 1.0 / self._scale)
        self._stages[id(optimizer)] = _Stage.UNSCALED

    def step(self, optimizer: Optimizer) -> None:
        """The optimizer's step, skipped if a gradient overflowed. Unscales first if that was not done.

        Raises RuntimeError if called twice without `update`.
        """
        stage = self._stages.get(id(optimizer), _Stage.READY)
        if stage is _Stage.STEPPED:
            raise RuntimeError("step() was already called since the last update()")
        if stage is _Stage.READY:
            self.unscale_(optimizer)
        if not self._overflow[id(optimizer)].item():
            optimizer.step()
        self._stages[id(optimizer)] = _Stage.STEPPED

    def update(self, new_scale: float | None = None) -> None:
        """Adapt the scale, once all optimizers have stepped; `new_scale` sets it instead.

        Raises RuntimeError if no gradient was unscaled since the last call.
        """
        if not self._overflow:
            raise RuntimeError("nothing was unscaled since the last update()")
        if new_scale is not None:
            self._scale = new_scale
        elif any(overflow.item() for overflow in self._overflow.values()):
            self._scale *= self._backoff_factor
            self._growth_tracker = 0
        else:
            self._growth_tracker += 1
            if self._growth_tracker == self._growth_interval:
                if self._scale * self._growth_factor <= _LARGEST:
                    self._scale *= self._growth_factor
                self._growth_tracker = 0
        self._stages.clear()
        self._overflow.clear()

    def state_dict(self) -> dict[str, Any]:
        """The state, in the format of `torch.amp.GradScaler`."""
        return {
            "scale": self._scale,
            "growth_factor": self._growth_factor,
            "backoff_factor": self._backoff_factor,
            "growth_interval": self._growth_interval,
            "_growth_tracker": self._growth_tracker,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state."""
        self._scale = float(state["scale"])
        self._growth_factor = float(state["growth_factor"])
        self._backoff_factor = float(state["backoff_factor"])
        self._growth_interval = int(state["growth_interval"])
        self._growth_tracker = int(state["_growth_tracker"])


@torch.no_grad()
def _unscaled(gradients: Iterable[Tensor], factor: float) -> Tensor:
    """Multiply `gradients` in place; returns whether any was not finite, without synchronising with the device."""
    overflow = torch.zeros((), dtype=torch.bool)
    for gradient in gradients:
        values = gradient.coalesce().values() if gradient.is_sparse else gradient
        overflow = overflow.to(values.device) | ~values.isfinite().all()
        gradient.mul_(factor)
    return overflow
