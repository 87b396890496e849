"""How much of a batch is padding, and what it costs to plan one, beside Lhotse's DynamicBucketingSampler.

    OMP_NUM_THREADS=1 python benchmarks/padding.py [--epochs 3] [--mean-clips 16]

Durations are drawn like those of LJSpeech, LibriSpeech and a lognormal corpus (80 frames a second), and of a corpus of
1,000 clips. A batch may hold `mean-clips` clips of mean length, padding counted. The planners take turns, epoch by
epoch. Printed:

- padding      padded frames over real frames, in per cent
- us / batch   CPU time to get a batch (its clips, not their audio): that of an epoch over its batches, median of epochs
- over cap     batches that break the cap, and by how much the largest does
- shared       batches that the next epoch has too, in per cent
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
import warnings
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from phonate.data.plan import epoch_plan

FRAMES_PER_SECOND = 80
Lengths = NDArray[np.int64]
Batches = list[list[int]]


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


def phonate_epochs(lengths: Lengths, cap: int) -> Callable[[int], Iterator[list[int]]]:
    """Epoch number -> its batches."""

    def epoch(number: int) -> Iterator[list[int]]:
        return (batch.tolist() for batch in epoch_plan(0, number, lengths, max_frames=cap))

    return epoch


def lhotse_epochs(lengths: Lengths, cap: int, buckets: int) -> Callable[[int], Iterator[list[int]]]:
    """Epoch number -> its batches, by DynamicBucketingSampler with a cap in seconds."""
    from lhotse import CutSet
    from lhotse.dataset import DynamicBucketingSampler
    from lhotse.testing.dummies import dummy_cut

    cuts = CutSet.from_cuts(
        dummy_cut(number, duration=frames / FRAMES_PER_SECOND) for number, frames in enumerate(lengths.tolist())
    )
    position = {cut.id: number for number, cut in enumerate(cuts)}
    sampler = DynamicBucketingSampler(
        cuts, max_duration=cap / FRAMES_PER_SECOND, num_buckets=buckets, shuffle=True, world_size=1, rank=0
    )

    def epoch(number: int) -> Iterator[list[int]]:
        sampler.set_epoch(number)
        return ([position[cut.id] for cut in batch] for batch in sampler)

    return epoch


def measure(lengths: Lengths, cap: int, epochs: int) -> list[list[str]]:
    """A row for each planner."""
    planners = {"phonate": phonate_epochs(lengths, cap)}
    for buckets in (10, 30):
        planners[f"Lhotse, {buckets} buckets"] = lhotse_epochs(lengths, cap, buckets)
    seconds: dict[str, list[float]] = {name: [] for name in planners}
    batches: dict[str, list[Batches]] = {name: [] for name in planners}
    for number in range(epochs):
        for name, epoch in planners.items():
            start = time.process_time()
            made = list(epoch(number))
            seconds[name].append((time.process_time() - start) / len(made))
            batches[name].append(made)
    return [
        [
            name,
            f"{statistics.mean(padding(made, lengths) for made in batches[name]):.2f}",
            f"{1e6 * statistics.median(seconds[name]):.0f}",
            over(batches[name], lengths, cap),
            f"{statistics.mean(shared(*pair) for pair in zip(batches[name], batches[name][1:], strict=False)):.1f}",
        ]
        for name in planners
    ]


def padding(batches: Batches, lengths: Lengths) -> float:
    """Padded frames over real frames, in per cent."""
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
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--mean-clips", type=int, default=16)
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    import lhotse

    print(
        f"{args.epochs} epochs, batches of {args.mean_clips} mean clips; Lhotse {lhotse.__version__}, "
        f"numpy {np.__version__}, Python {platform.python_version()}, load {os.getloadavg()[0]:.2f}\n"
    )
    for name, lengths in distributions(np.random.default_rng(0)).items():
        cap = int(args.mean_clips * lengths.mean())
        print(f"{name}, cap {cap} frames\n")
        print("| | padding, % | us / batch | over the cap | shared, % |\n|---|---|---|---|---|")
        for row in measure(lengths, cap, args.epochs):
            print("| " + " | ".join(row) + " |")
        print()


if __name__ == "__main__":
    main()
