"""`phonate` on a machine that seems to have two GPUs, one of them full. What is to be computed there, the CPU computes.

Run as a program it is the command line; `pretend` does the same within a test.
"""

from __future__ import annotations

import functools
import sys

from phonate.compute.resources import Gpu

TABLE = [Gpu(0, "Fake GTX 1660", 1.5, 5.62, "7.5"), Gpu(1, "Fake Quadro P1000", 5.5, 5.94, "6.1")]


class FakeProbe:
    """What the machine seems to have."""

    def __init__(self, gpus: list[Gpu]) -> None:
        self._gpus = gpus

    def gpus(self) -> list[Gpu]:
        return self._gpus

    def cores(self) -> int:
        return 12

    def memory_gb(self) -> float:
        return 125.71


def pretend(replace, table: list[Gpu] = TABLE) -> None:
    """Let devices be chosen from `table`; `replace(object, name, value)` sets attributes."""
    import torch

    from phonate.compute import device as devices
    from phonate.compute.resources import ResourceDetector
    from phonate.config.errors import InputError
    from phonate.workflows import train as workflow

    detector = ResourceDetector(FakeProbe(table))

    def choose(mode="mixed", device=None, min_memory_gb=0.0, probe=None) -> torch.device:
        if device is not None and device.startswith("cuda") and int(device[5:]) >= len(table):
            raise InputError(f"device {device} does not exist: {len(table)} CUDA devices were found")
        return torch.device(device or detector.select_best_device(mode, min_memory_gb))

    class OnCpu(workflow.Trainer):
        def __init__(self, *args, device, **options) -> None:
            super().__init__(*args, device=torch.device("cpu"), **options)

    replace(devices, "choose", choose)
    replace(workflow, "Trainer", functools.wraps(workflow.Trainer, updated=())(OnCpu))


if __name__ == "__main__":
    from phonate.cli import main

    pretend(setattr)
    sys.exit(main())
