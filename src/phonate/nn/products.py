"""Products of matrices on a processor, by the faster of torch's two libraries.

Shapes: I inputs, O outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

_LEAST_ROWS = 64
"""Fewer rows gain nothing."""


class WideProducts(TorchFunctionMode):
    """Within, linear layers in fp32 are computed by oneDNN where a processor has AVX-512.

    torch leaves them to MKL, which uses AVX-512 on Intel's processors alone: on AMD's with 512 bits, oneDNN takes half
    the time. The results agree up to rounding. Few rows, and products that need gradients, stay with MKL.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """What `func` gives."""
        if func is F.linear and not kwargs and _is_wide(args[0]):
            return _linear(*args)
        return func(*args, **(kwargs or {}))


def _is_wide(x: Tensor) -> bool:
    """Whether oneDNN computes the product of `x` (..., I)."""
    return (
        x.device.type == "cpu"
        and x.dtype is torch.float32
        and x.numel() >= _LEAST_ROWS * x.shape[-1]
        and not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
        and torch._C._has_mkldnn
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
    )


def _linear(x: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """(..., I) -> (..., O), by the operator that torch's own compiler takes; its public one copies input and output."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight_OI, bias_O, "none", [], "")
    return product
