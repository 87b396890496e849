"""Profiling of training: time by stages, and traces of torch's profiler.

The trainer calls `mark(stage)` at the end of each stage. The time since the previous mark is assigned to that stage, so
the stages add up to the total. On a GPU the marks are events in its stream, read once they have completed, without
synchronisation.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from phonate.compute.resources import DeviceType
from phonate.training.callbacks import Callback, TrainerView

# ----- Profiling by stages: data, forward, backward, optimizer step, the gap between steps, and pauses

STAGES = {
    "data": "waiting for batches and copying them to the device",
    "forward": "the model and its loss",
    "backward": "gradients",
    "step": "clipping, optimizer, averages",
    "gap": "between steps: metrics, callbacks, trackers",
    "pause": "validation and saving",
}
"""The stages of a step, in order."""

WARM_UP = 3
"""Optimizer steps before profiling; the first ones include allocation and compilation."""

DATA_LIMIT, GAP_LIMIT, PAUSE_LIMIT, BACKWARD_LIMIT = 0.20, 0.10, 0.25, 1.5


class Timeline(Protocol):
    """Accumulates seconds by stage."""

    seconds: dict[str, float]

    def begin(self) -> None:
        """Start timing."""
        ...

    def mark(self, stage: str) -> None:
        """Assign the time since the last mark to `stage`."""
        ...

    def end_step(self) -> None:
        """End of a step."""
        ...

    def finish(self) -> None:
        """Complete `seconds`, after the last mark."""
        ...


class HostTimeline:
    """Times measured by the host's clock, for devices that run synchronously with the host."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self._clock = clock
        self._last = 0.0

    def begin(self) -> None:
        """See `Timeline`."""
        self._last = self._clock()

    def mark(self, stage: str) -> None:
        """See `Timeline`."""
        now = self._clock()
        self.seconds[stage] += now - self._last
        self._last = now

    def end_step(self) -> None:
        """See `Timeline`."""

    def finish(self) -> None:
        """See `Timeline`."""


