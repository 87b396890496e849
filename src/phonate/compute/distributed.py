"""Distributed start-up, and the small messages that ranks exchange.

Small host-side numbers (counts, sums of metrics, stop flags) use a gloo group of their own, so that they
never synchronise a GPU. Gradients are reduced by DistributedDataParallel, or by FSDP2 (`fully_shard`), under which each
rank holds a part of every weight: a DTensor.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

import psutil
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from phonate.compute.system import write_to_console
from phonate.config.errors import InputError, Interrupted, PhonateError, TrainingError

logger = logging.getLogger(__name__)

PATIENCE = timedelta(days=30)
"""Time limit of `Ranks.wait`. (A rank that dies ends the wait at once, because its connection closes.)"""


Strategy = Literal["ddp", "fsdp", "fsdp-offload"]

# ------------------------------------------------------- Tensors of which each rank has a part (DTensor)


def is_sharded(tensor: Tensor) -> bool:
    """Whether each rank has a part of `tensor`."""
    module = sys.modules.get("torch.distributed.tensor")  # whose import takes a while
    return module is not None and isinstance(tensor, module.DTensor)


def whole(tensor: Tensor) -> Tensor:
    """`tensor`, of all ranks together where each has a part. All ranks call it together."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def like(tensor: Any, target: Tensor) -> Any:
    """`tensor`, of which each rank has all, divided over the ranks as `target` is, where they have one shape."""
    if not is_sharded(target) or not isinstance(tensor, Tensor) or is_sharded(tensor) or tensor.shape != target.shape:
        return tensor
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(target, DTensor)
    on_device = tensor.to(target.to_local().device)
    # every rank has it all: nothing is sent
    return distribute_tensor(on_device, target.device_mesh, target.placements, src_data_rank=None)


