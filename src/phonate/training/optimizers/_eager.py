"""torch's optimizers without importing its compiler.

Methods of `torch.optim.Optimizer` are decorated to exclude them from torch.compile. The decorators import torch._dynamo
on the first call, which takes about a second. Subclasses with the undecorated methods avoid that; torch's own classes
are not modified.
"""

from __future__ import annotations

import inspect
from typing import TypeVar, cast

import torch

OptimizerT = TypeVar("OptimizerT", bound=torch.optim.Optimizer)

_DECORATED = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")


def eager(optimizer: type[OptimizerT]) -> type[OptimizerT]:
    """A subclass of `optimizer` with the same name, which does not support or import torch.compile."""
    methods = {name: inspect.unwrap(getattr(optimizer, name)) for name in _DECORATED}
    step = torch.no_grad()(inspect.unwrap(optimizer.step))  # torch adds the profiler's record and the hooks itself
    body = {**methods, "step": step, "__module__": optimizer.__module__, "__doc__": optimizer.__doc__}
    return cast(type[OptimizerT], type(optimizer.__name__, (optimizer,), body))
