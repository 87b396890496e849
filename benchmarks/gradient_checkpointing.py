"""Memory and time of one training step of the autoregressive voice with and without gradient checkpointing, on a CPU.

    OMP_NUM_THREADS=1 MALLOC_MMAP_THRESHOLD_=65536 python benchmarks/gradient_checkpointing.py [--width N] [--frames N]

Each setting runs in a process of its own. `kept` is what the forward pass holds for the backward pass, weights left
out; `peak` is by how much the step raises the process's memory over that of weights and gradients (Linux).
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time

import torch
from torch import Tensor, nn

from phonate.tasks.speech.autoregressive import AutoregressiveModel, loss_terms

SEGMENTS = ("none", "1", "2", "3", "6")
_MIB = 2**20


def measure(segments: str, width: int, frames: int) -> None:
    """Print a line of figures for one step of four sentences."""
    torch.manual_seed(0)
    count = None if segments == "none" else int(segments)
    model = AutoregressiveModel(63, 1, 80, width, 8, 4 * width, 6, 6, 0.1, 512, count)
    tokens = frames // 5
    batch = {
        "tokens": torch.randint(1, 63, (4, tokens)),
        "durations": torch.full((4, tokens), 5),
        "target": torch.rand(4, frames, 80),
        "token_lengths": torch.full((4,), tokens),
        "lengths": torch.full((4,), frames),
        "speaker_id": torch.zeros(4, dtype=torch.long),
    }
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        if not isinstance(tensor, nn.Parameter):
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        terms = loss_terms(model, batch)
    torch.stack([total / count for total, count in terms.values()]).sum().backward()
    seconds = time.perf_counter() - start
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    print(f"{segments:>8} {sum(kept.values()) / _MIB:>9.0f} MiB {peak / _MIB:>9.0f} MiB {seconds:>8.1f} s")


def main() -> None:
    """Run every setting, or the one that is named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--frames", type=int, default=500)
    parser.add_argument("--segments", choices=SEGMENTS)
    options = parser.parse_args()
    if options.segments:
        measure(options.segments, options.width, options.frames)
        return
    print(f"{'segments':>8} {'kept':>13} {'peak':>13} {'step':>10}", flush=True)
    for segments in SEGMENTS:
        subprocess.run([sys.executable, *sys.argv, "--segments", segments], check=True)


if __name__ == "__main__":
    main()
