"""The devices of this machine, and the choice of one for a mode of training. Needs no torch."""

from __future__ import annotations

import logging
import platform
from pathlib import Path
from typing import Any, Literal, Protocol

from phonate.compute.gpus import GIB, Gpu, find_gpus
from phonate.compute.limits import cores, memory_bytes
from phonate.config.errors import InputError

logger = logging.getLogger("phonate")

Mode = Literal["gpu", "cpu", "mixed"]
MODES: tuple[Mode, ...] = ("gpu", "cpu", "mixed")

Preference = Literal["first", "most_free"]
PREFERENCES: tuple[Preference, ...] = ("first", "most_free")

MIN_GPU_MEMORY_GB = 5.0
"""Default of the free memory that a GPU needs."""


class NoDeviceError(InputError, RuntimeError):
    """The mode requires a GPU, and none has enough free memory."""


class Probe(Protocol):
    """What `ResourceDetector` queries. Tests replace it."""

    def gpus(self) -> list[Gpu]:
        """The visible GPUs in CUDA's order, with the memory that is free now."""
        ...

    def cores(self) -> int:
        """Cores this process may use."""
        ...

    def memory_gb(self) -> float:
        """Memory this process may use, in 1024^3 bytes."""
        ...


class SystemProbe:
    """Queries this machine."""

    def gpus(self) -> list[Gpu]:
        """The GPUs that NVML or Metal reports."""
        return find_gpus()

    def cores(self) -> int:
        """Cores under affinity and control groups."""
        return cores()

    def memory_gb(self) -> float:
        """Memory under control groups, in GB."""
        return memory_bytes() / GIB


class ResourceDetector:
    """Finds devices and chooses one. GPUs are queried through NVML, which creates no CUDA context.

    Args:
        probe: where to look; this machine by default.
    """

    def __init__(self, probe: Probe | None = None) -> None:
        self._probe = probe or SystemProbe()

    def get_available_devices(self) -> list[dict[str, Any]]:
        """The GPUs in CUDA's order, then the CPU.

        A GPU has the keys type ("cuda" or "mps"), id, name, memory_gb, free_gb, compute_capability; the CPU has type
        ("cpu"), id, name, memory_gb, cores. One GB is 1024^3 bytes.
        """
        devices: list[dict[str, Any]] = [
            {
                "type": gpu.type,
                "id": gpu.id,
                "name": gpu.name,
                "memory_gb": gpu.total_gb,
                "free_gb": gpu.free_gb,
                "compute_capability": gpu.capability,
            }
            for gpu in self._probe.gpus()
        ]
        cpu = {"type": "cpu", "id": 0, "name": _processor(), "memory_gb": self._probe.memory_gb()}
        return [*devices, {**cpu, "cores": self._probe.cores()}]

    def get_device_memory(self, device_id: int) -> tuple[float, float]:
        """Free and total memory of GPU number `device_id` in GB, as they are now. Raises InputError."""
        gpus = self._probe.gpus()
        for gpu in gpus:
            if gpu.id == device_id:
                return gpu.free_gb, gpu.total_gb
        raise InputError(f"no GPU {device_id}: {len(gpus)} were found, counted from 0")

    def select_best_device(
        self, mode: Mode = "mixed", min_memory_gb: float = MIN_GPU_MEMORY_GB, prefer: Preference = "first"
    ) -> str:
        """A GPU with `min_memory_gb` free: "cuda:N", or "mps" on a Mac.

        Without one, mode "mixed" returns "cpu", and logs why where there are GPUs. Mode "cpu" returns it without a look
        at them.

        Args:
            mode: gpu, cpu or mixed.
            min_memory_gb: free memory that the GPU needs, in units of 1024^3 bytes.
            prefer: of several such GPUs "first" takes the one with the lowest number, "most_free" the one with the
                most free memory.

        Raises:
            NoDeviceError: mode "gpu", and no GPU has that much free memory. It is a RuntimeError, too.
            InputError: `mode` or `prefer` is not known, or `min_memory_gb` is negative.
        """
        if mode not in MODES:
            raise InputError(f"unknown mode {mode!r}; choose gpu, cpu or mixed")
        if prefer not in PREFERENCES:
            raise InputError(f"unknown preference {prefer!r}; choose first or most_free")
        if not min_memory_gb >= 0.0:
            raise InputError(f"minimum GPU memory is {min_memory_gb} GB; give 0 or more")
        if mode == "cpu":
            return "cpu"
        gpus = self._probe.gpus()
        fitting = [gpu for gpu in gpus if gpu.free_gb >= min_memory_gb]
        if fitting:
            gpu = fitting[0] if prefer == "first" else max(fitting, key=lambda one: one.free_gb)
            return "mps" if gpu.type == "mps" else f"cuda:{gpu.id}"
        why = _shortage(gpus, min_memory_gb)
        if mode == "gpu":
            raise NoDeviceError(f"GPU mode requested but {why}; {_remedy(gpus)}")
        if gpus:
            log_fallback(why)
        return "cpu"

    def text(self) -> str:
        """The devices as `phonate resources` prints them."""
        rule = 80 * "="
        blocks = [f"{rule}\nAvailable Compute Resources\n{rule}"]
        for device in self.get_available_devices():
            if device["type"] == "cpu":
                blocks.append(f"CPU: {device['cores']} cores\n  RAM: {device['memory_gb']:.2f} GB")
            else:
                blocks.append(
                    f"GPU {device['id']}: {device['name']}\n"
                    f"  Memory: {device['free_gb']:.2f} GB free / {device['memory_gb']:.2f} GB total\n"
                    f"  Compute: {device['compute_capability']}"
                )
        return "\n" + "\n\n".join(blocks)


_reported: set[str] = set()


def log_fallback(reason: str) -> None:
    """Log why the CPU is used although there is a GPU: each reason once, however many runs a command trains."""
    if reason not in _reported:
        _reported.add(reason)
        logger.warning("Falling back to CPU: %s", reason)


def forget_fallbacks() -> None:
    """Log every reason again, for a session that has a log of its own."""
    _reported.clear()


def _shortage(gpus: list[Gpu], min_memory_gb: float) -> str:
    if not gpus:
        return "no CUDA devices available"
    held = ", ".join(f"GPU {gpu.id} has {gpu.free_gb:.2f} of {gpu.total_gb:.2f}" for gpu in gpus)
    return f"no device has {float(min_memory_gb)} GB free ({held})"


def _remedy(gpus: list[Gpu]) -> str:
    return "use --mode mixed or --mode cpu" + (", or require less with --min-gpu-memory" if gpus else "")


def _processor() -> str:
    """The processor's name; its architecture where the system has no name for it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:  # not Linux
        pass
    return platform.processor() or platform.machine() or "CPU"
