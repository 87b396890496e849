"""How long a save holds up training, beside a plain memory copy of the same tensors.

    OMP_NUM_THREADS=1 python benchmarks/checkpoint_stall.py [--megabytes 210] [--rounds 7] [--folder DIR]

Weights and two Adam moments, in turns within each round, the first round left out (it allocates):

- memory copy      every tensor copied into memory that was allocated and touched before: the floor
- phonate          CheckpointManager: copy, then SHA-256, fsync, read-back, rename in the background
- torch.save       torch.save, fsync, SHA-256 of the file, all before training goes on
- dcp.async_save   torch.distributed.checkpoint.async_save: no hash, no read-back
- safetensors      safetensors.torch.save_file and fsync: no hash, no read-back

`blocked` is the time until training may change the tensors again, `durable` until the save is complete.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import safetensors
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch import Tensor

from phonate.training.checkpoints import CheckpointManager
from phonate.training.settings import CheckpointConfig

Tensors = dict[str, Tensor]
Timing = tuple[float, float]
"""Seconds blocked, seconds until durable."""


def make_tensors(megabytes: float) -> Tensors:
    """About `megabytes` of float32 like a Transformer's: 512 wide, with its Adam moments."""
    generator = torch.Generator().manual_seed(0)
    tensors: Tensors = {}
    layer = 0
    while sum(tensor.nbytes for tensor in tensors.values()) < megabytes * 1e6:
        for name, shape in {"attention": (1536, 512), "out": (512, 512), "up": (2048, 512), "bias": (512,)}.items():
            for kind in ("weight", "exp_avg", "exp_avg_sq"):
                tensors[f"{kind}/layers.{layer}.{name}"] = torch.randn(*shape, generator=generator)
        layer += 1
    return tensors


def fsync(path: Path) -> None:
    """Wait until the disk has the file."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


class Contenders:
    """Each method saves the tensors once and says how long that blocked and lasted."""

    def __init__(self, tensors: Tensors, folder: Path) -> None:
        self.tensors = tensors
        self.folder = folder
        self.step = 0
        self.copies = {name: torch.zeros_like(tensor).fill_(1) for name, tensor in tensors.items()}
        self.memory_copy()
        self.manager = CheckpointManager(folder / "phonate", CheckpointConfig(save_total_limit=1))

    def memory_copy(self) -> Timing:
        started = time.perf_counter()
        for name, tensor in self.tensors.items():
            self.copies[name].copy_(tensor)
        seconds = time.perf_counter() - started
        return seconds, seconds

    def phonate(self) -> Timing:
        self.step += 1
        weights = {name: t for name, t in self.tensors.items() if name.startswith("weight")}
        state = {"optimizer": {name: t for name, t in self.tensors.items() if name not in weights}}
        started = time.perf_counter()
        self.manager.save_checkpoint(step=self.step, epoch=0, weights=weights, state=state)
        blocked = time.perf_counter() - started
        self.manager.flush()
        return blocked, time.perf_counter() - started

    def torch_save(self) -> Timing:
        path = self.folder / "torch.pt"
        started = time.perf_counter()
        torch.save(self.tensors, path)
        fsync(path)
        with path.open("rb") as file:
            hashlib.file_digest(file, "sha256")
        seconds = time.perf_counter() - started
        return seconds, seconds

    def dcp_async_save(self) -> Timing:
        self.step += 1
        started = time.perf_counter()
        future = dcp.async_save(dict(self.tensors), checkpoint_id=self.folder / "dcp" / str(self.step), no_dist=True)
        blocked = time.perf_counter() - started
        future.result()
        return blocked, time.perf_counter() - started

    def plain_safetensors(self) -> Timing:
        path = self.folder / "plain.safetensors"
        started = time.perf_counter()
        save_file(self.tensors, path)
        fsync(path)
        seconds = time.perf_counter() - started
        return seconds, seconds


def measure(contenders: Contenders, rounds: int) -> dict[str, list[Timing]]:
    """Every contender once a round, in turns; the first round is not counted."""
    turns: dict[str, Callable[[], Timing]] = {
        "memory copy": contenders.memory_copy,
        "phonate": contenders.phonate,
        "torch.save + fsync + SHA-256": contenders.torch_save,
        "dcp.async_save": contenders.dcp_async_save,
        "safetensors + fsync": contenders.plain_safetensors,
    }
    timings: dict[str, list[Timing]] = {name: [] for name in turns}
    for number in range(rounds + 1):
        for name, turn in turns.items():
            timing = turn()
            shutil.rmtree(contenders.folder / "dcp", ignore_errors=True)
            os.sync()  # nobody pays for another's unwritten pages
            if number:
                timings[name].append(timing)
    contenders.manager.close()
    return timings


def report(timings: dict[str, list[Timing]], tensors: Tensors) -> str:
    """Markdown: medians, and the median over rounds of the ratio to the memory copy of the same round."""
    size = sum(tensor.nbytes for tensor in tensors.values()) / 1e6
    lines = [
        f"{size:.0f} MB in {len(tensors)} tensors, {len(timings['phonate'])} rounds, "
        f"{torch.get_num_threads()} thread(s), {os.cpu_count()} cores, load {os.getloadavg()[0]:.2f} at the end; "
        f"torch {torch.__version__}, safetensors {safetensors.__version__}, Python {platform.python_version()}",
        "",
        "| | blocked, ms | blocked / memory copy | durable, ms |",
        "|---|---|---|---|",
    ]
    floor = [blocked for blocked, _ in timings["memory copy"]]
    for name, pairs in timings.items():
        blocked = statistics.median(pair[0] for pair in pairs) * 1e3
        durable = statistics.median(pair[1] for pair in pairs) * 1e3
        ratio = statistics.median(pair[0] / copy for pair, copy in zip(pairs, floor, strict=True))
        lines.append(f"| {name} | {blocked:.0f} | {ratio:.2f} | {durable:.0f} |")
    return "\n".join(lines)


def main() -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=210)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, help="where to write (default: a temporary folder)")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", module="torch.distributed")
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        tensors = make_tensors(arguments.megabytes)
        print(report(measure(Contenders(tensors, Path(folder)), arguments.rounds), tensors))


if __name__ == "__main__":
    main()
