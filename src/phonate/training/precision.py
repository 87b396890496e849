"""Number formats of the forward pass, and loss scaling for fp16.

Rules, methods and state are those of `torch.amp.GradScaler`, so a checkpoint of either can be resumed with the other.
It uses only ordinary tensor operations, because torch's scaler supports MPS only from version 2.13.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from phonate.compute.resources import DeviceType, multiplies_in_bf16
from phonate.config.errors import InputError
from phonate.nn import kernels

logger = logging.getLogger(__name__)

# ----- Loss scaling for fp16 on Apple's GPUs (Micikevicius et al. 2018, arXiv:1710.03740, section 3.2)

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


def _skips_on_device(optimizer: Optimizer) -> bool:
    """Whether the kernels of a fused `optimizer` leave everything as it is where its `found_inf` is 1."""
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


@torch.no_grad()
def _unscaled(gradients: Iterable[Tensor], factor: float) -> Tensor:
    """Multiply `gradients` in place; returns whether any was not finite, without synchronising with the device."""
    overflow = torch.zeros((), dtype=torch.bool)
    for gradient in gradients:
        values = gradient.coalesce().values() if gradient.is_sparse else gradient
        overflow = overflow.to(values.device) | ~values.isfinite().all()
        gradient.mul_(factor)
    return overflow


KERNELS = "kernels"
"""Where a checkpoint says whether `nn.kernels` computed."""
FORMATS = {"bf16": torch.bfloat16, "fp16": torch.float16}


def try_out(name: str, device: torch.device) -> None:
    """Run a tiny forward and backward pass in format `name`. Raises torch's RuntimeError if it is not supported."""
    with torch.autocast(device.type, dtype=FORMATS[name]):
        weight = torch.ones(8, 8, device=device, requires_grad=True)
        product = weight @ weight
        if product.dtype is not FORMATS[name]:  # for some devices and formats torch only warns and uses fp32
            raise RuntimeError(f"autocast computes in {str(product.dtype).removeprefix('torch.')}")
        product.float().sum().backward()  # type: ignore[no-untyped-call]


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
        self._has_kernels = self.name != "fp16" and device.type == "cpu"
        if self._has_kernels and self.name == "bf16" and multiplies_in_bf16() is False:
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

    def backward(self, loss: Tensor, parameters: Sequence[nn.Parameter] | None = None) -> None:
        """Backward pass of the scaled loss; with `parameters` to theirs alone, and to no hook that waits for them."""
        scaled = loss if self._scaler is None else self._scaler.scale(loss)
        if parameters is None:
            torch.autograd.backward(scaled)
            return
        trained = [one for one in parameters if one.requires_grad]
        for one, gradient in zip(trained, torch.autograd.grad(scaled, trained, allow_unused=True), strict=True):
            if gradient is not None:
                # two may be given the same memory, or transposed one; ranks add up in place, as it lies there
                one.grad = torch.empty_like(one).copy_(gradient) if one.grad is None else one.grad + gradient

    def unscale(self, optimizer: Optimizer) -> None:
        """Unscale the gradients, before they are used."""
        if self._scaler is not None:
            self._scaler.unscale_(optimizer)

    def step(self, optimizer: Optimizer, unusable: Tensor | bool = False) -> None:
        """Optimizer step, skipped if a scaled gradient overflowed or the gradients are `unusable`.

        A scalar on the device is read there by fused optimizers; others wait for it.
        """
        if self._scaler is not None:
            self._scaler.step(optimizer)
        elif isinstance(unusable, Tensor) and _skips_on_device(optimizer):
            fused: Any = optimizer
            fused.grad_scale, fused.found_inf = None, unusable.float()
            optimizer.step()
            del fused.grad_scale, fused.found_inf
        elif not unusable:
            optimizer.step()

    def update(self) -> None:
        """Adapt the loss scale once all optimizers have stepped."""
        if self._scaler is not None:
            self._scaler.update(self._fixed)

    def state(self) -> dict[str, Any]:
        """The scaler's state; and whether the kernels in C compute, where anything asks for them."""
        if self._scaler is not None:
            return self._scaler.state_dict()
        used = kernels.used() if self._has_kernels else None
        return {} if used is None else {KERNELS: used}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the scaler's state; say where steps are no longer computed as they were."""
        before = state.get(KERNELS)
        if before is None and self._scaler is not None and state:
            self._scaler.load_state_dict(state)
        if before is not None and self._has_kernels and before != kernels.compiled():
            others = ("with", "without") if before else ("without", "with")
            message = "%s was computed %s a C compiler, and is now %s one: results differ by rounding"
            logger.warning(message, self.name, *others)
