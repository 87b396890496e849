"""torch's optimizers without the import of its compiler.

Methods of `torch.optim.Optimizer` are decorated so that the compiler leaves them alone; the decorators import
torch._dynamo at the first call, a second of every start. Subclasses with the undecorated methods do not. torch's own
classes stay as they are.
"""

from __future__ import annotations

import inspect
from typing import TypeVar, cast

import torch

OptimizerT = TypeVar("OptimizerT", bound=torch.optim.Optimizer)

_DECORATED = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")


def eager(optimizer: type[OptimizerT]) -> type[OptimizerT]:
    """A subclass of `optimizer`, with its name, that never runs under torch.compile and does not import it."""
    methods = {name: inspect.unwrap(getattr(optimizer, name)) for name in _DECORATED}
    step = torch.no_grad()(inspect.unwrap(optimizer.step))  # torch adds the profiler's mark and the hooks itself
    body = {**methods, "step": step, "__module__": optimizer.__module__, "__doc__": optimizer.__doc__}
    return cast(type[OptimizerT], type(optimizer.__name__, (optimizer,), body))
