"""What the trainer needs before its first step, made from settings."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from phonate.compute.device import compile_mode
from phonate.compute.distributed import Ranks, like
from phonate.config.errors import InputError
from phonate.data.batches import Consumed, with_collator
from phonate.data.labels import some
from phonate.data.loading import BatchSource, MicroBatch
from phonate.training.callbacks import (
    Callback,
    FeatureRedrawCallback,
    redrawable,
    redrawn_by_default,
)
from phonate.training.checkpoints import resolve_checkpoint
from phonate.training.checkpoints.files import PACKAGED
from phonate.training.checkpoints.loading import load
from phonate.training.profiling import InterbatchProfiler
from phonate.training.run import Run
from phonate.training.settings import TrainingSettings
from phonate.training.task import Coupling, Dataset, Task

logger = logging.getLogger(__name__)

SHIM_FRAMES, SHIM_PART_FRAMES = 64, 32
"""`training.performance.batch_shim` pads to multiples of the first; parts by length, of few sizes, of the second."""
MUCH_PADDING = 0.5
"""From this share of the frames on, it is said that batches by length would have less."""


class Source(Protocol):
    """Where batches come from: the planned order of a task's samples, or a caller's own loader."""

    max_frames: int | None
    """The cap on the frames of a batch, which decides the order of samples. None: no cap."""

    def steps(self, epoch: int) -> int:
        """Micro-batches in `epoch`."""
        ...

    def epoch(self, epoch: int, consumed: Consumed = ()) -> Iterator[MicroBatch]:
        """The micro-batches of what remains of `epoch` when `consumed` of it is done; none where all of it is."""
        ...

    def consumed_by(self, epoch: int, batches: int, batch_size: int | None) -> Consumed:
        """What `batches` micro-batches of `epoch` had consumed, each of `batch_size` samples (None: as now)."""
        ...

    def digests(self) -> Mapping[str, int] | None:
        """A digest of everything that samples are made from, by its id; None where that is not known."""
        ...

    def loading(self) -> str:
        """The sample that this process loads; empty where that is not known."""
        ...

    def leave_out(self, samples: Mapping[str, str]) -> None:
        """Make batches without these samples: why, by id."""
        ...

    def halves(self, planned: MicroBatch, epoch: int) -> tuple[MicroBatch, MicroBatch] | None:
        """The halves of a micro-batch of `epoch`, for when memory has no room for it; None where it has one item."""
        ...

    def close(self) -> None:
        """Let go of what loading holds (worker processes)."""
        ...


def stuck_seconds(settings: TrainingSettings, ranks: Ranks) -> float:
    """After how long a step, or a wait for data, counts as stuck: with several ranks before those that wait for it give
    up, in words of their library."""
    seconds = 60.0 * settings.performance.stuck_minutes
    return seconds if ranks.world_size == 1 else min(seconds, 48.0 * settings.distributed.timeout_minutes)


def batch_source(
    samples: Dataset,
    settings: TrainingSettings,
    ranks: Ranks,
    device: torch.device,
    *,
    validation: bool = False,
    couples: bool = False,
) -> BatchSource:
    """The planned batches of `samples`. `couples`: whether the loss of an item depends on others of its micro-batch,
    which then stays as it is."""
    performance = settings.performance
    spare = 0 if samples.cached else min(4, max(1, (os.cpu_count() or 2) - 1))
    workers = spare if performance.num_workers == "auto" else performance.num_workers
    pin = device.type == "cuda" if performance.pin_memory == "auto" else performance.pin_memory
    batch_size, merged, frames = settings.batch_size, 1, _max_frames(samples, settings)
    if validation:
        batch_size = max(settings.validation.batch_size or batch_size, ranks.world_size)
    elif frames is None:
        merged = 1 if couples else merged_for(settings, ranks.world_size)
        if (idle := ranks.world_size - batch_size * merged) > 0:
            _warn_idle(settings, ranks, idle)
    # a GPU is not filled by parts of a batch, and ranks would wait for each other's
    split = performance.split_by_length and not validation and device.type == "cpu" and ranks.world_size == 1
    few = SHIM_PART_FRAMES if split else SHIM_FRAMES
    source = BatchSource(
        samples,
        seed=settings.random_seed,
        batch_size=batch_size,
        max_frames=frames,
        rank=ranks.rank,
        world_size=ranks.world_size,
        num_workers=workers,
        prefetch_factor=performance.prefetch_factor,
        # A validation always starts at epoch 0 and ends: workers that ran on would prepare batches for nobody.
        persistent_workers=performance.persistent_workers and not validation,
        pin_memory=pin,
        multiple=few if performance.batch_shim else 1,
        merged=merged,
        by_length=split,
        tolerant=settings.quarantine > 0 and not validation,
        stuck_seconds=0.75 * stuck_seconds(settings, ranks),  # before this process counts as stuck, as it waits
    )
    if not (split or validation) and frames is None and ranks.is_main:
        _advise_on_padding(source.padding(0), samples, batch_size)
    return source


def _advise_on_padding(padding: float, samples: Dataset, batch_size: int) -> None:
    """Say what makes batches of about `batch_size` samples with less padding, where there is much."""
    if padding < MUCH_PADDING:
        return
    rate, lengths = samples.frames_per_second, np.asarray(samples.lengths)
    frames = max(batch_size * float(lengths.mean()), int(lengths.max()))
    logger.info(
        "%.0f%% of the frames in batches are padding, because they mix short and long samples; "
        "training.%s makes batches of about this size from samples of similar length",
        100.0 * padding,
        f"max_length={math.ceil(frames)}" if rate is None else f"max_duration={math.ceil(frames / rate)}",
    )


def merged_for(settings: TrainingSettings, world_size: int) -> int:
    """How many micro-batches of an optimizer step are computed as one, so that ranks do not go without: as many as
    give each of `world_size` ranks one item at most. 1 where batches have an item for each rank."""
    times = settings.gradient_accumulation_steps
    fitting = [n for n in range(1, times + 1) if times % n == 0 and settings.batch_size * n <= world_size]
    return max(fitting, default=1)


def _warn_idle(settings: TrainingSettings, ranks: Ranks, idle: int) -> None:
    if ranks.is_main:
        logger.warning(
            "training.batch_size: %d of %d ranks have nothing to do (batches of %d, accumulated %d times); raise it",
            idle,
            ranks.world_size,
            settings.batch_size,
            settings.gradient_accumulation_steps,
        )


def _max_frames(samples: Dataset, settings: TrainingSettings) -> int | None:
    """Frames of a padded batch, at most. Raises InputError for a limit in a unit that the data set does not have."""
    rate = samples.frames_per_second
    if rate is None:
        if settings.max_duration is not None:
            raise InputError("training.max_duration: this data set is not measured in seconds; use training.max_length")
        return settings.max_length
    if settings.max_length is not None:
        raise InputError("training.max_length: this data set is measured in seconds; use training.max_duration")
    return None if settings.max_duration is None else int(settings.max_duration * rate)


def plan_sources(
    task: Task, settings: TrainingSettings, ranks: Ranks, device: torch.device, collator: str | None = None
) -> tuple[Source, Source | None, Dataset | None]:
    """The batches of the task's training and validation set, and the latter itself; None where it is empty. `collator`:
    the name of the one that makes them, if not the data sets'."""
    couples = task.coupling is not Coupling.NONE
    make = partial(batch_source, settings=settings, ranks=ranks, device=device, couples=couples)
    train, dataset = (with_collator(task.dataset(split), collator) for split in ("train", "validation"))
    if not len(dataset.ids):
        return make(train), None, None
    return make(train), make(dataset, validation=True), dataset


