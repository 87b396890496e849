"""Memory, CPU and GPU usage of this process."""

from __future__ import annotations

import sys

GB = 1e9


class SystemMonitor:
    """Reads system metrics. A reading takes about 30 microseconds, so it is done once per logging interval."""

    def __init__(self) -> None:
        import psutil

        self._process = psutil.Process()
        self._process.cpu_percent()  # the first call only starts the measurement

    def read(self) -> dict[str, float]:
        """Memory in GB; CPU usage in percent of one core since the last reading; GPU memory if CUDA is in use."""
        values = {
            "system/memory_gb": self._process.memory_info().rss / GB,
            "system/cpu_percent": self._process.cpu_percent(),
        }
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            free, total = torch.cuda.mem_get_info()
            values["system/gpu_memory_gb"] = torch.cuda.memory_allocated() / GB
            values["system/gpu_memory_percent"] = 100 * (total - free) / total
        return values
