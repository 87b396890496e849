"""Which device to train on."""

from __future__ import annotations

import logging
import os

import torch

from phonate.compute.gpus import GIB, Gpu
from phonate.compute.resources import Mode as Mode
from phonate.compute.resources import NoDeviceError, Probe, ResourceDetector, SystemProbe
from phonate.config.errors import InputError

logger = logging.getLogger("phonate")


def choose(
    mode: Mode = "mixed", device: str | None = None, min_memory_gb: float = 0.0, probe: Probe | None = None
) -> torch.device:
    """The device that was named, else the one that `mode` allows.

    gpu: a GPU or an error; cpu: never a GPU; mixed: a GPU where there is one. Of several GPUs the first with
    `min_memory_gb` free is taken (`ResourceDetector.select_best_device`); each rank started by torchrun takes its own.

    Raises:
        NoDeviceError: mode "gpu", and no GPU will do.
        InputError: `device` or `mode` is not known, or the device is not there.
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
    """What is left where torch has no GPU to compute on, though the machine may have one."""
    unused = f"; torch {torch.__version__} can't use {found[0].name}, install a build for its CUDA" if found else ""
    if mode == "gpu":
        raise NoDeviceError(
            f"GPU mode requested but no CUDA devices available{unused or '; use --mode mixed or --mode cpu'}"
        )
    if mode != "mixed":
        raise InputError(f"mode {mode!r} is not known; say gpu, cpu or mixed")
    logger.log(logging.WARNING if found else logging.INFO, "Falling back to CPU: no CUDA devices available%s", unused)
    return torch.device("cpu")


class _TorchProbe(SystemProbe):
    """For GPUs that torch has and NVML does not know, such as AMD's; being asked costs a context on each."""

    def gpus(self) -> list[Gpu]:
        """What torch calls cuda."""
        return [self._gpu(number) for number in range(torch.cuda.device_count())]

    def _gpu(self, number: int) -> Gpu:
        free, total = torch.cuda.mem_get_info(number)
        about = torch.cuda.get_device_properties(number)
        return Gpu(number, about.name, free / GIB, total / GIB, f"{about.major}.{about.minor}")


def _named(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"device {name!r} is not known; say cpu, cuda:0 or mps") from None
    if device.type == "cuda":
        found = torch.cuda.device_count()
        if (device.index or 0) >= found:
            raise InputError(
                f"device {name} is not there: {found} CUDA devices were found; say cpu, or cuda:N of these"
            )
    elif device.type == "mps" and not torch.backends.mps.is_available():
        raise InputError("device mps is not there; say cpu")
    elif device.type not in {"cpu", "mps"}:
        raise InputError(f"device {name!r} can't be trained on; say cpu, cuda:0 or mps")
    return device