def build_model(task: Task, device: torch.device) -> nn.Module:
    """The task's model. Raises InputError where the task built it on another device."""
    model = task.model(device)
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.device.type != device.type:
            raise InputError(
                f"{type(task).__name__}.model({device}): {name} is on {tensor.device}; a task builds its model on the "
                "device that it is given (end with `return model.to(device)`)"
            )
    return model


def with_own_callbacks(
    callbacks: Sequence[Callback], settings: TrainingSettings, model: nn.Module, run: Run, rank: int
) -> list[Callback]:
    """`callbacks`, and those for random features of the model that are to be redrawn and for profiling."""
    callbacks = list(callbacks)
    told = settings.fixed_projection or any(isinstance(one, FeatureRedrawCallback) for one in callbacks)
    if not told and any(redrawn_by_default(module) for module in redrawable(model)):
        callbacks.append(FeatureRedrawCallback(interval=None))
    if settings.profiling:
        from phonate.training.profiling import ProfilingCallback

        callbacks.append(ProfilingCallback(run.path / "profile", rank))
    return callbacks


def set_matmul_precision(settings: TrainingSettings, device: torch.device) -> None:
    """Set how this process computes fp32 matrix products on CUDA; on other devices nothing changes."""
    if device.type == "cuda":
        torch.set_float32_matmul_precision(settings.performance.matmul_precision)


