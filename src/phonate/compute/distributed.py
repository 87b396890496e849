"""Distributed start-up, and the small messages that ranks exchange.

Small host-side numbers (counts, sums of metrics, stop flags) use a gloo group of their own, so that they
never synchronise a GPU. Gradients are reduced by DistributedDataParallel.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from phonate.config.errors import InputError

logger = logging.getLogger(__name__)

PATIENCE = timedelta(days=30)
"""Time limit of `Ranks.wait`. (A rank that dies ends the wait at once, because its connection closes.)"""


@dataclass
class Ranks:
    """The processes of this run. For a single process every method is a no-op."""

    rank: int = 0
    world_size: int = 1
    device: torch.device = field(default=torch.device("cpu"), repr=False)
    ddp: Mapping[str, Any] = field(default_factory=dict, repr=False)
    control: Any = field(default=None, repr=False)
    patient: Any = field(default=None, repr=False)

    @property
    def is_main(self) -> bool:
        """True for the one process that writes files."""
        return self.rank == 0

    def sum(self, numbers: Sequence[float]) -> list[float]:
        """Each number summed over the ranks (in float64)."""
        if self.world_size == 1:
            return list(numbers)
        tensor = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(tensor, group=self.control)
        return [float(value) for value in tensor]

    def gather(self, value: Any) -> list[Any]:
        """Every rank's `value` (anything that is JSON), in the order of ranks, on every rank."""
        if self.world_size == 1:
            return [value]
        box: list[Any] = [None] * self.world_size
        dist.all_gather_object(box, value, group=self.control)
        return box

    def barrier(self) -> None:
        """Wait for all ranks."""
        if self.world_size > 1:
            dist.monitored_barrier(group=self.control)

    def wait(self) -> None:
        """Wait for all ranks without a time limit, for work that takes one rank much longer than another (its share of
        an evaluation, previews, writing a checkpoint)."""
        if self.world_size > 1:
            dist.barrier(group=self.patient)

    def wrap(self, module: nn.Module) -> nn.Module:
        """`module` in DistributedDataParallel, so that its gradients are averaged over the ranks."""
        if self.world_size == 1 or not any(one.requires_grad for one in module.parameters()):
            return module
        gpu = [self.device.index] if self.device.type == "cuda" else None
        return DistributedDataParallel(module, device_ids=gpu, **self.ddp)

    def close(self) -> None:
        """Leave the group, so that the process can end."""
        if self.world_size > 1 and dist.is_initialized():
            dist.destroy_process_group()


def start(
    device: torch.device,
    *,
    backend: str = "auto",
    expected: int | None = None,
    timeout_minutes: float = 10.0,
    ddp: Mapping[str, bool] | None = None,
) -> Ranks:
    """Join the processes that torchrun or accelerate launch started; a single process without a launcher.

    `expected` is the recipe's `distributed.world_size`; `ddp` holds DistributedDataParallel's switches.
    """
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if expected is not None and expected != world_size:
        raise InputError(
            f"training.distributed.world_size is {expected} but {world_size} process(es) were started; run "
            f"torchrun --nproc_per_node={expected} -m phonate train ..., or leave world_size out"
        )
    backend = _backend(backend, device)
    if world_size == 1:
        if os.environ.get("ACCELERATE_USE_CPU") == "True":
            logger.warning(
                "accelerate launch --cpu starts one process, whatever --num_processes says; for several use "
                "torchrun --nproc_per_node=N -m phonate train ..."
            )
        return Ranks()
    for engine in ("FSDP", "DEEPSPEED"):
        if os.environ.get(f"ACCELERATE_USE_{engine}", "false").lower() == "true":
            raise InputError(
                f"accelerate launch asks for {engine}, and phonate trains with DistributedDataParallel; leave "
                f"--use_{engine.lower()} out"
            )
    timeout = timedelta(minutes=timeout_minutes)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(backend, timeout=timeout)
    control = dist.new_group(backend="gloo", timeout=timeout)
    patient = dist.new_group(backend="gloo", timeout=PATIENCE)
    return Ranks(dist.get_rank(), world_size, device, dict(ddp or {}), control, patient)


def _backend(backend: str, device: torch.device) -> str:
    """The backend for gradients. Raises InputError if torch or the device does not support it."""
    if backend == "auto":
        return "nccl" if device.type == "cuda" else "gloo"
    if backend == "nccl" and device.type != "cuda":
        raise InputError(f"training.distributed.backend: nccl needs GPUs and this run is on {device}; say gloo or auto")
    if not dist.is_backend_available(backend):
        raise InputError(f"training.distributed.backend: this torch was built without {backend}; say auto")
    return backend
