"""The device to compute on."""

from __future__ import annotations

import os

import torch

from phonate.compute.gpus import GIB, Gpu
from phonate.compute.resources import Mode as Mode
from phonate.compute.resources import NoDeviceError, Probe, ResourceDetector, SystemProbe, log_fallback
from phonate.config.errors import InputError


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
    found = probe.gpus()  # before torch asks CUDA anything, for the same reason
    if not torch.cuda.is_available() and not torch.backends.mps.is_available():
        return _without_gpu(mode, found)
    if "LOCAL_RANK" in os.environ and torch.cuda.is_available():
        return torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    return torch.device(ResourceDetector(probe if found else _TorchProbe()).select_best_device(mode, min_memory_gb))


def _without_gpu(mode: Mode, found: list[Gpu]) -> torch.device:
    """The device where torch can use no GPU, though the machine may have one."""
    unused = f"; torch {torch.__version__} can't use {found[0].name}, install a build that can" if found else ""
    if mode == "gpu":
        raise NoDeviceError(
            f"GPU mode requested but no CUDA devices available{unused or '; use --mode mixed or --mode cpu'}"
        )
    if mode != "mixed":
        raise InputError(f"unknown mode {mode!r}; choose gpu, cpu or mixed")
    if found:
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
        found = torch.cuda.device_count()
        if (device.index or 0) >= found:
            raise InputError(
                f"device {name} does not exist: {found} CUDA devices were found, counted from 0; choose another"
            )
    elif device.type == "mps" and not torch.backends.mps.is_available():
        raise InputError("device mps does not exist on this machine; choose cpu")
    elif device.type not in {"cpu", "mps"}:
        raise InputError(f"device {name!r} is not supported; choose cpu, cuda:0 or mps")
    return device
