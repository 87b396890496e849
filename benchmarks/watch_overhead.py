"""What watching a run costs: the profiler of stages and the watch of memory, beside torch.profiler.

    OMP_NUM_THREADS=1 python benchmarks/watch_overhead.py [--rounds 30] [--milliseconds 16] [--out FILE]
    python benchmarks/watch_overhead.py --device cuda [--rounds 30] [--out FILE]

One trainer step (forward, backward, clipping, AdamW) of a transformer of a size that takes about so many milliseconds,
in turns of ten steps each, round after round, in one process, so that what else the machine does falls on all alike:

- plain            neither
- watched          InterbatchProfiler and AdaptiveMemoryManager, as `training.performance` switches them on
- torch.profiler   torch.profiler.profile(activities=[CPU]), on a GPU [CPU, CUDA], one step() a step
- with shapes ...  the same with record_shapes, profile_memory and with_stack

Times are processor time, which other processes do not lengthen much, on a GPU the time until it is done. The overhead
is the median over rounds of the ratio to `plain` in the same round, which drifts of the machine leave alone. That ratio
has a spread of its own, so what the watch calls in a step is timed by itself too, on 100,000 steps that do nothing
else.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from phonate.training.memory.manager import memory_manager
from phonate.training.profiling.stages import InterbatchProfiler

TURN = 10
ALONE = 100_000


class Work:
    """A training step with the marks where the trainer has them."""

    def __init__(self, width: int, device: torch.device) -> None:
        torch.manual_seed(0)
        self.device = device
        with device:
            block = torch.nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
            self.model = torch.nn.TransformerEncoder(block, 4)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.x = torch.randn(4, 50, width, device=device)

    def step(self, mark: Callable[[str], None], check: Callable[[], object]) -> None:
        """One optimizer step."""
        mark("data")
        check()
        loss = self.model(self.x).square().sum()
        mark("forward")
        loss.backward()
        mark("backward")
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        mark("step")


def unmarked(stage: str) -> None:
    """Nobody measures."""


def unwatched() -> None:
    """Nobody looks."""


def plain(work: Work) -> None:
    """A turn without anything."""
    for _ in range(TURN):
        work.step(unmarked, unwatched)


def watched(device: torch.device) -> Callable[[Work], None]:
    """A turn with both, which go on from turn to turn."""
    profiler, memory = InterbatchProfiler(10**9, device, warm_up=1), memory_manager(device)
    profiler.end_step(0)

    def turn(work: Work) -> None:
        for _ in range(TURN):
            work.step(profiler.mark, memory.check)
            profiler.end_step(1)

    return turn


def clock(device: torch.device) -> float:
    """Processor seconds, which other processes do not lengthen much; seconds by when a GPU is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return time.perf_counter()
    return time.process_time()


def traced(device: torch.device, **options: bool) -> Callable[[Work], None]:
    """A turn under torch.profiler."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)

    def turn(work: Work) -> None:
        with torch.profiler.profile(activities=activities, **options) as profiler:
            started = clock(device)
            for _ in range(TURN):
                work.step(unmarked, unwatched)
                profiler.step()
            turn.seconds = clock(device) - started  # type: ignore[attr-defined]

    return turn


def seconds_of(turn: Callable[[Work], None], work: Work) -> float:
    """Seconds of a turn; of torch.profiler those of its steps alone, not of its start and end."""
    started = clock(work.device)
    turn(work)
    return getattr(turn, "seconds", clock(work.device) - started)


def alone(device: torch.device) -> float:
    """Microseconds a step of the watch's own calls, looks at memory once a second among them."""
    profiler, memory = InterbatchProfiler(ALONE + 1, device, warm_up=1), memory_manager(device)
    profiler.end_step(0)
    started = time.process_time()
    for _ in range(ALONE):
        for stage in ("data", "forward", "backward", "step"):
            profiler.mark(stage)
        memory.check()
        profiler.end_step(1)
    return (time.process_time() - started) / ALONE * 1e6


def look(device: torch.device) -> float:
    """Microseconds of one look at memory."""
    memory = memory_manager(device)
    started = time.process_time()
    for _ in range(200):
        memory._look()
    return (time.process_time() - started) / 200 * 1e6


def sized(milliseconds: float, device: torch.device) -> Work:
    """Work whose step takes about so long."""
    width = 32
    while True:
        work = Work(width, device)
        plain(work)
        if min(seconds_of(plain, work) for _ in range(3)) / TURN * 1000 >= milliseconds:
            return work
        width = 2 * width if device.type == "cuda" else width + 8


def main() -> None:
    """Run all in turns and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--milliseconds", type=float, default=16.0)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    device = torch.device(args.device)
    work = sized(args.milliseconds, device)
    turns = {
        "plain": plain,
        "watched": watched(device),
        "torch.profiler": traced(device),
        "torch.profiler with shapes, memory and stacks": traced(
            device, record_shapes=True, profile_memory=True, with_stack=True
        ),
    }
    times: dict[str, list[float]] = {name: [] for name in turns}
    names = list(turns)
    for number in range(args.rounds + 1):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            times[name].append(seconds_of(turns[name], work) / TURN * 1000)
    machine = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    lines = [f"{machine}, {os.cpu_count()} cores, torch {torch.__version__}, {args.rounds} rounds", ""]
    lines += ["| | ms a step | over plain |", "|---|---|---|"]
    for name in names:
        ratios = [own / base for own, base in zip(times[name][1:], times["plain"][1:], strict=True)]
        overhead = "" if name == "plain" else f"{100 * (statistics.median(ratios) - 1):+.1f} %"
        lines.append(f"| {name} | {statistics.median(times[name][1:]):.2f} | {overhead} |")
    own, one_look = alone(device), look(device)
    share = (own / 1e6) / (args.milliseconds / 1e3) + one_look / 1e6
    lines += ["", f"The watch by itself: {own:.1f} µs a step and {one_look:.0f} µs for a look at memory each second, "]
    lines[-1] += f"{100 * share:.2f} % of steps of {args.milliseconds:g} ms."
    table = "\n".join(lines) + "\n"
    print(table)
    if args.out:
        args.out.write_text(table)


if __name__ == "__main__":
    main()