def compile_modules(modules: Sequence[nn.Module], settings: TrainingSettings, device: torch.device) -> None:
    """torch.compile them, where the recipe asks for it. Raises InputError for CUDA graphs without CUDA."""
    how = settings.performance.compile_model
    mode = compile_mode(how, device, "training.performance.compile_model")
    for module in modules if how else ():
        module.compile(mode=mode)


def profiler_of(settings: TrainingSettings, device: torch.device) -> InterbatchProfiler | None:
    """The profiler that the recipe asks for, if it does."""
    steps = settings.performance.profile_batches
    return None if steps is None else InterbatchProfiler(steps, device)


def initialise_from(source: str, task: Task, model: nn.Module, run: Run | None) -> None:
    """Start from another run's weights; what matched, what is new and what was missing goes to RUN/init_from.txt, where
    there is a run."""
    path = resolve_checkpoint(source)
    weights = task.adopted(load(path, weights_only=True).weights, path)
    shown = source if source in PACKAGED else path
    table, matched = match(weights, task.saved(model))
    file = None if run is None else run.path / "init_from.txt"
    if run is not None:
        run.write("init_from.txt", f"{path}\n\n{table}\n")
    if not matched:
        where = "" if file is None else f"; the table is in {file}"
        raise InputError(f"training.init_from: no weight of {shown} fits this model{where}")
    with torch.no_grad():
        saved = task.saved(model)
        task.restore(model, {**saved, **{name: like(tensor, saved[name]) for name, tensor in matched.items()}})
    fits = "all" if len(matched) == len(weights) else f"{len(matched)} of"
    fresh = [name for name in saved if name not in matched]
    untrained = f"; new and untrained: {some(fresh)}" if fresh else ""
    listed = "" if file is None else f"; {file} lists them"
    logger.info("weights of %s: %s %d tensors fit%s%s", shown, fits, len(weights), untrained, listed)


def match(source: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> tuple[str, dict[str, Tensor]]:
    """Tensors of `source` that fit `target` by name and shape, and a table of what became of every name."""
    rows, matched = [], {}
    for name in sorted({*source, *target}):
        if name not in source:
            rows.append(("new", name, f"{tuple(target[name].shape)}, freshly initialised"))
        elif name not in target:
            rows.append(("unused", name, "not in this model"))
        elif source[name].shape != target[name].shape:
            shapes = f"{tuple(source[name].shape)} there, {tuple(target[name].shape)} here: freshly initialised"
            rows.append(("mismatch", name, shapes))
        else:
            matched[name] = source[name]
            rows.append(("matched", name, str(tuple(source[name].shape))))
    return "\n".join(f"{kind:<9} {name}  {note}" for kind, name, note in rows), matched


def model_summary(model: nn.Module) -> str:
    """Parameters of the model and of each of its parts, two levels deep."""
    every, trainable = count_parameters(model), count_parameters(model, trainable_only=True)
    lines = [f"{type(model).__name__}: {every:,} parameters, {trainable:,} trainable", ""]
    for name, module in model.named_modules():
        if name and name.count(".") <= 1:
            lines.append(
                f"{'  ' * name.count('.')}{name:<32} {type(module).__name__:<28} {count_parameters(module):>14,}"
            )
    return "\n".join(lines) + "\n"


def count_parameters(module: nn.Module, trainable_only: bool = False) -> int:
    """Number of values in the parameters of the module."""
    return sum(p.numel() for p in module.parameters() if p.requires_grad or not trainable_only)
