"""The devices of this machine, their free memory and the limits of this process. No torch.

A container sees all cores and memory of its host; its limits are in the files of its control group. (joblib.cpu_count
reads only the top control group, and imports numpy.)

Asking CUDA for free memory creates a context on each GPU, which itself takes hundreds of megabytes. NVML, the library
behind nvidia-smi, takes none, but ignores CUDA_VISIBLE_DEVICES, so that is applied here.
"""

from __future__ import annotations

import logging
import math
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Any, Literal, Protocol

from phonate.config.errors import InputError, option

logger = logging.getLogger("phonate")

# ----------------------------------------------- The three kinds of devices that models are trained on


class HasType(Protocol):
    """A `torch.device`, or an object with the same attribute."""

    @property
    def type(self) -> str:
        """torch's name for its kind."""
        ...


class DeviceType(StrEnum):
    """A kind of device, by torch's name for it: `DeviceType.of(device) is DeviceType.CUDA`."""

    CUDA = "cuda"
    MPS = "mps"
    CPU = "cpu"

    @classmethod
    def of(cls, device: HasType | str) -> DeviceType:
        """The kind of a `torch.device` or of a name such as "cuda:1". Raises ValueError for other kinds (xpu, ...)."""
        name = device.partition(":")[0] if isinstance(device, str) else device.type
        return cls(name)


# -------------------- Cores and memory that this process may use under CPU affinity and control groups


def cores(root: Path = Path("/")) -> int:
    """Cores this process may use, at least 1: those of the affinity mask, limited by the control group's share.

    A share of 2.5 cores counts as 3. `root` is the parent of /proc and /sys/fs/cgroup.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    shares = [math.ceil(share) for share in _shares(root)]
    return max(1, min([allowed, *shares]))


def memory_bytes(root: Path = Path("/")) -> int:
    """Memory this process may use, in bytes: the machine's, limited by the control group."""
    import psutil

    return min([int(psutil.virtual_memory().total), *_memory_limits(root)])


class OtherPrograms:
    """How many cores programs beside this process and its workers use, from the moment when this is made: of all of the
    machine, in a container of its host."""

    def __init__(self) -> None:
        import psutil

        psutil.cpu_percent()  # starts its measurement
        self._began, self._own = time.perf_counter(), _processor_seconds()

    def cores(self) -> float | None:
        """Their mean since then. None where the system does not count them."""
        import psutil

        in_use = float(psutil.cpu_percent()) / 100 * (psutil.cpu_count() or 1)
        if not in_use:
            return None
        return max(0.0, in_use - (_processor_seconds() - self._own) / (time.perf_counter() - self._began))


def _processor_seconds() -> float:
    """What this process and its workers, those that have ended included, took of the cores; of several ranks, all that
    their launcher started here."""
    import psutil

    process = psutil.Process()
    if "LOCAL_RANK" in os.environ:
        process = process.parent() or process
    seconds = sum(process.cpu_times()[:4])
    for worker in process.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            seconds += sum(worker.cpu_times()[:4])
    return float(seconds)


def _shares(root: Path) -> Iterator[float]:
    """Cores that the control group and those above it allow; empty without a limit."""
    for folder in _folders(root, None):
        quota, _, period = _text(folder / "cpu.max").partition(" ")
        if quota.isdigit() and period.isdigit() and int(period):
            yield int(quota) / int(period)
    for folder in _folders(root, "cpu"):
        quota, period = _text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(period):  # -1 is no limit
            yield int(quota) / int(period)


def _memory_limits(root: Path) -> Iterator[int]:
    files = [folder / "memory.max" for folder in _folders(root, None)]
    files += [folder / "memory.limit_in_bytes" for folder in _folders(root, "memory")]
    for file in files:
        if (text := _text(file)).isdigit():  # "max" is no limit; neither is 2^63 of version 1, by its size
            yield int(text)


def _folders(root: Path, controller: str | None) -> Iterator[Path]:
    """Folders of the process's control group and those above it: version 2 for None, else version 1's hierarchy.

    In a container the path is the host's, which is not mounted there: what is mounted at the top is its own group.
    """
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, names, path = [*line.split(":", 2), "", ""][:3]
        if names == "" if controller is None else controller in names.split(","):
            mount = root / "sys/fs/cgroup" / ("" if controller is None else controller)
            inside = PurePosixPath(path.lstrip("/"))
            yield from dict.fromkeys(mount / part for part in (inside, *inside.parents))


def _text(file: Path) -> str:
    """The text of a file; empty if it does not exist, as in groups without that controller."""
    try:
        return file.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


_BF16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""What instructions for products in bf16 are called: two of x86, and ARM's."""


