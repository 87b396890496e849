"""How much of a batch is padding, and what it costs to plan one, beside Lhotse's samplers.

    OMP_NUM_THREADS=1 python benchmarks/padding.py [--epochs 3] [--mean-clips 16] [--out FILE.md]

Durations are drawn like those of LJSpeech, LibriSpeech and a lognormal corpus (80 frames a second), and of a corpus of
1,000 clips. A batch may hold `mean-clips` clips of mean length, padding counted. The planners take turns, epoch by
epoch. Printed:

- padding      padding over real frames, in per cent
- us / batch   CPU time to get a batch (its clips, not their audio): that of an epoch over its batches, median of epochs
- x            the same two as multiples of phonate's
- over cap     batches that break the cap, and by how much the largest does
- shared       batches that the next epoch has too, as sets of clips, in per cent
"""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import shlex
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import lhotse
import numpy as np
from lhotse import CutSet
from lhotse.dataset import DynamicBucketingSampler, DynamicCutSampler
from lhotse.dataset.sampling.base import CutSampler
from lhotse.testing.dummies import dummy_cut
from numpy.typing import NDArray

from phonate.data.batches import epoch_plan

FRAMES_PER_SECOND = 80
Lengths = NDArray[np.int64]
Batches = list[list[int]]
Epoch = Callable[[int], Iterator[list[int]]]
"""Number of an epoch -> its batches."""

HEADER = """# Padding, and the cost of planning a batch

    OMP_NUM_THREADS=1 {command}

A batch may hold {clips} clips of mean length, padding counted. `padding` is padding over real frames; `us / batch` is
CPU time; `x` are multiples of phonate's figure; `shared` are batches that the next epoch has too. Lhotse closes a
batch when one more clip as long as its longest so far would not fit, so a longer one that comes next can break the
cap. {epochs} epochs in turns; Lhotse {lhotse}, numpy {numpy}, Python {python}, {cores} cores shared with other work,
load {load:.2f}.
"""


def distributions(rng: np.random.Generator) -> dict[str, Lengths]:
    """Frames of the clips of four corpora."""

    def lj_like(clips: int) -> NDArray[np.float64]:
        return np.clip(rng.normal(6.6, 2.2, clips), 1.1, 10.1)

    seconds = {
        "LJ-like, 13,100 clips of 1.1-10.1 s": lj_like(13_100),
        "LibriSpeech-like, 28,539 of 2-17 s": 2 + 15 * rng.beta(4, 1.5, 28_539),
        "lognormal, 20,000 of 2-17 s": np.clip(rng.lognormal(1.6, 0.6, 20_000), 2, 17),
        "LJ-like, 1,000 clips": lj_like(1_000),
    }
    return {name: np.round(values * FRAMES_PER_SECOND).astype(np.int64) for name, values in seconds.items()}


def phonate_epochs(lengths: Lengths, cap: int) -> Epoch:
    """Our plan."""

    def epoch(number: int) -> Iterator[list[int]]:
        return (batch.tolist() for batch in epoch_plan(0, number, lengths, max_frames=cap))

    return epoch


def lhotse_epochs(lengths: Lengths, sampler_of: Callable[[CutSet], CutSampler]) -> Epoch:
    """The batches of a Lhotse sampler."""
    cuts = CutSet.from_cuts(
        dummy_cut(number, duration=frames / FRAMES_PER_SECOND) for number, frames in enumerate(lengths.tolist())
    )
    position = {cut.id: number for number, cut in enumerate(cuts)}
    sampler = sampler_of(cuts)

    def epoch(number: int) -> Iterator[list[int]]:
        sampler.set_epoch(number)
        return ([position[cut.id] for cut in batch] for batch in sampler)

    return epoch


