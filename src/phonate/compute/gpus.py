"""The GPUs that this process would see, and their free memory, without starting CUDA.

Asking CUDA for free memory creates a context on each GPU, which itself takes hundreds of megabytes. NVML, the library
behind nvidia-smi, takes none, but ignores CUDA_VISIBLE_DEVICES, so that is applied here.
"""

from __future__ import annotations

import logging
import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import psutil

logger = logging.getLogger("phonate")

GIB = 1024**3


@dataclass(frozen=True)
class Gpu:
    """A GPU as this process would see it. Memory is in units of 1024^3 bytes."""

    id: int
    """The N of `cuda:N`: the place among the visible ones."""
    name: str
    free_gb: float
    total_gb: float
    capability: str
    """Compute capability such as "7.5"; of Apple's GPUs "Metal"."""
    type: Literal["cuda", "mps"] = "cuda"


def find_gpus() -> list[Gpu]:
    """The GPUs of this machine that the process would see, in CUDA's order; empty if there are none."""
    if sys.platform == "darwin":
        return _apple()
    import pynvml

    return nvidia(pynvml, os.environ)


def nvidia(nvml: Any, environ: MutableMapping[str, str]) -> list[Gpu]:
    """The visible NVIDIA GPUs.

    Args:
        nvml: the module pynvml, or a stand-in.
        environ: the environment with CUDA_VISIBLE_DEVICES. Where the GPUs are of different kinds and nothing is said
            about their order, CUDA_DEVICE_ORDER=PCI_BUS_ID is put into it: CUDA would place the fastest first by a
            rule of its own, and cuda:1 would not be the GPU 1 that is listed here and in nvidia-smi.
    """
    try:
        with _started(nvml):
            handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
            _settle_order({_name(nvml, handle) for handle in handles}, environ)
            seen = _computing(nvml, _visible(nvml, handles, environ))
            return [_described(nvml, number, handle) for number, handle in enumerate(seen)]
    except (nvml.NVMLError_LibraryNotFound, nvml.NVMLError_DriverNotLoaded):
        return []  # a machine without NVIDIA GPUs
    except nvml.NVMLError as error:
        logger.warning("NVML can't list the GPUs (%s); nvidia-smi may say more", error)
        return []


@contextmanager
def _started(nvml: Any) -> Iterator[None]:
    nvml.nvmlInit()
    try:
        yield
    finally:
        nvml.nvmlShutdown()


def _settle_order(names: set[str], environ: MutableMapping[str, str]) -> None:
    if len(names) > 1 and environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID") != "PCI_BUS_ID":
        logger.warning(
            "CUDA_DEVICE_ORDER=%s: GPUs of different kinds may be numbered otherwise than here; set it to PCI_BUS_ID",
            environ["CUDA_DEVICE_ORDER"],
        )


def _visible(nvml: Any, handles: list[Any], environ: Mapping[str, str]) -> list[Any]:
    """What CUDA_VISIBLE_DEVICES leaves of `handles`, in its order. As in CUDA, the list ends at the first entry that
    is no device, and one that names a device twice leaves none."""
    listed = environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return handles
    found: list[Any] = []
    known: list[str] = []
    for entry in listed.split(","):
        handle = _handle(nvml, handles, entry.strip())
        if handle is None:
            break
        uuid = _text(nvml.nvmlDeviceGetUUID(handle))
        if uuid in known:
            return []
        found.append(handle)
        known.append(uuid)
    return found


def _handle(nvml: Any, handles: list[Any], entry: str) -> Any | None:
    """The device of one entry: a number, the beginning of a GPU's UUID, or the UUID of a MIG instance."""
    if entry.startswith("MIG-"):
        try:
            return nvml.nvmlDeviceGetHandleByUUID(entry)
        except (nvml.NVMLError_NotFound, nvml.NVMLError_InvalidArgument):
            return None
    if entry.startswith("GPU-"):
        matching = [handle for handle in handles if _text(nvml.nvmlDeviceGetUUID(handle)).startswith(entry)]
        return matching[0] if len(matching) == 1 else None
    number = re.match(r"\+?\d+", entry)  # CUDA reads the digits an entry begins with
    return handles[int(number[0])] if number and int(number[0]) < len(handles) else None


def _computing(nvml: Any, handles: list[Any]) -> list[Any]:
    """The devices CUDA computes on: one MIG instance, the first, where there are any, else the GPUs themselves.

    NVIDIA's MIG User Guide, "CUDA Device Enumeration": CUDA takes a single instance, and then no GPU beside it.
    """
    whole = []
    for handle in handles:
        instances = _instances(nvml, handle)
        if instances is None:
            whole.append(handle)
        elif instances:
            return instances[:1]
    return whole


def _instances(nvml: Any, handle: Any) -> list[Any] | None:
    """MIG instances of a GPU, itself if it is one; None if the GPU is not partitioned."""
    if _is_mig(nvml, handle):
        return [handle]
    try:
        if nvml.nvmlDeviceGetMigMode(handle)[0] != nvml.NVML_DEVICE_MIG_ENABLE:
            return None
        count = nvml.nvmlDeviceGetMaxMigDeviceCount(handle)
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
        return None
    instances = []
    for index in range(count):
        try:
            instances.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index))
        except nvml.NVMLError_NotFound:  # places are numbered with gaps
            continue
    return instances


def _described(nvml: Any, number: int, handle: Any) -> Gpu:
    free, total = _memory(nvml, handle)
    return Gpu(number, _name(nvml, handle), free / GIB, total / GIB, _capability(nvml, handle))


def _memory(nvml: Any, handle: Any) -> tuple[int, int]:
    """Free and total bytes, without what the driver reserves if it reports that."""
    try:
        info = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
        return int(info.free), int(info.total - info.reserved)
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound, nvml.NVMLError_InvalidArgument):
        info = nvml.nvmlDeviceGetMemoryInfo(handle)
        return int(info.free), int(info.total)


def _capability(nvml: Any, handle: Any) -> str:
    if _is_mig(nvml, handle):
        handle = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
    return "{}.{}".format(*nvml.nvmlDeviceGetCudaComputeCapability(handle))


def _is_mig(nvml: Any, handle: Any) -> bool:
    """Whether it is an instance of a partitioned GPU. Drivers that predate MIG don't support the query."""
    try:
        return bool(nvml.nvmlDeviceIsMigDeviceHandle(handle))
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
        return False


def _name(nvml: Any, handle: Any) -> str:
    return _text(nvml.nvmlDeviceGetName(handle))


def _text(value: str | bytes) -> str:
    """Text; older bindings return bytes."""
    return value.decode() if isinstance(value, bytes) else value


def _apple() -> list[Gpu]:
    """The GPU of Apple silicon, which shares the machine's memory. Torch is asked, since virtual machines on the
    same processors have none."""
    if platform.machine() != "arm64":
        return []
    import torch

    if not torch.backends.mps.is_available():
        return []
    memory = psutil.virtual_memory()
    return [Gpu(0, "Apple GPU", memory.available / GIB, memory.total / GIB, "Metal", "mps")]