def local_part(tensor: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """This rank's part of `tensor`, and where in it that begins."""
    if not is_sharded(tensor):
        return tensor, (0,) * tensor.dim()
    from torch.distributed.tensor import DTensor

    assert isinstance(tensor, DTensor)
    with torch.no_grad():  # else to_local() notes how gradients come back
        return tensor.to_local(), _begins(tensor.shape, tensor.device_mesh, tensor.placements)


@functools.cache  # a save asks for hundreds, whose shapes are few
def _begins(shape: torch.Size, mesh: Any, placements: tuple[Any, ...]) -> tuple[int, ...]:
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    return tuple(compute_local_shape_and_global_offset(shape, mesh, placements)[1])


# ------------------------------------------------ What the loss of an item takes from the items of all ranks


class _Shared:
    """How losses that compare items see those of all ranks."""

    group: Any = None
    """None: this process has all items."""
    placeholder = False
    """Whether the items that this rank computes are a stand-in, because it got none."""


def standing_in(placeholder: bool) -> AbstractContextManager[None]:
    """Within this block, where `placeholder`, the items of this rank are no items to those of other ranks."""
    return _standing_in() if placeholder else _NO_CONTEXT  # once a step: a generator takes longer


@contextlib.contextmanager
def _standing_in() -> Iterator[None]:
    _Shared.placeholder = True
    try:
        yield
    finally:
        _Shared.placeholder = False


_NO_CONTEXT = contextlib.nullcontext()


def of_all_ranks(*tensors: Tensor) -> tuple[list[Tensor], slice]:
    """Tensors (N, ...) of this rank's N items, joined with those of the other ranks, and where its own are.

    Gradients flow back to the rank that a row comes from. All ranks call it together, in the backward pass too. A rank
    without items adds none.
    """
    if _Shared.group is None:
        return list(tensors), slice(0, len(tensors[0]))
    rank, size = dist.get_rank(_Shared.group), dist.get_world_size(_Shared.group)
    if _Shared.placeholder:
        tensors = tuple(one[:0] for one in tensors)
    counts = torch.zeros(size, dtype=torch.int64, device=tensors[0].device)
    counts[rank] = len(tensors[0])
    dist.all_reduce(counts, group=_Shared.group)
    ends: list[int] = counts.cumsum(0).tolist()
    own = slice(ends[rank] - len(tensors[0]), ends[rank])
    return [_Joined.apply(one, own, ends[-1]) for one in tensors], own  # type: ignore[no-untyped-call]  # torch's


def own_labels(labels: Tensor) -> Tensor:
    """`labels` (N,), of which those below 0 now differ from the labels of every other rank."""
    if _Shared.group is None:
        return labels
    rank, size = dist.get_rank(_Shared.group), dist.get_world_size(_Shared.group)
    return torch.where(labels < 0, labels * size - rank, labels)


class _Joined(torch.autograd.Function):
    """Rows of all ranks. The sum over ranks of (total, ...), zeros but for a rank's own rows, is that."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, own: slice, total: int) -> Tensor:
        """Own rows (N, ...) -> all rows (total, ...)."""
        ctx.own = own
        joined = rows.new_zeros(total, *rows.shape[1:])
        joined[own] = rows
        dist.all_reduce(joined, group=_Shared.group)
        return joined

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """The gradient of the own rows, which the losses of all ranks depend on."""
        gradient = gradients[0].contiguous().clone()
        dist.all_reduce(gradient, group=_Shared.group)
        return gradient[ctx.own], None, None


class LostRankError(TrainingError):
    """Another rank has ended."""


class Alarm:
    """Tells all ranks why one of them fails, and ends those that wait for it for ever.

    A rank that ends closes its connections, which ends a wait on gloo. It does not end one on nccl, nor other work that
    a rank is at; a thread looks whether a rank has failed, and ends the process if it has not ended by itself soon.

    Args:
        store: Where ranks leave words for each other.
        rank: Of this process.
        world_size: Number of ranks.
        end: Ends the process.
    """

    def __init__(self, store: Any, rank: int, world_size: int, end: Callable[[int], object] = os._exit) -> None:
        self.error: str | None = None
        """What the rank that failed first says, once this one knows."""
        self.settle: Callable[[], object] = lambda: None
        """Called before the process is ended."""
        self._store, self._rank, self._world_size, self._end = store, rank, world_size, end
        self._closed = threading.Event()

    def tell(self, error: BaseException) -> None:
        """Tell the other ranks that this one fails, unless one did before, and wait a moment until they know."""
        words = " ".join(str(error).split())
        words = words if isinstance(error, PhonateError) else f"{type(error).__name__}: {words}"
        with contextlib.suppress(RuntimeError):  # the process that keeps the store has ended
            if self._store.add(_FAILED, 1) == 1:
                self._store.set(_WORDS, f"rank {self._rank}: {words}")
            ends = time.monotonic() + 3 * ALARM_SECONDS
            while self._store.add(_HEARD, 0) < self._world_size and time.monotonic() < ends:
                time.sleep(0.02)

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Within, this process hears that another one fails."""
        self._closed.clear()
        thread = threading.Thread(target=self._listen, name="alarm", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._closed.set()
            thread.join()

    def _listen(self) -> None:
        with contextlib.suppress(RuntimeError):
            while not self._closed.wait(ALARM_SECONDS):
                if self._store.check([_WORDS]):
                    self.error = self._store.get(_WORDS).decode()
                    self._store.add(_HEARD, 1)
                    break
        if self.error is not None and not self._closed.wait(GRACE_SECONDS):
            self.settle()
            write_to_console(f"error: {self.error}")
            self._end(1)


_FAILED, _WORDS, _HEARD = "phonate/failed", "phonate/words", "phonate/heard"
ALARM_SECONDS = 0.5
"""How often a rank looks whether another has failed."""
GRACE_SECONDS = 5.0
"""How long a rank that knows it may take to end by itself."""


@dataclass
class Ranks:
    """The processes of this run. For a single process every method is a no-op."""

    rank: int = 0
    world_size: int = 1
    device: torch.device = field(default=torch.device("cpu"), repr=False)
    ddp: Mapping[str, Any] = field(default_factory=dict, repr=False)
    strategy: Strategy = "ddp"
    control: Any = field(default=None, repr=False)
    patient: Any = field(default=None, repr=False)
    alarm: Alarm | None = field(default=None, repr=False)

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

    def add_up(self, tensor: Tensor) -> None:
        """Replace `tensor` on the run's device by its sum over the ranks, on each of them."""
        dense = tensor.contiguous()
        dist.all_reduce(dense)
        if dense is not tensor:
            tensor.copy_(dense)

    def share(self, tensors: Iterable[Tensor]) -> None:
        """Replace tensors on the run's device by those of the first rank."""
        for tensor in tensors:
            dense = tensor.contiguous()
            dist.broadcast(dense, 0)
            if dense is not tensor:
                tensor.copy_(dense)

    def barrier(self) -> None:
        """Wait for all ranks."""
        if self.world_size > 1:
            dist.monitored_barrier(group=self.control)

    def wait(self) -> None:
        """Wait for all ranks without a time limit, for work that takes one rank much longer than another (its share of
        an evaluation, previews, writing a checkpoint)."""
        if self.world_size > 1:
            dist.barrier(group=self.patient)

    @property
    def sharded(self) -> bool:
        """Whether each rank has a part of the weights."""
        return self.world_size > 1 and self.strategy != "ddp"

    def shard(self, module: nn.Module, blocks: Sequence[nn.Module]) -> None:
        """Divide the weights of `module` over the ranks, in place: each of its `blocks` is whole only while it is
        computed, the rest while `module` is. A block may be computed by its method `run`. Raises InputError."""
        if not self.sharded:
            return
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard, register_fsdp_forward_method

        if any(not one.is_floating_point() for one in module.parameters()):
            raise InputError(
                f"training.distributed.strategy: {self.strategy} can't divide quantised weights; choose ddp, or "
                "weights of 16 or 32 bits"
            )
        mesh = init_device_mesh(self.device.type, (self.world_size,))
        on_gpu = self.device.type == "cuda"
        offload = CPUOffloadPolicy(pin_memory=on_gpu) if self.strategy == "fsdp-offload" else OffloadPolicy()
        for block in (*blocks, module):
            fully_shard(block, mesh=mesh, reshard_after_forward=True, offload_policy=offload)
            if hasattr(block, "run"):
                register_fsdp_forward_method(block, "run")

    def wrap(self, module: nn.Module) -> nn.Module:
        """`module` in DistributedDataParallel, so that its gradients are averaged over the ranks; as it is where its
        weights are divided, which averages them too."""
        if self.sharded or self.world_size == 1 or not any(one.requires_grad for one in module.parameters()):
            return module
        gpu = [self.device.index] if self.device.type == "cuda" else None
        return DistributedDataParallel(module, device_ids=gpu, **self.ddp)

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Within, an error of one rank ends the others, too, with its words. Raises LostRankError where it is that of
        another."""
        if self.alarm is None:
            yield
            return
        with self.alarm.listening():
            try:
                yield
            except (Interrupted, LostRankError):  # the others know
                raise
            except Exception as error:
                if (words := self.lost(error)) is not None:
                    raise LostRankError(words) from error
                self.alarm.tell(error)
                raise

    def lost(self, error: BaseException) -> str | None:
        """What to say where `error` is that another rank has ended; else None."""
        words = " ".join(str(error).split())
        if not isinstance(error, RuntimeError) or not any(one in words for one in _LOST):
            return None
        if self.alarm is not None and self.alarm.error is not None:
            return self.alarm.error
        return f"another rank has ended; its own message says why ({words.split('. This is')[0]})"

    def close(self) -> None:
        """Leave the group, so that the process can end."""
        if self.world_size > 1 and dist.is_initialized():
            _Shared.group = None
            dist.destroy_process_group()


_LOST = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")


def start(
    device: torch.device,
    *,
    backend: str = "auto",
    expected: int | None = None,
    timeout_minutes: float = 10.0,
    ddp: Mapping[str, bool] | None = None,
    strategy: Strategy = "ddp",
) -> Ranks:
    """Join the processes that torchrun or accelerate launch started; a single process without a launcher.

    `expected` is the recipe's `distributed.world_size`; `ddp` holds DistributedDataParallel's switches, `strategy`
    says how weights are held.
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
    timeout = timedelta(minutes=timeout_minutes)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    off_gpu = strategy == "fsdp-offload" and backend == "nccl"  # norms of gradients are then summed on the host
    dist.init_process_group("cuda:nccl,cpu:gloo" if off_gpu else backend, timeout=timeout)
    control = dist.new_group(backend="gloo", timeout=timeout)
    patient = dist.new_group(backend="gloo", timeout=PATIENCE)
    _Shared.group = dist.new_group(backend=backend, timeout=timeout)
    rank = dist.get_rank()
    store: Any = dist.distributed_c10d._get_default_store()
    alarm = Alarm(store.clone(), rank, world_size)
    return Ranks(rank, world_size, device, dict(ddp or {}), strategy, control, patient, alarm)


def launcher_options(precision: str | bool) -> dict[str, Any]:
    """What `accelerate launch` was told that the recipe leaves open: options of the recipe with their values.

    `precision` is the recipe's `training.mixed_precision`. Raises InputError for what phonate can't do.
    """
    if "ACCELERATE_MIXED_PRECISION" not in os.environ:
        return {}
    told = {name.removeprefix("ACCELERATE_"): value.lower() for name, value in os.environ.items()}
    for engine in ("DEEPSPEED", "MEGATRON_LM", "PARALLELISM_CONFIG"):
        if told.get(f"USE_{engine}") == "true":
            raise InputError(
                f"accelerate launch asks for {engine}, and phonate trains with DistributedDataParallel or FSDP; leave "
                f"--use_{engine.lower()} out"
            )
    _refuse_unheard()
    options: dict[str, Any] = {}
    if (asked := told["MIXED_PRECISION"]) == "fp8":
        raise InputError("accelerate launch --mixed_precision fp8: phonate trains in fp32, bf16 or fp16; choose one")
    if asked in ("bf16", "fp16") and precision in ("auto", True):
        options["training.mixed_precision"] = asked
    elif asked in ("bf16", "fp16") and precision != asked:
        logger.warning(
            "training.mixed_precision: the recipe's %s comes before accelerate launch --mixed_precision %s",
            precision,
            asked,
        )
    if told.get("USE_FSDP") == "true":
        options["training.distributed.strategy"] = _launched_strategy()
    if (compiler := told.get("DYNAMO_BACKEND", "no")) == "inductor":
        options["training.performance.compile_model"] = True
    elif compiler != "no":
        raise InputError(f"accelerate launch --dynamo_backend {compiler}: phonate compiles with inductor; choose that")
    return options


def _launched_strategy() -> Strategy:
    if os.environ.get("FSDP_VERSION", "1") != "2":
        raise InputError("accelerate launch --use_fsdp: phonate has FSDP2 (fully_shard); add --fsdp_version 2")
    return "fsdp-offload" if os.environ.get("FSDP_OFFLOAD_PARAMS", "false") == "true" else "fsdp"


_DEEPSPEED_ONLY = {
    "--gradient_accumulation_steps": "training.gradient_accumulation_steps",
    "--gradient_clipping": "training.gradient_clipping",
}
"""Options that accelerate launch accepts for every program and passes on to those of DeepSpeed alone."""


def _refuse_unheard() -> None:
    """Raise InputError for options of accelerate launch that never reach this process."""
    try:
        launcher = psutil.Process().parent()
        words = [] if launcher is None else launcher.cmdline()
    except psutil.Error:
        return
    for place, word in enumerate(words):
        if word == "phonate" or word.endswith("/phonate"):
            return
        name, _, value = word.partition("=")
        name = name.replace("-", "_").replace("__", "--", 1)
        if name in _DEEPSPEED_ONLY:
            value = value or "".join(words[place + 1 : place + 2])
            raise InputError(
                f"accelerate launch {name}: it passes this on to DeepSpeed alone; set {_DEEPSPEED_ONLY[name]}={value}"
            )


def _backend(backend: str, device: torch.device) -> str:
    """The backend for gradients. Raises InputError if torch or the device does not support it."""
    if backend == "auto":
        return "nccl" if device.type == "cuda" else "gloo"
    if backend == "nccl" and device.type != "cuda":
        raise InputError(f"training.distributed.backend: nccl needs GPUs and this run is on {device}; say gloo or auto")
    if not dist.is_backend_available(backend):
        raise InputError(f"training.distributed.backend: this torch was built without {backend}; say auto")
    return backend
