"""What training in bf16 on a processor computes beside matrix products, in C: one pass where torch takes up to twelve.

The machine's own compiler translates `kernels.c` in each process that trains, for its own processor, in half a second.
Where there is none, layers compute the same with torch: results then differ by rounding.

Shapes: R and N rows, D columns, B items, T frames, K taps.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import platform
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from phonate.nn.sequences import NUMBERS

logger = logging.getLogger("phonate")

_SOURCE = Path(__file__).with_name("kernels.c")
_OPTIONS = (
    *("-O2", "-ftree-vectorize", "-fvect-cost-model=dynamic", "-march=native"),
    *(("-mprefer-vector-width=512",) if platform.machine() == "x86_64" else ()),
    *("-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-fopenmp", "-fPIC", "-shared"),
)
_SECONDS = 60.0


class Kernels:
    """The functions of `kernels.c`, for contiguous tensors."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def gelu(self, x: Tensor, numbers: Tensor | None, zeros: int, activated: Tensor, slopes: Tensor) -> None:
        """GELUs of x and their derivatives; 0 where `mask_of` random numbers is."""
        drawn, least = None if numbers is None else _at(numbers), zeros - NUMBERS // 2
        self._library.gelu(_count(x.numel()), _at(x), drawn, least, _at(activated), _at(slopes), _threads())

    def added(self, before: Tensor, change: Tensor, out: Tensor) -> None:
        """The sum of fp32 and bf16, in fp32."""
        self._library.added(_count(out.numel()), _at(before), _at(change), _at(out), _threads())

    def slopes_product(self, gradient_RD: Tensor, slopes_RD: Tensor) -> Tensor:
        """Multiplies a gradient by slopes in place; returns its sums over rows (D,)."""
        sums_D = torch.empty(gradient_RD.shape[1])
        shape = map(_count, gradient_RD.shape)
        self._library.slopes_product(*shape, _at(gradient_RD), _at(slopes_RD), _at(sums_D), _threads())
        return sums_D

    def narrowed(self, gradient_RD: Tensor) -> tuple[Tensor, Tensor]:
        """An fp32 gradient in bf16, and its sums over rows (D,)."""
        narrow_RD, sums_D = torch.empty_like(gradient_RD, dtype=torch.bfloat16), torch.empty(gradient_RD.shape[1])
        shape = map(_count, gradient_RD.shape)
        self._library.narrowed(*shape, _at(gradient_RD), _at(narrow_RD), _at(sums_D), _threads())
        return narrow_RD, sums_D

    def depthwise_backward(self, grad_BTD: Tensor, x_BTD: Tensor, past: int, later: int) -> tuple[Tensor, Tensor]:
        """The gradients of taps (K, D) and biases (D,) of `convolution.depthwise`, in bf16."""
        items, frames, columns = grad_BTD.shape
        taps = past + 1 + later
        parts_BKD = torch.empty(items, taps + 1, columns)
        sizes = map(_count, (items, frames, columns, taps, past))
        self._library.depthwise_backward(*sizes, _at(grad_BTD), _at(x_BTD), _at(parts_BKD), _threads())
        sums_KD = parts_BKD.sum(0).to(grad_BTD.dtype)
        return sums_KD[:taps], sums_KD[taps]


def of(dtype: torch.dtype) -> Kernels | None:
    """The kernels, where this format has them and there is a compiler."""
    return _kernels() if dtype is torch.bfloat16 else None


@functools.cache
def _kernels() -> Kernels | None:
    if sys.platform != "linux":
        return None
    try:
        compiler = shlex.split(os.environ.get("CC", "")) or ["cc"]
        # a file system in a network may keep the library, which is in use, for a while
        with tempfile.TemporaryDirectory(prefix="phonate-", ignore_cleanup_errors=True) as folder:
            library = Path(folder, "kernels.so")
            command = [*compiler, *_OPTIONS, str(_SOURCE), "-o", str(library), "-lm"]
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=_SECONDS)
            return Kernels(ctypes.CDLL(str(library)))
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        told = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[:1]
        logger.info("bf16: %s can't be compiled, so steps take up to a fifth longer (%s)", _SOURCE.name, *told)
        return None


def _at(x: Tensor) -> Any:
    assert x.is_contiguous()
    return ctypes.c_void_p(x.data_ptr())


def _count(size: int) -> Any:
    return ctypes.c_longlong(size)


def _threads() -> int:
    return torch.get_num_threads()
