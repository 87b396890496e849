"""How long the loop is held up when weights that are divided over processes are saved, beside a memory copy.

    OMP_NUM_THREADS=1 python benchmarks/sharded_stall.py [--megabytes 1000] [--ranks 2] [--rounds 5] [--folder DIR]

Weights and two Adam moments, divided as FSDP divides them (DTensor) over processes on gloo. In turns within each round,
the first round left out (it allocates): every process copies its part into memory that was allocated and touched before
(the floor); and every process saves, with all that holds it up: the folder, the wait for the others, the copy. What
follows in the background (SHA-256, fsync, read-back, manifest, rename) is waited for before the next round. Figures are
of the slowest process.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.multiprocessing.spawn import spawn

from phonate.compute.distributed import Ranks
from phonate.training.checkpoints import CheckpointManager
from phonate.training.settings import CheckpointConfig

SHAPES = {"attention": (3072, 1024), "out": (1024, 1024), "up": (4096, 1024), "bias": (1024,)}
"""Of a layer."""


def divided(megabytes: float, ranks: int) -> dict[str, torch.Tensor]:
    """About `megabytes` of float32 like a Transformer's, 1024 wide, with its Adam moments."""
    mesh = init_device_mesh("cpu", (ranks,))
    tensors: dict[str, torch.Tensor] = {}
    layer = 0
    while sum(tensor.nbytes for tensor in tensors.values()) < megabytes * 1e6:
        for name, shape in SHAPES.items():
            for kind in ("weight", "exp_avg", "exp_avg_sq"):
                whole = torch.randn(*shape)
                tensors[f"{kind}/layers.{layer}.{name}"] = distribute_tensor(whole, mesh, [Shard(0)])
        layer += 1
    return tensors


def run(rank: int, options: argparse.Namespace, folder: Path) -> None:
    """One process."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=options.ranks)
    ranks = Ranks(rank, options.ranks, strategy="fsdp", control=dist.new_group(backend="gloo"))
    tensors = divided(options.megabytes, options.ranks)
    parts = {name: tensor.to_local() for name, tensor in tensors.items() if isinstance(tensor, DTensor)}
    copies = {name: torch.zeros_like(tensor).fill_(1) for name, tensor in parts.items()}
    weights = {name: tensor for name, tensor in tensors.items() if name.startswith("weight")}
    state = {"optimizer": {name: tensor for name, tensor in tensors.items() if name not in weights}}
    shard = (rank, options.ranks)
    manager = CheckpointManager(folder / "checkpoints", CheckpointConfig(save_total_limit=1), shard=shard)
    if ranks.is_main:
        manager.open()
    rows = []
    for step in range(options.rounds + 1):
        dist.barrier()
        started = time.perf_counter()
        for name, part in parts.items():
            copies[name].copy_(part)
        copied = time.perf_counter() - started
        dist.barrier()
        started = time.perf_counter()
        manager.make_room(step)
        ranks.barrier()
        if ranks.is_main:
            manager.save_checkpoint(step=step, epoch=0, weights=weights, state=state)
        else:
            manager.save_shard(step, weights, state)
        blocked = time.perf_counter() - started
        manager.flush()
        durable = time.perf_counter() - started
        slowest = torch.tensor([copied, blocked, durable])
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        if step:
            rows.append(slowest.tolist())
    if ranks.is_main:
        size = sum(tensor.nbytes for tensor in tensors.values()) / 1e6
        ratio = statistics.median(blocked / copied for copied, blocked, _ in rows)
        copied, blocked, durable = (1e3 * statistics.median(column) for column in zip(*rows, strict=True))
        print(
            f"{size:.0f} MB in {len(tensors)} tensors over {options.ranks} processes, {len(rows)} rounds, "
            f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.2f} at the end; torch {torch.__version__}\n\n"
            "| memory copy, ms | blocked, ms | blocked / memory copy | durable, ms |\n|---|---|---|---|\n"
            f"| {copied:.0f} | {blocked:.0f} | {ratio:.2f} | {durable:.0f} |"
        )
    manager.close()
    dist.destroy_process_group()


def main() -> None:
    """Run the processes and print what they measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=1000)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where to write (default: a temporary folder)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        spawn(run, args=(options, Path(folder)), nprocs=options.ranks)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
