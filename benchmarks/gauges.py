"""Time and memory as benchmarks of a CPU or a GPU read them."""

from __future__ import annotations

import time
from pathlib import Path

import torch


def clock(device: torch.device) -> float:
    """Processor seconds, which other processes do not lengthen much; seconds by when a GPU is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return time.perf_counter()
    return time.process_time()


def used(device: torch.device, peak: bool) -> int:
    """Bytes in use now, or at most so far: of the process (Linux), or of tensors on the GPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) if peak else torch.cuda.memory_allocated(device)
    # ru_maxrss would count what the parent process held, too.
    name, status = "VmHWM" if peak else "VmRSS", Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition(f"{name}:")[2].split()[0]) * 1024
