"""Number formats of the forward pass, and loss scaling for fp16 (Micikevicius et al. 2018, arXiv:1710.03740)."""

from __future__ import annotations

import contextlib
import logging
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from phonate.config.errors import InputError

log = logging.getLogger(__name__)


def resolve(setting: str | bool, device: torch.device) -> str:
    """fp32, fp16 or bf16 for `training.mixed_precision` on `device`.

    auto takes the 16-bit format in which the device computes natively. On a CPU that is fp32: bf16 without
    hardware support was measured 2.8 times slower.
    """
    if setting is False:
        return "fp32"
    if setting is True or setting == "auto":
        if device.type == "cuda":
            return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
        return "fp32"
    if setting == "fp16" and device.type == "mps":
        raise InputError("training.mixed_precision: fp16 loss scaling is not available on mps; use fp32 or bf16")
    return str(setting)


class Precision:
    """Autocast and loss scaling for one run. In fp32 everything here is a plain call."""

    def __init__(self, setting: str | bool, device: torch.device, loss_scale: float | None = None) -> None:
        self.name = resolve(setting, device)
        self._fixed = loss_scale
        if loss_scale is not None and self.name != "fp16":
            log.warning("training.amp_loss_scale: only fp16 has a loss scale, and this run is in %s", self.name)
        self._autocast: AbstractContextManager[Any] = contextlib.nullcontext()
        self._scaler: torch.amp.GradScaler | None = None
        if self.name != "fp32":
            dtype = torch.bfloat16 if self.name == "bf16" else torch.float16
            self._autocast = torch.autocast(device.type, dtype=dtype)
        if self.name == "fp16":
            self._scaler = torch.amp.GradScaler(device.type, init_scale=loss_scale or 65536.0)

    def autocast(self) -> AbstractContextManager[Any]:
        """The context of a forward pass."""
        return self._autocast

    @property
    def scale(self) -> float | None:
        """The loss scale; None without scaling."""
        return None if self._scaler is None else self._scaler.get_scale()

    def backward(self, loss: Tensor) -> None:
        """Backward pass of the scaled loss."""
        torch.autograd.backward(loss if self._scaler is None else self._scaler.scale(loss))

    def unscale(self, optimizer: Optimizer) -> None:
        """True gradients, before anything looks at them."""
        if self._scaler is not None:
            self._scaler.unscale_(optimizer)

    def step(self, optimizer: Optimizer) -> None:
        """Optimizer step; skipped when a scaled gradient overflowed."""
        if self._scaler is None:
            optimizer.step()
        else:
            self._scaler.step(optimizer)

    def update(self) -> None:
        """Adapt the loss scale once all optimizers have stepped."""
        if self._scaler is not None:
            self._scaler.update(self._fixed)

    def state(self) -> dict[str, Any]:
        """The scaler's state."""
        return {} if self._scaler is None else self._scaler.state_dict()

    def restore(self, state: dict[str, Any]) -> None:
        """Put the scaler's state back."""
        if self._scaler is not None and state:
            self._scaler.load_state_dict(state)
