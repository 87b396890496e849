"""What watching over a run costs in each step: the ledger of time, the watch for steps that hang, samples left out,
and losses that are not finite.

    python benchmarks/guards.py [--rounds 15] [--out FILE]

Each guard does by itself what it does in one step, many times; the figure is the median over rounds of processor time
for a step, in microseconds, and its share of a step of 10 ms. `stop`, `skip` and `rollback` check one loss of three
terms and one gradient norm, which clipping computes in any case. At a log line (every 50 steps by default) the ledger's
line and shares are added.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from phonate.data.loading import MicroBatch
from phonate.training.ledger import FILE, Ledger
from phonate.training.not_finite import FiniteCheck
from phonate.training.stuck import StuckWatch

STEP = 10_000.0
"""Microseconds."""
EVERY = 50
TIMES = 2000


def guards(folder: Path) -> dict[str, Callable[[], object]]:
    """What each does in a step."""
    ledger = Ledger(folder / FILE)
    ledger.mark("start")
    ledger.begin(0)
    watch = StuckWatch(folder, 0, 3600.0, lambda: "")
    watch.start()
    group = [MicroBatch(["a"] * 16, {})]
    terms = {name: (torch.tensor(2.0), 16.0) for name in ("a", "b", "c")}
    loss, norm, ids = torch.tensor(1.0), torch.tensor(1.0), ["a"] * 16
    steps = iter(range(10**9))

    def marks() -> None:
        ledger.mark("train")
        ledger.mark("data")
        if next(steps) % EVERY == 0:
            ledger.shares()
            ledger.write(1)

    def watching() -> None:
        watch.enter()
        watch.leave()
        watch.enter()
        watch.leave()

    def finite(policy: str) -> Callable[[], object]:
        check = FiniteCheck(torch.device("cpu"), policy)

        def checked() -> None:
            check.loss(loss, 1, ids, terms)
            check.counted(terms)
            check.gradient(norm, 1, ids)

        return checked

    return {
        "ledger of time": marks,
        "watch for steps that hang": watching,
        "samples left out": lambda: [one for one in group if one.left_out],
        **{f"not_finite: {name}": finite(name) for name in ("stop", "skip", "rollback")},
    }


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    measured: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        every = guards(Path(temporary))
        for _ in range(arguments.rounds):
            for name, guard in every.items():
                began = time.process_time()
                for _ in range(TIMES):
                    guard()
                measured.setdefault(name, []).append((time.process_time() - began) / TIMES * 1e6)
    medians = {name: statistics.median(values) for name, values in measured.items()}
    always = sum(value for name, value in medians.items() if not name.startswith("not_finite"))
    medians |= {
        f"all, with not_finite: {policy}": always + medians[f"not_finite: {policy}"]
        for policy in ("stop", "skip", "rollback")
    }
    lines = ["| guard | µs in a step | share of 10 ms |", "|---|---|---|"]
    lines += [f"| {name} | {value:.1f} | {100 * value / STEP:.2f} % |" for name, value in medians.items()]
    table = "\n".join(lines)
    print(table)
    if arguments.out:
        command = "python benchmarks/guards.py " + " ".join(sys.argv[1:])
        arguments.out.write_text(f"# What watching over a run costs in each step\n\n`{command}`\n\n{table}\n")


if __name__ == "__main__":
    main()