def multiplies_in_bf16(root: Path = Path("/")) -> bool | None:
    """Whether the processor has instructions for products in bf16. None: that is not known.

    Linux tells it; elsewhere torch does, since 2.10. `root` is the parent of /proc.
    """
    if flags := re.search(r"^(?:flags|Features)\s*:(.*)$", _text(root / "proc/cpuinfo"), re.MULTILINE):
        return not _BF16.isdisjoint(flags[1].split())
    import torch

    has: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    known = _BF16 & has.keys()
    return any(has[name] for name in known) if known else None


# ------------------ The GPUs that this process would see, and their free memory, without starting CUDA

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
            gpus = _computing(nvml, _visible(nvml, handles, environ))
            return [_described(nvml, number, handle) for number, handle in enumerate(gpus)]
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
    visible: list[Any] = []
    known: list[str] = []
    for entry in listed.split(","):
        handle = _handle(nvml, handles, entry.strip())
        if handle is None:
            break
        uuid = _decoded(nvml.nvmlDeviceGetUUID(handle))
        if uuid in known:
            return []
        visible.append(handle)
        known.append(uuid)
    return visible


def _handle(nvml: Any, handles: list[Any], entry: str) -> Any | None:
    """The device of one entry: a number, the beginning of a GPU's UUID, or the UUID of a MIG instance."""
    if entry.startswith("MIG-"):
        try:
            return nvml.nvmlDeviceGetHandleByUUID(entry)
        except (nvml.NVMLError_NotFound, nvml.NVMLError_InvalidArgument):
            return None
    if entry.startswith("GPU-"):
        matching = [handle for handle in handles if _decoded(nvml.nvmlDeviceGetUUID(handle)).startswith(entry)]
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
    return _decoded(nvml.nvmlDeviceGetName(handle))


def _decoded(value: str | bytes) -> str:
    """Text; older bindings return bytes."""
    return value.decode() if isinstance(value, bytes) else value


def _apple() -> list[Gpu]:
    """The GPU of Apple silicon, which shares the machine's memory. Torch is asked, since virtual machines on the
    same processors have none."""
    import platform

    if platform.machine() != "arm64":
        return []
    import torch

    if not torch.backends.mps.is_available():
        return []
    import psutil

    memory = psutil.virtual_memory()
    return [Gpu(0, "Apple GPU", memory.available / GIB, memory.total / GIB, "Metal", "mps")]


# --------------------------- The devices of this machine, and the choice of one for a mode of training

Mode = Literal["gpu", "cpu", "mixed"]
MODES: tuple[Mode, ...] = ("gpu", "cpu", "mixed")

CompileModel = bool | Literal["cuda_graphs"]

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
        ("cpu"), id, name, memory_gb, cores, bf16 (whether it has instructions for that; None: not known). One GB is
        1024^3 bytes.
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
        cpu = {"type": "cpu", "id": 0, "name": processor_name(), "memory_gb": self._probe.memory_gb()}
        return [*devices, {**cpu, "cores": self._probe.cores(), "bf16": multiplies_in_bf16()}]

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
        require_mode(mode, min_memory_gb)
        if prefer not in PREFERENCES:
            raise InputError(f"unknown preference {prefer!r}; choose first or most_free")
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
        """The devices as `phonate session --show-resources` prints them."""
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


def require_mode(mode: str, min_memory_gb: float = 0.0) -> None:
    """Raise InputError where the mode is none, or so much memory of a GPU can't be asked for."""
    if mode not in MODES:
        raise InputError(f"unknown mode {mode!r}; choose gpu, cpu or mixed")
    if not min_memory_gb >= 0.0:
        raise InputError(f"minimum GPU memory is {min_memory_gb} GB; give 0 or more")


def _shortage(gpus: list[Gpu], min_memory_gb: float) -> str:
    if not gpus:
        return "no CUDA devices available"
    held = ", ".join(f"GPU {gpu.id} has {gpu.free_gb:.2f} of {gpu.total_gb:.2f}" for gpu in gpus)
    return f"no device has {float(min_memory_gb)} GB free ({held})"


def other_modes() -> str:
    """What to do where there is no GPU, for errors."""
    return f"use {option('mode', 'mixed')} or {option('mode', 'cpu')}"


def _remedy(gpus: list[Gpu]) -> str:
    return other_modes() + (f", or require less with {option('min_gpu_memory')}" if gpus else "")


def processor_name() -> str:
    """The processor's name; its architecture where the system has no name for it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:  # not Linux
        pass
    import platform  # a twentieth of what a short sentence takes

    return platform.processor() or platform.machine() or "CPU"
