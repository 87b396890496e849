"""What there is to train on, and the device that a mode of training gets. Needs no torch."""

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

MIN_GPU_MEMORY_GB = 5.0
"""Free memory that a GPU needs to be taken, unless told otherwise."""


class NoDeviceError(InputError, RuntimeError):
    """The mode asks for a GPU, and none will do."""


class Probe(Protocol):
    """Where `ResourceDetector` looks. Tests give it one of their own."""

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
    """Looks at this machine."""

    def gpus(self) -> list[Gpu]:
        """What NVML, or Metal, has."""
        return find_gpus()

    def cores(self) -> int:
        """Under affinity and control groups."""
        return cores()

    def memory_gb(self) -> float:
        """Under control groups."""
        return memory_bytes() / GIB


class ResourceDetector:
    """Finds devices and chooses one. GPUs are asked through NVML: no CUDA context comes into being.

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
        raise InputError(f"GPU {device_id} is not there: {len(gpus)} were found, counted from 0")

    def select_best_device(self, mode: Mode = "mixed", min_memory_gb: float = MIN_GPU_MEMORY_GB) -> str:
        """The first GPU, in the order of their numbers, with `min_memory_gb` free: "cuda:N", or "mps" on a Mac.

        Without one, mode "mixed" logs why and returns "cpu". Mode "cpu" returns it without looking at GPUs.

        Raises:
            NoDeviceError: mode "gpu", and no GPU has that much free memory. It is a RuntimeError, too.
            InputError: no such mode, or `min_memory_gb` is negative.
        """
        if mode not in MODES:
            raise InputError(f"mode {mode!r} is not known; say gpu, cpu or mixed")
        if not min_memory_gb >= 0.0:
            raise InputError(f"GPU memory of {min_memory_gb} GB can't be asked for; give 0 or more")
        if mode == "cpu":
            return "cpu"
        gpus = self._probe.gpus()
        for gpu in gpus:
            if gpu.free_gb >= min_memory_gb:
                return "mps" if gpu.type == "mps" else f"cuda:{gpu.id}"
        why = _shortage(gpus, min_memory_gb)
        if mode == "gpu":
            raise NoDeviceError(f"GPU mode requested but {why}; {_mend(gpus)}")
        logger.info("Falling back to CPU: %s", why)
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


def _shortage(gpus: list[Gpu], min_memory_gb: float) -> str:
    if not gpus:
        return "no CUDA devices available"
    held = ", ".join(f"GPU {gpu.id} has {gpu.free_gb:.2f} of {gpu.total_gb:.2f}" for gpu in gpus)
    return f"no device has {float(min_memory_gb)} GB free ({held})"


def _mend(gpus: list[Gpu]) -> str:
    return "use --mode mixed or --mode cpu" + (", or ask for less by --min-gpu-memory" if gpus else "")


def _processor() -> str:
    """The processor's name; its architecture where the system has no name for it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:  # not Linux
        pass
    return platform.processor() or platform.machine() or "CPU"
