"""What pinned memory saves when batches are copied to a GPU.

    python benchmarks/pinned_memory.py [--rounds 5] [--mib 1 8 64] [--workers 2] [--out FILE.md]      # needs a CUDA GPU

Batches of so many MiB come from phonate's loader, with `pin_memory` and without, in turns, and are copied as the
trainer copies them. `copies`: milliseconds from a batch's arrival to the end of its copy, with nothing else to do.
`epoch`: milliseconds a batch for loading, copying and a product of matrices of 8192 x 8192 values on the GPU, during
which a copy from pinned memory can go on. The loader's worker processes give batches in shared memory; pinning copies
them once more, in a thread of the main process. Medians over rounds; the ratio is the median over rounds of the ratio
in one round.
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from phonate.data.loading import BatchSource
from phonate.training.task import move

BATCH, BATCHES, WARM_UP = 16, 40, 5
GPU = torch.device("cuda")
KINDS = {"pageable": False, "pinned": True}
_HEADER = """# Copies to a GPU from pinned memory

    python {command}

`copies`: milliseconds to copy a batch, with nothing else to do. `epoch`: milliseconds a batch for loading by {workers}
worker processes, copying and a matrix product on the GPU. Medians over {rounds} rounds of {batches} batches in turns;
`ratio`: pageable by pinned, median of the rounds' ratios.

{gpu}, {cores} cores, load {load:.2f}; torch {torch}, Python {python}.
"""


class Arrays:
    """Items of so many values each."""

    cached = True
    frames_per_second = 100.0

    def __init__(self, values: int) -> None:
        self.ids = [str(number) for number in range(BATCH * BATCHES)]
        self.lengths = np.full(len(self.ids), 100)
        self.item = torch.zeros(values)

    def get(self, index: int, rng: np.random.Generator) -> torch.Tensor:
        """An item."""
        return self.item

    def collate(self, items: Sequence[torch.Tensor]) -> Mapping[str, Any]:
        """A batch."""
        return {"values": torch.stack(list(items))}


def copies(source: BatchSource, epoch: int) -> float:
    """Milliseconds of a copy."""
    taken = []
    for planned in source.epoch(epoch):
        started = time.perf_counter()
        move(planned.batch, GPU)
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - started)
    return 1000 * statistics.median(taken[WARM_UP:])


def whole(source: BatchSource, epoch: int, matrix: torch.Tensor) -> float:
    """Milliseconds a batch with something to compute."""
    started = 0.0
    for number, planned in enumerate(source.epoch(epoch)):
        if number == WARM_UP:
            torch.cuda.synchronize()
            started = time.perf_counter()
        move(planned.batch, GPU)
        matrix @ matrix
    torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - started) / (BATCHES - WARM_UP)


def row(mib: int, workers: int, rounds: int) -> str:
    """The line of a size."""
    samples = Arrays(mib * 2**20 // 4 // BATCH)
    sources = {
        name: BatchSource(samples, seed=0, batch_size=BATCH, num_workers=workers, pin_memory=pin)
        for name, pin in KINDS.items()
    }
    matrix = torch.randn(8192, 8192, device=GPU)
    found: dict[str, dict[str, list[float]]] = {what: {name: [] for name in KINDS} for what in ("copies", "epoch")}
    for number in range(rounds):
        for name in KINDS if number % 2 else reversed(KINDS):
            found["copies"][name].append(copies(sources[name], 2 * number))
            found["epoch"][name].append(whole(sources[name], 2 * number + 1, matrix))
    for source in sources.values():
        source.close()
    cells = [str(mib)]
    for taken in found.values():
        cells += [f"{statistics.median(taken[name]):.2f}" for name in KINDS]
        cells.append(f"{statistics.median(a / b for a, b in zip(*(taken[name] for name in KINDS), strict=True)):.2f}")
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Measure every size and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mib", type=int, nargs="+", default=[1, 8, 64], help="of a batch")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    header = _HEADER.format(
        command=shlex.join(sys.argv),
        workers=options.workers,
        rounds=options.rounds,
        batches=BATCHES - WARM_UP,
        gpu=torch.cuda.get_device_name(GPU),
        cores=os.cpu_count(),
        load=os.getloadavg()[0],
        torch=torch.__version__,
        python=platform.python_version(),
    )
    names = [f"{what}, {name}" for what in ("copies", "epoch") for name in (*KINDS, "ratio")]
    lines = [header, "| MiB | " + " | ".join(names) + " |", "|---" * (1 + len(names)) + "|"]
    lines += [row(mib, options.workers, options.rounds) for mib in options.mib]
    text = "\n".join(lines) + "\n"
    print(text)
    if options.out:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
