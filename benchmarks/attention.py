"""Linear attention beside torch's scaled_dot_product_attention and performer-pytorch, on one thread of a CPU.

    OMP_NUM_THREADS=1 python benchmarks/attention.py [--rounds 3] [--frames 512 1024 4096 16384]

1. Inference: attention of 8 heads of 64 over queries, keys and values that lie in memory as one linear layer gives
   them. phonate computes with 128 random features and with its default, performer-pytorch with 128. In a round every
   side takes its turn, in another order each time; times are processor time, and ratios medians over rounds. Sides that
   would take minutes at a length are left out there (-).
2. Cost a frame of phonate alone, up to 64k frames.
3. Training: one forward and one backward pass of a causal self-attention of 4 heads of 32 with its projections, in a
   process of its own, with the most memory that it takes above what it had; and of an encoder of six whole layers, with
   and without gradient checkpointing.
4. Approximation: the relative error of the output to that of softmax, for inputs of standard deviation 0.5, averaged
   over draws; and the error of the mean of all values, which knows nothing of queries and keys.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

with contextlib.redirect_stdout(io.StringIO()):  # it prints that it has no CUDA kernels
    from performer_pytorch import FastAttention
    from performer_pytorch import SelfAttention as PerformerAttention

from phonate.nn.attention import SelfAttention
from phonate.nn.linear_attention import causal_attention, draw_projection, key_sums, read_sums
from phonate.nn.settings import LayerSettings
from phonate.nn.transformer import build_encoder

HEADS, DIM, FEATURES = 8, 64, 128
DEFAULT = LayerSettings(d_model=HEADS * DIM, num_heads=HEADS, attention_type="linear").features or 0
LONG = (4096, 16384, 65536)
LONGEST = {"torch": 16384, "performer-pytorch": 16384, "performer-pytorch, causal": 4096}
"""Frames after which a side is left out."""
ENCODER: dict[str, Any] = {
    "d_model": 128,
    "num_heads": 4,
    "num_layers": 6,
    "nb_features": FEATURES,
    "attention_type": "causal_linear",
}
ENCODERS = {"phonate, 6 layers": None, "phonate, 6 layers in 6 segments": 6}
"""Segments of gradient checkpointing."""
Side = Callable[[Tensor], Tensor]


def inputs(frames: int, deviation: float = 0.5) -> Tensor:
    """Queries, keys and values (3, 1, H, T, E)."""
    return (deviation * torch.randn(1, frames, 3, HEADS, DIM)).permute(2, 0, 3, 1, 4)


def phonate(features: int, causal: bool) -> Side:
    """Our attention."""
    directions = draw_projection(features, DIM)
    if causal:
        return lambda packed: causal_attention(packed, directions)[0]
    return lambda packed: read_sums(packed[0], key_sums(packed[1:], directions), directions)


def performer(features: int, causal: bool) -> Side:
    """performer-pytorch's attention."""
    with contextlib.redirect_stdout(io.StringIO()):
        attention = FastAttention(DIM, nb_features=features, causal=causal)
    return lambda packed: attention(*packed)


def sides(causal: bool) -> dict[str, Side]:
    """What is compared, by name."""
    return {
        "torch": lambda packed: F.scaled_dot_product_attention(*packed, is_causal=causal),
        "performer-pytorch": performer(FEATURES, causal),
        f"phonate, {FEATURES}": phonate(FEATURES, causal),
        f"phonate, {DEFAULT}": phonate(DEFAULT, causal),
    }


def spent(side: Side, packed: Tensor) -> float:
    """Milliseconds of processor time."""
    start = time.process_time()
    side(packed)
    return 1e3 * (time.process_time() - start)