class EventTimeline:
    """Times measured by events in a GPU's stream. Only `begin` and `finish` synchronise.

    Args:
        event: Creates a timing event. None: a CUDA event.
        wait: Synchronises with the GPU. None: CUDA's.
    """

    def __init__(self, event: Callable[[], Any] | None = None, wait: Callable[[], None] | None = None) -> None:
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self._make = event or (lambda: torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
        self._wait = wait or torch.cuda.synchronize
        self._spare: list[Any] = []
        self._waiting: deque[tuple[str, Any]] = deque()
        self._last: Any = None

    def begin(self) -> None:
        """See `Timeline`."""
        self._wait()
        self._last = self._recorded()

    def mark(self, stage: str) -> None:
        """See `Timeline`."""
        self._waiting.append((stage, self._recorded()))

    def _recorded(self) -> Any:
        event = self._spare.pop() if self._spare else self._make()
        event.record()
        return event

    def end_step(self) -> None:
        """Read the completed events."""
        while self._waiting and self._waiting[0][1].query():
            stage, event = self._waiting.popleft()
            self.seconds[stage] += self._last.elapsed_time(event) / 1000.0
            self._spare.append(self._last)
            self._last = event

    def finish(self) -> None:
        """See `Timeline`."""
        self._wait()
        self.end_step()


@dataclass(frozen=True)
class Profile:
    """A profile. The `seconds` by stage add up to `wall_seconds`."""

    steps: int
    items: int
    wall_seconds: float
    seconds: Mapping[str, float]

    def share(self, stage: str) -> float:
        """The stage's share of the time, from 0 to 1."""
        whole = sum(self.seconds.values())
        return self.seconds[stage] / whole if whole else 0.0

    def table(self) -> str:
        """A line for each stage, and the throughput."""
        lines = [f"{'stage':<10}{'ms a step':>10}{'share':>9}"]
        for stage, meaning in STAGES.items():
            ms = 1000 * self.seconds[stage] / max(self.steps, 1)
            lines.append(f"{stage:<10}{ms:>10.2f}{100 * self.share(stage):>7.1f} %  {meaning}")
        wall = max(self.wall_seconds, 1e-9)
        lines.append(
            f"{self.steps} steps in {wall:.2f} s: {self.steps / wall:.2f} steps/s, {self.items / wall:.1f} items/s"
        )
        return "\n".join(lines)

    def advice(self, precision: str = "fp32", device: str = "cpu", memory_share: float = 1.0) -> list[str]:
        """Suggestions, most effective first.

        Args:
            precision: fp32, fp16 or bf16.
            device: cpu, cuda or mps.
            memory_share: Share of the device's memory in use, 0 to 1.
        """
        advice = []
        if (data := self.share("data")) > DATA_LIMIT:
            advice.append(
                f"data: {data:.0%} of the time is spent waiting for batches. Set training.performance.num_workers to "
                "2 to 4 (fewer if all CPU cores are busy), or prepare the corpus with `phonate data prepare`"
            )
        if (gap := self.share("gap")) > GAP_LIMIT:
            advice.append(
                f"gap: {gap:.0%} of the time is spent between steps. Raise training.logging.interval, remove "
                "callbacks that process every batch, and set training.logging.log_gradients to false"
            )
        if (pause := self.share("pause")) > PAUSE_LIMIT:
            advice.append(
                f"pause: {pause:.0%} of the time is spent in validation and saving. Raise training.validation.interval "
                "and training.checkpoint.interval"
            )
        advice += self._advice_on_computing(precision, device, memory_share)
        return advice or ["no bottleneck found: most of the time is forward and backward"]

    def _advice_on_computing(self, precision: str, device: str, memory_share: float) -> list[str]:
        advice = []
        forward, backward = self.seconds["forward"], self.seconds["backward"]
        if forward and backward > BACKWARD_LIMIT * forward:
            advice.append(
                f"backward: {backward / forward:.1f} times as long as forward (2 is usual, 3 with gradient "
                "checkpointing). If memory allows, turn checkpointing off (model.checkpoint_segments: null)"
            )
        if device != DeviceType.CPU:
            if precision == "fp32":
                advice.append("precision: the run is in fp32; training.mixed_precision: auto is faster on a GPU")
            if memory_share < 0.5:
                advice.append(f"memory: {memory_share:.0%} is in use; a larger training.batch_size uses the GPU better")
        return advice


class InterbatchProfiler:
    """Profiles `steps` optimizer steps after a warm-up, and does nothing afterwards.

    Args:
        steps: Optimizer steps to profile.
        device: On CUDA, GPU times are measured.
        warm_up: Optimizer steps before profiling.
        timeline: Measures the time. None: chosen by device.
        clock: Host clock in seconds, for the wall time.
    """

    def __init__(
        self,
        steps: int,
        device: torch.device,
        *,
        warm_up: int = WARM_UP,
        timeline: Timeline | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        on_gpu = DeviceType.of(device) is DeviceType.CUDA
        self.timeline: Timeline = timeline or (EventTimeline() if on_gpu else HostTimeline(clock))
        self.running = False
        self._left = steps
        self._warm_up = warm_up
        self._clock = clock
        self._began = 0.0
        self._wall = 0.0
        self._steps = self._items = 0

    def mark(self, stage: str) -> None:
        """Assign the time since the last mark to `stage`, one of `STAGES`."""
        if self.running:
            self.timeline.mark(stage)

    def end_step(self, items: int) -> bool:
        """End of an optimizer step on `items` items and what follows it. Returns True when the profile is complete."""
        if self.running:
            self.timeline.mark("gap")
            self.timeline.end_step()
            self._steps += 1
            self._items += items
            self._left -= 1
            if self._left == 0:
                self.finish()
                return True
        elif self._left:
            self._warm_up -= 1
            if self._warm_up <= 0:
                self.running = True
                self.timeline.begin()
                self._began = self._clock()
        return False

    def finish(self) -> None:
        """Stop profiling: the profile is complete, or the run has ended."""
        if self.running:
            self.running = False
            self._left = 0
            self.timeline.finish()
            self._wall = self._clock() - self._began

    @property
    def profile(self) -> Profile | None:
        """The profile, or None if no step was profiled."""
        if self.running or not self._steps:
            return None
        return Profile(self._steps, self._items, self._wall, dict(self.timeline.seconds))


# ----------------------------------------- `training.profiling`: a torch profiler trace of a few steps


class ProfilingCallback(Callback):
    """Records steps 3 to 5 of the run to `folder` as a Chrome trace (open it in Perfetto or TensorBoard)."""

    def __init__(self, folder: Path, rank: int = 0) -> None:
        self.folder = folder
        self.rank = rank
        self._profiler: torch.profiler.profile | None = None

    def on_train_begin(self, trainer: TrainerView) -> None:
        """Start recording."""
        activities = [torch.profiler.ProfilerActivity.CPU]
        if trainer.device.type == "cuda":
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._profiler = torch.profiler.profile(
            activities=activities,
            schedule=torch.profiler.schedule(wait=1, warmup=1, active=3, repeat=1),
            on_trace_ready=lambda p: p.export_chrome_trace(str(self.folder / f"trace-rank{self.rank}.json")),
            record_shapes=True,
        )
        self._profiler.start()

    def on_optimizer_step(self, trainer: TrainerView) -> None:
        """Advance the profiler by one step."""
        assert self._profiler is not None
        self._profiler.step()

    def on_train_end(self, trainer: TrainerView) -> None:
        """Write the trace."""
        assert self._profiler is not None
        self._profiler.stop()
