"""Lion: the sign of an interpolated momentum (Chen et al. 2023, Algorithm 2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, overload

import torch
from torch import Tensor, nn

from phonate.training.optimizers._eager import eager


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
