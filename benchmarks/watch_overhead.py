"""What watching a run costs: the profiler of stages and the watch of memory, beside torch.profiler.

    OMP_NUM_THREADS=1 python benchmarks/watch_overhead.py [--rounds 30] [--milliseconds 16] [--out FILE]

One trainer step (forward, backward, clipping, AdamW) of a transformer of a size that takes about so many milliseconds,
in turns of ten steps each, round after round, in one process, so that what else the machine does falls on all alike:

- plain            neither
- watched          InterbatchProfiler and AdaptiveMemoryManager, as `training.performance` switches them on
- torch.profiler   torch.profiler.profile(activities=[CPU]), one step() a step
- with shapes ...  the same with record_shapes, profile_memory and with_stack

Times are processor time, which other processes do not lengthen much. The overhead is the median over rounds of
the ratio to `plain` in the same round, which drifts of the machine leave alone. That ratio has a spread of its own, so
what the watch calls in a step is timed by itself too, on 100,000 steps that do nothing else.
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

from phonate.training.memory import memory_manager
from phonate.training.profiling import InterbatchProfiler

CPU = torch.device("cpu")
TURN = 10
ALONE = 100_000


class Work:
    """A training step with the marks where the trainer has them."""

    def __init__(self, width: int) -> None:
        torch.manual_seed(0)
        block = torch.nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.model = torch.nn.TransformerEncoder(block, 4)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.x = torch.randn(4, 50, width)

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


def watched() -> Callable[[Work], None]:
    """A turn with both, which go on from turn to turn."""
    profiler, memory = InterbatchProfiler(10**9, CPU, warm_up=1), memory_manager(CPU)
    profiler.end_step(0)

    def turn(work: Work) -> None:
        for _ in range(TURN):
            work.step(profiler.mark, memory.check)
            profiler.end_step(1)

    return turn


def traced(**options: bool) -> Callable[[Work], None]:
    """A turn under torch.profiler."""

    def turn(work: Work) -> None:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], **options) as profiler:
            started = time.process_time()
            for _ in range(TURN):
                work.step(unmarked, unwatched)
                profiler.step()
            turn.seconds = time.process_time() - started  # type: ignore[attr-defined]

    return turn


def seconds_of(turn: Callable[[Work], None], work: Work) -> float:
    """Processor seconds of a turn; of torch.profiler those of its steps alone, not of its start and end."""
    started = time.process_time()
    turn(work)
    return getattr(turn, "seconds", time.process_time() - started)


def alone() -> float:
    """Microseconds a step of the watch's own calls, looks at memory once a second among them."""
    profiler, memory = InterbatchProfiler(ALONE + 1, CPU, warm_up=1), memory_manager(CPU)
    profiler.end_step(0)
    started = time.process_time()
    for _ in range(ALONE):
        for stage in ("data", "forward", "backward", "step"):
            profiler.mark(stage)
        memory.check()
        profiler.end_step(1)
    return (time.process_time() - started) / ALONE * 1e6


def look() -> float:
    """Microseconds of one look at memory."""
    memory = memory_manager(CPU)
    started = time.process_time()
    for _ in range(200):
        memory._look()
    return (time.process_time() - started) / 200 * 1e6


def sized(milliseconds: float) -> Work:
    """Work whose step takes about so long."""
    width = 32
    while True:
        work = Work(width)
        plain(work)
        if min(seconds_of(plain, work) for _ in range(3)) / TURN * 1000 >= milliseconds:
            return work
        width += 8


def main() -> None:
    """Run all in turns and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--milliseconds", type=float, default=16.0)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    work = sized(args.milliseconds)
    turns = {
        "plain": plain,
        "watched": watched(),
        "torch.profiler": traced(),
        "torch.profiler with shapes, memory and stacks": traced(
            record_shapes=True, profile_memory=True, with_stack=True
        ),
    }
    times: dict[str, list[float]] = {name: [] for name in turns}
    names = list(turns)
    for number in range(args.rounds + 1):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            times[name].append(seconds_of(turns[name], work) / TURN * 1000)
    lines = [f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}, {args.rounds} rounds", ""]
    lines += ["| | ms a step | over plain |", "|---|---|---|"]
    for name in names:
        ratios = [own / base for own, base in zip(times[name][1:], times["plain"][1:], strict=True)]
        overhead = "" if name == "plain" else f"{100 * (statistics.median(ratios) - 1):+.1f} %"
        lines.append(f"| {name} | {statistics.median(times[name][1:]):.2f} | {overhead} |")
    own, one_look = alone(), look()
    share = (own / 1e6) / (args.milliseconds / 1e3) + one_look / 1e6
    lines += ["", f"The watch by itself: {own:.1f} µs a step and {one_look:.0f} µs for a look at memory each second, "]
    lines[-1] += f"{100 * share:.2f} % of steps of {args.milliseconds:g} ms."
    table = "\n".join(lines) + "\n"
    print(table)
    if args.out:
        args.out.write_text(table)


if __name__ == "__main__":
    main()