def planners_for(lengths: Lengths, cap: int) -> dict[str, Epoch]:
    """Ours and Lhotse's, under the same cap."""
    options = {"max_duration": cap / FRAMES_PER_SECOND, "shuffle": True, "world_size": 1, "rank": 0}
    return {
        "phonate": phonate_epochs(lengths, cap),
        "Lhotse DynamicBucketing, 30 buckets": lhotse_epochs(
            lengths, lambda cuts: DynamicBucketingSampler(cuts, num_buckets=30, **options)
        ),
        "Lhotse DynamicBucketing, 10 buckets": lhotse_epochs(
            lengths, lambda cuts: DynamicBucketingSampler(cuts, num_buckets=10, **options)
        ),
        "Lhotse DynamicCutSampler": lhotse_epochs(lengths, lambda cuts: DynamicCutSampler(cuts, **options)),
    }


def measure(lengths: Lengths, cap: int, epochs: int) -> list[list[str]]:
    """A row for each planner."""
    planners = planners_for(lengths, cap)
    seconds: dict[str, list[float]] = {name: [] for name in planners}
    batches: dict[str, list[Batches]] = {name: [] for name in planners}
    for number in range(epochs):
        for name, epoch in planners.items():
            start = time.process_time()
            made = list(epoch(number))
            seconds[name].append((time.process_time() - start) / len(made))
            batches[name].append(made)
    padded = {name: statistics.mean(padding(made, lengths) for made in batches[name]) for name in planners}
    cost = {name: 1e6 * statistics.median(seconds[name]) for name in planners}
    return [
        [
            name,
            f"{padded[name]:.2f}",
            f"{padded[name] / padded['phonate']:.1f}",
            f"{cost[name]:.0f}",
            f"{cost[name] / cost['phonate']:.1f}",
            over(batches[name], lengths, cap),
            f"{statistics.mean(shared(*pair) for pair in itertools.pairwise(batches[name])):.1f}",
        ]
        for name in planners
    ]


def padding(batches: Batches, lengths: Lengths) -> float:
    """Padding over real frames, in per cent."""
    padded = sum(len(batch) * int(lengths[batch].max()) for batch in batches)
    real = sum(int(lengths[batch].sum()) for batch in batches)
    return 100 * (padded / real - 1)


def over(epochs: list[Batches], lengths: Lengths, cap: int) -> str:
    """How many batches break the cap, and the worst of them."""
    sizes = [len(batch) * int(lengths[batch].max()) for made in epochs for batch in made]
    broken = sum(size > cap for size in sizes)
    return f"{broken} of {len(sizes)}" + (f", up to {100 * (max(sizes) / cap - 1):.1f} %" if broken else "")


def shared(first: Batches, second: Batches) -> float:
    """Batches of `second` that `first` holds too, in per cent."""
    known = {frozenset(batch) for batch in first}
    return 100 * sum(frozenset(batch) in known for batch in second) / len(second)


def main() -> None:
    parser = argparse.ArgumentParser(description="padding and cost of planning batches")
    parser.add_argument("--epochs", type=int, default=3, help="at least 2")
    parser.add_argument("--mean-clips", type=int, default=16)
    parser.add_argument("--out", type=Path, help="write the tables to this file too, as markdown")
    args = parser.parse_args()
    if args.epochs < 2:
        parser.error("--epochs: at least 2 are needed to compare successive ones")
    # Lhotse warns about a corpus held in memory and about small buckets.
    warnings.filterwarnings("ignore", module="lhotse")
    text = HEADER.format(
        command=shlex.join(["python", *sys.argv]),
        clips=args.mean_clips,
        epochs=args.epochs,
        lhotse=lhotse.__version__,
        numpy=np.__version__,
        python=platform.python_version(),
        cores=os.cpu_count(),
        load=os.getloadavg()[0],
    )
    for name, lengths in distributions(np.random.default_rng(0)).items():
        cap = int(args.mean_clips * lengths.mean())
        text += f"\n{name}, cap {cap} frames\n\n"
        text += "| | padding, % | x | us / batch | x | over the cap | shared, % |\n|---|---|---|---|---|---|---|\n"
        for row in measure(lengths, cap, args.epochs):
            text += "| " + " | ".join(row) + " |\n"
    print(text)
    if args.out:
        args.out.write_text(text)


if __name__ == "__main__":
    main()
