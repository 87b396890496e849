"""Monitors memory during training and frees it before it runs out.

Reading the usage is slow (a driver call or a system file), and emptying an allocator's cache is slower. At most batches
`check` therefore only compares clocks; reads and clean-ups are spaced so that together they take less than one per cent
of the time, whatever they cost on this machine.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from enum import IntEnum

import torch

from phonate.compute.device_type import DeviceType
from phonate.compute.memory import Usage, release, usage_of

logger = logging.getLogger(__name__)

OUT_OF_MEMORY_ADVICE = (
    "lower training.batch_size (or training.max_duration), turn on gradient checkpointing where the model has it "
    "(model.checkpoint_segments), try another training.mixed_precision, and leave "
    "training.performance.memory_management on"
)
"""What to do when memory runs out."""

GB = 1e9


class Pressure(IntEnum):
    """How full memory is."""

    LOW = 0
    MODERATE = 1
    HIGH = 2
    CRITICAL = 3


THRESHOLDS = {
    DeviceType.CUDA: (0.60, 0.75, 0.85),
    # Of the size that Metal recommends, which already leaves a share to the rest of the machine.
    DeviceType.MPS: (0.65, 0.80, 0.90),
    # Everything else on the machine uses this memory too.
    DeviceType.CPU: (0.70, 0.80, 0.90),
}
"""Shares of memory from which pressure is moderate, high, and over which it is critical."""

SECONDS_BETWEEN_LOOKS = (1.0, 0.5, 0.25, 0.25)
"""By pressure."""
LOOKS_SHARE = 0.002
"""Largest share of the time that reading the usage may take."""
CLEANING_SHARE = 0.005
"""Largest share of the time that clean-ups may take."""
SECONDS_BETWEEN_CLEANUPS = 10.0
LONGEST_WAIT = 600.0
"""A clean-up that freed nothing is repeated after twice the time, up to so many seconds."""
WORTH_IT = 0.01
"""Share of memory that a useful clean-up frees."""


def memory_manager(device: torch.device) -> AdaptiveMemoryManager:
    """The manager of a run on `device`. Beside a GPU's memory it watches the machine's."""
    kind = DeviceType.of(device)
    host = None if kind is DeviceType.CPU else AdaptiveMemoryManager(torch.device("cpu"))
    return AdaptiveMemoryManager(device, host=host)


class AdaptiveMemoryManager:
    """Watches the memory of `device` and cleans up under pressure.

    At low pressure nothing is done; at moderate pressure memory is looked at more often; at high pressure the
    allocator's cache is emptied (on a CPU: garbage collected); at critical pressure garbage is collected too, freed
    pages go back to the system, and the log says once what to change. A clean-up that gave nothing back is repeated
    less and less often; when pressure rises to a higher level, it is cleaned up at once.

    Args:
        device: Whose memory.
        probe: What reads its usage. None: the device's own.
        clean: What frees memory: called with True where pressure is critical. None: `phonate.compute.memory.release`.
        clock: Seconds.
        thresholds: Shares, see `THRESHOLDS`. None: those of the kind of device.
        host: Watches the machine's own memory beside that of a GPU.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        probe: Callable[[], Usage] | None = None,
        clean: Callable[[bool], None] | None = None,
        clock: Callable[[], float] = time.perf_counter,
        thresholds: tuple[float, float, float] | None = None,
        host: AdaptiveMemoryManager | None = None,
    ) -> None:
        self.device = device
        self.thresholds = thresholds or THRESHOLDS[DeviceType.of(device)]
        self.pressure = Pressure.LOW
        self.checks = 0
        """Batches that asked."""
        self.looks = 0
        """Times that usage was read."""
        self.cleanup_count = 0
        """Times that memory was cleaned up, emergencies among them."""
        self.usage = Usage(0.0, 0.0)
        """The latest that was read."""
        self._host = host
        self._probe = probe or usage_of(device)
        self._clean = clean or (lambda thorough: release(device, thorough))
        self._clock = clock
        self._began = clock()
        self._spent = 0.0
        self._look_due = self._began
        self._clean_due = self._began
        self._affordable = self._began
        self._wait = SECONDS_BETWEEN_CLEANUPS
        self._cleaned_at = Pressure.LOW
        """The pressure of the latest clean-up, until memory was free again."""
        self._warned = False

    def check(self) -> Pressure:
        """The pressure, looked up anew where it is time. Called at every batch; a fraction of a microsecond."""
        self.checks += 1
        if self._clock() >= self._look_due:
            self._look()
        return self.pressure

    def level(self, share: float) -> Pressure:
        """The pressure of a memory that is this full (0 to 1)."""
        moderate, high, critical = self.thresholds
        if share > critical:
            return Pressure.CRITICAL
        if share >= high:
            return Pressure.HIGH
        return Pressure.MODERATE if share >= moderate else Pressure.LOW

    def _look(self) -> None:
        started = self._clock()
        self._read()
        looked = self._clock() - started
        if self.pressure is Pressure.LOW and started >= self._affordable:
            self._cleaned_at = Pressure.LOW
        risen = self.pressure > self._cleaned_at
        if self.pressure >= Pressure.HIGH and (risen or started >= self._clean_due):
            if risen:  # what gave nothing back at a lower pressure says nothing about this one
                self._wait = SECONDS_BETWEEN_CLEANUPS
            self._clean_up()
        if self.pressure is Pressure.CRITICAL and not self._warned:
            self._warned = True
            logger.warning(
                "memory: %.0f %% of the %.1f GB of %s are in use; before it runs out, %s",
                100 * self.usage.share,
                self.usage.total / GB,
                self.device,
                OUT_OF_MEMORY_ADVICE,
            )
        if self._host is not None:
            self._host.check()
        ended = self._clock()
        self._spent += ended - started
        self._look_due = ended + max(SECONDS_BETWEEN_LOOKS[self.pressure], looked / LOOKS_SHARE)

    def _read(self) -> None:
        self.looks += 1
        self.usage = self._probe()
        self.pressure = self.level(self.usage.share)

    def _clean_up(self) -> None:
        """Free what can be freed, and find out whether it was worth it."""
        before, started = self.usage, self._clock()
        self._cleaned_at = self.pressure
        self._clean(self.pressure is Pressure.CRITICAL)
        self.cleanup_count += 1
        self._read()
        ended = self._clock()
        helped = before.used - self.usage.used >= WORTH_IT * before.total
        self._wait = SECONDS_BETWEEN_CLEANUPS if helped else min(2 * self._wait, LONGEST_WAIT)
        self._affordable = ended + (ended - started) / CLEANING_SHARE
        self._clean_due = max(ended + self._wait, self._affordable)

    def emergency(self) -> None:
        """Free everything that can be freed, now: memory has run out."""
        started = self._clock()
        self._clean(True)
        self.cleanup_count += 1
        self._read()
        self._spent += self._clock() - started

    @property
    def overhead_percent(self) -> float:
        """Percent of the time since the start that looks and clean-ups took."""
        elapsed = self._clock() - self._began
        return 100.0 * self._spent / elapsed if elapsed > 0 else 0.0

    def metrics(self) -> dict[str, float]:
        """What the trackers show."""
        return {
            "memory/pressure": float(self.pressure),
            "memory/cleanup_count": float(self.cleanup_count),
            "memory/cleanup_overhead_percent": self.overhead_percent,
        }
