"""The device to compute on, and its memory.

The numbers are the device's own, not those of torch's allocator: memory that other processes hold, or that the caching
allocator keeps, is not free either.
"""

from __future__ import annotations

import errno
import gc
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from phonate.compute.resources import (
    GIB,
    CompileModel,
    DeviceType,
    Gpu,
    NoDeviceError,
    Probe,
    ResourceDetector,
    SystemProbe,
    log_fallback,
    other_modes,
    require_mode,
)
from phonate.compute.resources import Mode as Mode
from phonate.compute.system import return_freed_pages
from phonate.config.errors import InputError

# ---------------------------------------------------------------------------- The device to compute on


def choose(
    mode: Mode = "mixed", device: str | None = None, min_memory_gb: float = 0.0, probe: Probe | None = None
) -> torch.device:
    """The named device, else the one that `mode` allows.

    gpu: a GPU or an error; cpu: never a GPU; mixed: a GPU if there is one. Of several GPUs the first with
    `min_memory_gb` free is taken (`ResourceDetector.select_best_device`); each rank started by torchrun takes its own.

    Raises:
        NoDeviceError: mode "gpu", and no GPU has enough free memory.
        InputError: `device` or `mode` is unknown, or the machine has no such device.
    """
    probe = probe or SystemProbe()
    if device is not None:
        if device.startswith("cuda"):
            probe.gpus()  # settles their order, so that cuda:1 is the GPU 1 that `phonate resources` lists
        return _named(device)
    if mode == "cpu":
        return torch.device("cpu")
    gpus = probe.gpus()  # before torch asks CUDA anything, for the same reason
    if not torch.cuda.is_available() and not torch.backends.mps.is_available():
        return _without_gpu(mode, gpus)
    if "LOCAL_RANK" in os.environ and torch.cuda.is_available():
        return torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    return torch.device(ResourceDetector(probe if gpus else _TorchProbe()).select_best_device(mode, min_memory_gb))


def _without_gpu(mode: Mode, gpus: list[Gpu]) -> torch.device:
    """The device where torch can use no GPU, though the machine may have one."""
    unused = f"; torch {torch.__version__} can't use {gpus[0].name}, install a build that can" if gpus else ""
    if mode == "gpu":
        raise NoDeviceError(f"GPU mode requested but no CUDA devices available{unused or f'; {other_modes()}'}")
    require_mode(mode)
    if gpus:
        log_fallback(f"no CUDA devices available{unused}")
    return torch.device("cpu")


class _TorchProbe(SystemProbe):
    """For GPUs that torch supports and NVML does not, such as AMD's; querying one creates a context on it."""

    def gpus(self) -> list[Gpu]:
        """The GPUs that torch calls cuda."""
        return [self._gpu(number) for number in range(torch.cuda.device_count())]

    def _gpu(self, number: int) -> Gpu:
        free, total = torch.cuda.mem_get_info(number)
        about = torch.cuda.get_device_properties(number)
        return Gpu(number, about.name, free / GIB, total / GIB, f"{about.major}.{about.minor}")


def _named(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"unknown device {name!r}; choose cpu, cuda:0 or mps") from None
    if device.type == "cuda":
        count = torch.cuda.device_count()
        if (device.index or 0) >= count:
            raise InputError(
                f"device {name} does not exist: {count} CUDA devices were found, counted from 0; choose another"
            )
    elif device.type == "mps" and not torch.backends.mps.is_available():
        raise InputError("device mps does not exist on this machine; choose cpu")
    elif device.type not in {"cpu", "mps"}:
        raise InputError(f"device {name!r} is not supported; choose cpu, cuda:0 or mps")
    return device


# ------------------- Memory usage of a device, of this machine or of the control group of this process


@dataclass(frozen=True)
class Usage:
    """Used and total memory in bytes."""

    used: float
    total: float

    @property
    def share(self) -> float:
        """Used share, from 0 to 1."""
        return self.used / self.total if self.total else 0.0


def host_usage(group: Path = Path("/sys/fs/cgroup")) -> Usage:
    """This machine's memory, or that of the control group `group`, whichever is fuller. About 0.1 ms.

    Files that the system keeps in memory only because there is room do not count as used, neither the machine's
    (psutil's `available`) nor the group's (`inactive_file`): they go before anything is killed.
    """
    import psutil

    machine = psutil.virtual_memory()
    usage = Usage(float(machine.total - machine.available), float(machine.total))
    limited = _group_usage(group)
    if limited is not None and limited.total < machine.total and limited.share > usage.share:
        return limited
    return usage


def _group_usage(group: Path) -> Usage | None:
    """Usage of a control group, of version 2 or 1. None: there is none, or it has no limit."""
    names = ("memory.max", "memory.current", "memory.stat", "inactive_file")
    if not (group / names[0]).is_file():
        group = group / "memory"
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat", "total_inactive_file")
    if not (group / names[0]).is_file() or not (limit := (group / names[0]).read_text().strip()).isdigit():
        return None
    rows = (line.split() for line in (group / names[2]).read_text().splitlines())
    idle = next((float(row[1]) for row in rows if row[0] == names[3]), 0.0)
    return Usage(max(float((group / names[1]).read_text()) - idle, 0.0), float(limit))


def usage_of(device: torch.device) -> Callable[[], Usage]:
    """A function that reads the usage of `device`."""
    kind = DeviceType.of(device)
    if kind is DeviceType.CUDA:

        def cuda() -> Usage:
            free, total = torch.cuda.mem_get_info(device)
            return Usage(float(total - free), float(total))

        return cuda
    if kind is DeviceType.MPS:
        # Memory is the machine's; past what Metal recommends, it is swapped.
        return lambda: Usage(float(torch.mps.driver_allocated_memory()), float(torch.mps.recommended_max_memory()))
    return host_usage


def release(device: torch.device, thorough: bool = True) -> None:
    """Return unused memory to the device.

    `thorough` also looks for dead objects that refer to each other, and on a CPU returns freed pages to the system
    (some 80 ms): only worth it when memory is short.
    """
    kind = DeviceType.of(device)
    if thorough or kind is DeviceType.CPU:
        gc.collect()
    if kind is DeviceType.CUDA:
        torch.cuda.empty_cache()
    elif kind is DeviceType.MPS:
        torch.mps.empty_cache()
    elif thorough and sys.platform == "linux":
        return_freed_pages()


def compile_mode(how: CompileModel, device: torch.device, option: str) -> str | None:
    """The mode of torch.compile that `option` asks for. Raises InputError for CUDA graphs without CUDA."""
    if how == "cuda_graphs" and device.type != "cuda":
        raise InputError(
            f"{option}: cuda_graphs needs an NVIDIA GPU, and this run computes on {device}; set it to true, or to false"
        )
    return "reduce-overhead" if how == "cuda_graphs" else None


_NO_MEMORY = (
    "out of memory",  # CUDA, MPS, XPU
    "can't allocate memory",  # the allocator of a CPU
    "not enough memory",
    "alloc_failed",  # cuBLAS, cuDNN
    "could not create a primitive",  # oneDNN
    "bad_alloc",
)


def out_of_memory(error: BaseException) -> bool:
    """Whether `error` means that memory ran out. Only CUDA has its own exception for it."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _NO_MEMORY)
