"""Which device to train on."""

from __future__ import annotations

from typing import Literal

import torch

from phonate.config.errors import InputError

Mode = Literal["gpu", "cpu", "mixed"]


def choose(mode: Mode = "mixed", device: str | None = None) -> torch.device:
    """The device that was named, else the one that `mode` allows.

    gpu: a GPU or an error; cpu: never a GPU; mixed: a GPU where there is one. Of several GPUs, each rank
    started by torchrun takes its own.
    """
    if device is not None:
        return _named(device)
    if mode == "cpu":
        return torch.device("cpu")
    if torch.cuda.is_available():
        return torch.device("cuda", _local_rank())
    if torch.backends.mps.is_available():
        return torch.device("mps")
    if mode == "gpu":
        raise InputError("GPU mode requested but no CUDA devices available; use --mode mixed or --mode cpu")
    return torch.device("cpu")


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


def _local_rank() -> int:
    import os

    return int(os.environ.get("LOCAL_RANK", "0"))
