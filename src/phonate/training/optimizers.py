"""The optimizers that recipes can name, built without importing torch's compiler.

Methods of `torch.optim.Optimizer` are decorated to exclude them from torch.compile. The decorators import torch._dynamo
on the first call, which takes about a second. Subclasses with the undecorated methods avoid that; torch's own classes
are not modified.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar, cast, overload

import torch
from torch import Tensor, nn

from phonate.compute.distributed import is_sharded
from phonate.config.errors import InputError
from phonate.training.registries import OPTIMIZERS
from phonate.training.settings import OptimizerSettings

# --------------------------------------------------- torch's optimizers without importing its compiler

OptimizerT = TypeVar("OptimizerT", bound=torch.optim.Optimizer)

_DECORATED = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")


def eager(optimizer: type[OptimizerT]) -> type[OptimizerT]:
    """A subclass of `optimizer` with the same name, which does not support or import torch.compile."""
    methods = {name: inspect.unwrap(getattr(optimizer, name)) for name in _DECORATED}
    step = torch.no_grad()(inspect.unwrap(optimizer.step))  # torch adds the profiler's record and the hooks itself
    body = {**methods, "step": step, "__module__": optimizer.__module__, "__doc__": optimizer.__doc__}
    return cast(type[OptimizerT], type(optimizer.__name__, (optimizer,), body))


# ----------------------------------------------------------------- Adadelta (Zeiler 2012, Algorithm 1)


def adadelta(
    parameters: Iterable[tuple[str, nn.Parameter]],
    *,
    lr: float,
    weight_decay: float,
    rho: float = 0.9,
    epsilon: float = 1e-6,
) -> torch.optim.Adadelta:
    """Adadelta over named parameters."""
    return eager(torch.optim.Adadelta)(parameters, lr=lr, rho=rho, eps=epsilon, weight_decay=weight_decay)


# ------------------------------------------------------------------------- Adagrad (Duchi et al. 2011)


def adagrad(
    parameters: Iterable[tuple[str, nn.Parameter]],
    *,
    lr: float,
    weight_decay: float,
    epsilon: float = 1e-10,
    fused: bool = False,
) -> torch.optim.Adagrad:
    """Adagrad over named parameters."""
    parameters = list(parameters)
    # torch's fused kernel supports only CPU and CUDA.
    fused = fused and all(parameter.device.type in {"cpu", "cuda"} for _, parameter in parameters)
    return eager(torch.optim.Adagrad)(parameters, lr=lr, eps=epsilon, weight_decay=weight_decay, fused=fused)


# ------------------------- Adam (Kingma & Ba 2015, Algorithm 1). Weight decay is added to the gradient


def adam(
    parameters: Iterable[tuple[str, nn.Parameter]],
    *,
    lr: float,
    weight_decay: float,
    betas: tuple[float, float] = (0.9, 0.999),
    epsilon: float = 1e-8,
    amsgrad: bool = False,
    fused: bool = False,
    kind: type[torch.optim.Adam] = torch.optim.Adam,
) -> torch.optim.Adam:
    """Adam, or its `kind`, over named parameters."""
    return eager(kind)(
        parameters, lr=lr, betas=betas, eps=epsilon, weight_decay=weight_decay, amsgrad=amsgrad, fused=fused
    )


# --------------------------------- AdaMax: Adam with the infinity norm (Kingma & Ba 2015, Algorithm 2)


def adamax(
    parameters: Iterable[tuple[str, nn.Parameter]],
    *,
    lr: float,
    weight_decay: float,
    betas: tuple[float, float] = (0.9, 0.999),
    epsilon: float = 1e-8,
) -> torch.optim.Adamax:
    """AdaMax over named parameters."""
    return eager(torch.optim.Adamax)(parameters, lr=lr, betas=betas, eps=epsilon, weight_decay=weight_decay)


# --------------------- AdamW: Adam with decoupled weight decay (Loshchilov & Hutter 2019, Algorithm 2)


adamw = partial(adam, kind=torch.optim.AdamW)


# -------------------------- Lion: the sign of an interpolated momentum (Chen et al. 2023, Algorithm 2)


@eager
class Lion(torch.optim.Optimizer):
    """Lion over named parameters, with decoupled weight decay ("Symbolic Discovery of..."):

        c = beta1 * m + (1 - beta1) * g
        p = p - lr * (sign(c) + weight_decay * p)
        m = beta2 * m + (1 - beta2) * g

    Every weight changes by `lr` in each step, so the rate should be 3 to 10 times smaller than for AdamW, and the
    weight decay larger by the same factor (section 5 of the paper).
    """

    def __init__(
        self,
        parameters: Iterable[tuple[str, nn.Parameter]],
        *,
        lr: float,
        weight_decay: float,
        betas: tuple[float, float] = (0.9, 0.99),
    ) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One update from the gradients. `closure`, if given, recomputes the loss and returns it."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self._update(group)
        return loss

    def _update(self, group: dict[str, Any]) -> None:
        parameters = [p for p in group["params"] if p.grad is not None]
        if not parameters:
            return
        gradients = [p.grad for p in parameters]
        momenta = [self._momentum(p) for p in parameters]
        beta1, beta2 = group["betas"]
        directions = torch._foreach_lerp(momenta, gradients, 1 - beta1)
        torch._foreach_sign_(directions)
        torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(parameters, directions, alpha=-group["lr"])
        torch._foreach_lerp_(momenta, gradients, 1 - beta2)

    def _momentum(self, parameter: Tensor) -> Tensor:
        state = self.state[parameter]
        if not state:
            state["momentum"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        momentum: Tensor = state["momentum"]
        return momentum


# ------------ RMSprop (Tieleman & Hinton 2012, lecture 6.5). `rho` is the decay that torch calls alpha


def rmsprop(
    parameters: Iterable[tuple[str, nn.Parameter]],
    *,
    lr: float,
    weight_decay: float,
    rho: float = 0.99,
    epsilon: float = 1e-8,
    momentum: float = 0.0,
) -> torch.optim.RMSprop:
    """RMSprop over named parameters."""
    return eager(torch.optim.RMSprop)(
        parameters, lr=lr, alpha=rho, eps=epsilon, momentum=momentum, weight_decay=weight_decay
    )


# ----------------------------------- Stochastic gradient descent with momentum (Sutskever et al. 2013)


def sgd(
    parameters: Iterable[tuple[str, nn.Parameter]],
    *,
    lr: float,
    weight_decay: float,
    momentum: float = 0.9,
    nesterov: bool = False,
    fused: bool = False,
) -> torch.optim.SGD:
    """SGD over named parameters."""
    if nesterov and momentum == 0:
        raise InputError("training.optimizer.nesterov: Nesterov momentum needs a momentum above 0")
    parameters = list(parameters)
    optimizer = eager(torch.optim.SGD)(
        parameters, lr=lr, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay, fused=fused
    )
    if momentum and fused:
        # torch makes them in the first step and, where that is left out for an overflow, goes on from them unwritten
        for _, parameter in parameters:
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimizer


# -------------------------------------------------------------------- Build an optimizer from settings

OptimizerFactory = Callable[..., torch.optim.Optimizer]
"""Takes named parameters, and keywords named as in `OptimizerSettings`; its signature lists the supported ones."""

FUSED_DEVICES = frozenset({"cpu", "cuda", "mps"})
"""Devices with fused kernels in torch. On two CPU cores they are about three times as fast as the default loop."""
_FUSED_IN_PARTS = frozenset({"adam", "adamw"})
"""The optimizers whose fused kernels take weights of which each rank has a part."""


def build_optimizer(
    settings: OptimizerSettings,
    named_parameters: Iterable[tuple[str, nn.Parameter]],
    device: torch.device,
) -> torch.optim.Optimizer:
    """Build the optimizer for `settings` over `named_parameters`, which must already be on `device`.

    Each group keeps its peak learning rate in `group["initial_lr"]`, for schedules and callbacks.

    Raises:
        InputError: an unknown optimizer, an option that the chosen optimizer does not support, or no parameters.
    """
    factory: OptimizerFactory = OPTIMIZERS.get(settings.type)
    keywords = _keywords(settings, factory)
    parameters = list(named_parameters)
    if not parameters:
        raise InputError("the model has no trainable parameters: is everything frozen?")
    if "fused" in inspect.signature(factory).parameters:
        keywords["fused"] = device.type in FUSED_DEVICES and all(
            parameter.is_floating_point() and (settings.type in _FUSED_IN_PARTS or not is_sharded(parameter))
            for _, parameter in parameters
        )
    optimizer = factory(parameters, **keywords)
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]
    return optimizer


def _keywords(settings: OptimizerSettings, factory: OptimizerFactory) -> dict[str, Any]:
    """Keyword arguments for `factory`: `lr`, `weight_decay` and every other setting that is not at its default."""
    fields = type(settings).model_fields
    chosen = {
        name: getattr(settings, name)
        for name in fields
        if name != "type" and (name in {"lr", "weight_decay"} or getattr(settings, name) != fields[name].default)
    }
    accepted = inspect.signature(factory).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in accepted.values()):
        return chosen
    for name in chosen:
        if name not in accepted:
            has = ", ".join(option for option in fields if option in accepted)
            raise InputError(f"training.optimizer.{name}: {settings.type} has no {name}; it has {has}")
    return chosen
