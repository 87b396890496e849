"""Number formats of the forward pass, and loss scaling for fp16 (Micikevicius et al. 2018, arXiv:1710.03740)."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from phonate.compute.device_type import DeviceType
from phonate.config.errors import InputError
from phonate.training.precision.mps_scaler import MPSGradScaler

logger = logging.getLogger(__name__)

FORMATS = {"bf16": torch.bfloat16, "fp16": torch.float16}


def try_out(name: str, device: torch.device) -> None:
    """Run a tiny forward and backward pass in format `name`. Raises torch's RuntimeError if it is not supported."""
    with torch.autocast(device.type, dtype=FORMATS[name]):
        weight = torch.ones(8, 8, device=device, requires_grad=True)
        product = weight @ weight
        if product.dtype is not FORMATS[name]:  # for some devices and formats torch only warns and uses fp32
            raise RuntimeError(f"autocast computes in {str(product.dtype).removeprefix('torch.')}")
        product.float().sum().backward()  # type: ignore[no-untyped-call]


def multiplies_in_bf16() -> bool | None:
    """Whether the processor has instructions for products in bf16. None: torch tells it of x86 only, since 2.10."""
    has: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    if has.get("architecture") != "x86_64":
        return None
    return bool(has["avx512_bf16"] or has["amx_bf16"])


def scaler_for(device: torch.device, init_scale: float, **options: Any) -> torch.amp.GradScaler | MPSGradScaler:
    """The loss scaler for fp16 on `device`: torch's, or `MPSGradScaler` on MPS.

    `options`: growth_factor, backoff_factor, growth_interval.
    """
    if DeviceType.of(device) is DeviceType.MPS:
        return MPSGradScaler(init_scale, **options)
    return torch.amp.GradScaler(device.type, init_scale=init_scale, **options)


def _reason(error: Exception) -> str:
    """The first sentence of torch's message; for a missing operator, a list of all backends follows."""
    return " ".join(str(error).split()).partition(". ")[0][:200]


def resolve(setting: str | bool, device: torch.device, try_out: Callable[[str, torch.device], None] = try_out) -> str:
    """fp32, fp16 or bf16 for `training.mixed_precision` on `device`.

    auto selects the 16-bit format that the device supports natively: bf16 or fp16 on CUDA, fp16 on MPS. On a CPU it
    selects fp32: bf16 without hardware support was measured to be 2.8 times slower, with it 1.7 times faster.

    `try_out` tests the format. If it fails, auto logs a warning and uses fp32; for a format requested by name,
    InputError is raised.
    """
    if setting is False or setting == "fp32":
        return "fp32"
    chosen, kind = str(setting), DeviceType.of(device)
    if automatic := setting is True or setting == "auto":
        if kind is DeviceType.CPU:
            return "fp32"
        native = kind is DeviceType.CUDA and torch.cuda.is_bf16_supported(including_emulation=False)
        chosen = "bf16" if native else "fp16"
    try:
        try_out(chosen, device)
    except RuntimeError as error:
        words = _reason(error)
        if not automatic:
            raise InputError(
                f"training.mixed_precision: {device} can't compute in {chosen} ({words}); use fp32 or auto"
            ) from error
        logger.warning("training.mixed_precision: %s can't compute in %s (%s); training in fp32", device, chosen, words)
        return "fp32"
    return chosen


class Precision:
    """Autocast and loss scaling of a run. In fp32 nothing is added."""

    def __init__(
        self,
        setting: str | bool,
        device: torch.device,
        loss_scale: float | None = None,
        scaler: Mapping[str, Any] | None = None,
    ) -> None:
        """`loss_scale` fixes the scale; `scaler` are the arguments of a dynamic one (`scaler_for`)."""
        self.name = resolve(setting, device)
        self._asked = setting not in (True, "auto")
        self._fixed = loss_scale
        if self.name == "bf16" and device.type == "cpu" and multiplies_in_bf16() is False:
            logger.warning("training.mixed_precision: this processor has no instructions for bf16; fp32 is faster")
        if loss_scale is not None and self.name != "fp16":
            logger.warning("training.amp_loss_scale: only fp16 uses a loss scale, and this run is in %s", self.name)
        self._autocast: AbstractContextManager[Any] = contextlib.nullcontext()
        self._scaler: torch.amp.GradScaler | MPSGradScaler | None = None
        if self.name != "fp32":
            self._autocast = torch.autocast(device.type, dtype=FORMATS[self.name])
        if self.name == "fp16":
            options = {"init_scale": 65536.0, **(scaler or {})}
            if loss_scale is not None:
                options["init_scale"] = loss_scale
            self._scaler = scaler_for(device, **options)

    def fall_back(self, error: Exception) -> bool:
        """Switch to fp32 after `error`, with a warning. False: already in fp32, or the format was requested."""
        if self._asked or self.name == "fp32":
            return False
        words = _reason(error)
        logger.warning("training.mixed_precision: the first step failed in %s (%s); training in fp32", self.name, words)
        self.name, self._autocast, self._scaler = "fp32", contextlib.nullcontext(), None
        return True

    def autocast(self) -> AbstractContextManager[Any]:
        """Context manager for a forward pass."""
        return self._autocast

    @property
    def scale(self) -> float | None:
        """The loss scale, or None without scaling."""
        return None if self._scaler is None else self._scaler.get_scale()

    def backward(self, loss: Tensor) -> None:
        """Backward pass of the scaled loss."""
        torch.autograd.backward(loss if self._scaler is None else self._scaler.scale(loss))

    def unscale(self, optimizer: Optimizer) -> None:
        """Unscale the gradients, before they are used."""
        if self._scaler is not None:
            self._scaler.unscale_(optimizer)

    def step(self, optimizer: Optimizer) -> None:
        """Optimizer step, skipped if a scaled gradient overflowed."""
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
        """Restore the scaler's state."""
        if self._scaler is not None and state:
            self._scaler.load_state_dict(state)
