"""Memory, processor and GPU use of this process."""

from __future__ import annotations

import logging
import resource
import sys
from pathlib import Path

log = logging.getLogger(__name__)

GB = 1e9
CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


class SystemMonitor:
    """Reads system metrics. One reading takes some 30 microseconds, so it is for logging intervals."""

    def __init__(self) -> None:
        import psutil

        self._process = psutil.Process()
        self._process.cpu_percent()  # the first call only starts the clock

    def read(self) -> dict[str, float]:
        """Memory in GB; percent of one core used since the last reading; GPU where one is in use."""
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


class MemoryWatch:
    """Warns once when the peak memory of this process passes a share of what it may use.

    Peak memory comes from getrusage, the one source that costs less than a microsecond; a look at /proc is
    twenty times as dear.
    """

    def __init__(self, limit: float | None = None, share: float = 0.9) -> None:
        self.limit = memory_limit() if limit is None else limit
        self.share = share
        unit = 1 if sys.platform == "darwin" else 1024
        self._threshold = share * self.limit / unit
        self._warned = False

    def check(self) -> None:
        """Look, and warn if it is time."""
        if not self._warned and resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > self._threshold:
            self._warned = True
            log.warning(
                "memory: this process has used over %.0f %% of the %.1f GB there are; lower "
                "training.batch_size or training.max_duration before it is killed",
                100 * self.share,
                self.limit / GB,
            )


def memory_limit() -> float:
    """Bytes that this process may use: the machine's memory, or its control group's limit where lower."""
    import psutil

    limits = [float(psutil.virtual_memory().total)]
    for path in CGROUP_LIMITS:
        if path.is_file() and (text := path.read_text().strip()).isdigit():
            limits.append(float(text))
    return min(limits)