def in_turns(found: dict[str, Side], frames: int, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each side in each round."""
    rng, packed = np.random.default_rng(0), inputs(frames)
    for side in found.values():
        side(inputs(256))
    taken: dict[str, list[float]] = {name: [] for name in found}
    for _ in range(rounds):
        for name in rng.permutation(list(found)).tolist():
            taken[name].append(spent(found[name], packed))
    return taken


def inference(causal: bool, lengths: list[int], rounds: int) -> None:
    """A table of times, and of torch's and performer-pytorch's over ours."""
    everything = sides(causal)
    ours = list(everything)[2:]
    print(f"\n{'Causal' if causal else 'All frames to all frames'}, ms\n")
    ratios = [f"torch / {name}" for name in ours] + [f"performer-pytorch / {ours[0]}"]
    print("| frames | " + " | ".join([*everything, *ratios]) + " |\n|" + "---|" * (1 + len(everything) + len(ratios)))
    for frames in lengths:
        chosen = {
            name: side
            for name, side in everything.items()
            if frames <= LONGEST.get(f"{name}, causal" if causal else name, LONGEST.get(name, frames))
        }
        taken = in_turns(chosen, frames, rounds)

        def ratio(other: str, own: str, taken: dict[str, list[float]] = taken) -> str:
            if other not in taken:
                return "-"
            return f"{statistics.median(a / b for a, b in zip(taken[other], taken[own], strict=True)):.2f}"

        cells = [f"{statistics.median(taken[name]):.1f}" if name in taken else "-" for name in everything]
        cells += [ratio("torch", name) for name in ours] + [ratio("performer-pytorch", ours[0])]
        print(f"| {frames} | " + " | ".join(cells) + " |", flush=True)


def growth(rounds: int) -> None:
    """Our cost a frame at growing lengths."""
    print(f"\nCost a frame, phonate with {FEATURES} features, µs\n")
    print("| | " + " | ".join(f"{frames} frames" for frames in LONG) + " |\n|" + "---|" * (1 + len(LONG)))
    for causal in (False, True):
        side = phonate(FEATURES, causal)
        packed = [inputs(frames) for frames in LONG]
        rows = [[1e3 * spent(side, one) / one.shape[3] for one in packed] for _ in range(rounds)]
        medians = [statistics.median(column) for column in zip(*rows, strict=True)]
        print(f"| {'causal' if causal else 'all'} | " + " | ".join(f"{value:.1f}" for value in medians) + " |")


def train_once(kind: str, frames: int) -> None:
    """Print seconds and peak megabytes of one forward and backward pass."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    module: torch.nn.Module
    if kind in ENCODERS:
        module = build_encoder(LayerSettings(**ENCODER, checkpoint_segments=ENCODERS[kind]))
    elif kind == "performer-pytorch":
        with contextlib.redirect_stdout(io.StringIO()):
            module = PerformerAttention(128, causal=True, heads=4, dim_head=32, nb_features=FEATURES)
    else:
        module = SelfAttention(128, 4, features=FEATURES if kind == "phonate" else None, causal=True)

    def run(count: int) -> None:
        out = module(x[:, :count])
        out.backward(torch.ones(()).expand_as(out))

    x = torch.randn(1, frames, 128, requires_grad=True)
    run(256)
    before = resident("VmRSS")
    start = time.process_time()
    run(frames)
    print(time.process_time() - start, resident("VmHWM") - before)


def resident(field: str) -> float:
    """Megabytes of this process, from /proc."""
    with open("/proc/self/status", encoding="ascii") as file:
        return int(next(line for line in file if line.startswith(field)).split()[1]) / 1024


def training() -> None:
    """Time and memory of a training pass."""
    print("\nTraining, causal, 4 heads of 32\n\n| | frames | s | MB |\n|---|---|---|---|")
    runs = [("phonate", 4096), ("phonate", 16384), ("phonate", 65536), ("torch", 4096), ("torch", 16384)]
    for kind, frames in [*runs, ("performer-pytorch", 4096), *((kind, 65536) for kind in ENCODERS)]:
        command = [sys.executable, __file__, "--train-once", kind, str(frames)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        seconds, megabytes = map(float, done.stdout.split())
        print(f"| {kind} | {frames} | {seconds:.2f} | {megabytes:.0f} |", flush=True)


def approximation(draws: int = 8) -> None:
    """Relative errors to softmax."""
    packed = inputs(512)
    wanted = F.scaled_dot_product_attention(*packed)

    def error(side: Side) -> float:
        return float((side(packed) - wanted).norm() / wanted.norm())

    print("\nRelative error to softmax, inputs of standard deviation 0.5, 512 frames\n\n| | features | error |")
    print("|---|---|---|")
    for features in (64, FEATURES, DEFAULT, 512, 1024):
        ours = statistics.fmean(error(phonate(features, False)) for _ in range(draws))
        theirs = statistics.fmean(error(performer(features, False)) for _ in range(draws))
        print(f"| phonate | {features} | {ours:.3f} |\n| performer-pytorch | {features} | {theirs:.3f} |")
    print(f"| mean of all values | - | {error(lambda one: one[2].mean(dim=2, keepdim=True).expand_as(wanted)):.3f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description="linear attention beside softmax and performer-pytorch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--frames", type=int, nargs="+", default=[512, 1024, 4096, 16384])
    parser.add_argument("--train-once", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train_once:
        train_once(args.train_once[0], int(args.train_once[1]))
        return
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(
        f"{HEADS} heads of {DIM}, {args.rounds} rounds, one thread, load {os.getloadavg()[0]:.2f}; torch "
        f"{torch.__version__}, performer-pytorch {version('performer-pytorch')}, Python {platform.python_version()}"
    )
    with torch.no_grad():
        for causal in (False, True):
            inference(causal, args.frames, args.rounds)
        growth(args.rounds)
        approximation()
    training()


if __name__ == "__main__":
    main()
