"""Adapters added to the weights of their base: compared with the adapters before anything is written, and stored in the
precision asked for, whose error is measured on what was written."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from phonate.config.errors import CheckpointError, InputError
from phonate.nn.pretrained.adapters import merge_adapters
from phonate.nn.pretrained.loading import DTYPES
from phonate.nn.pretrained.settings import Dtype

Stored = Literal["int8", "int4"]
Logits = Callable[[nn.Module], Tensor]
"""Logits (N, V) of a model for inputs that are always the same."""

TOLERANCE = 1e-4
"""Largest difference of a logit that merging in fp32 may make, relative to the largest logit (at least 1)."""
REPORT = "merge.json"


@dataclass(frozen=True)
class MergeReport:
    """What was merged and written, and how exact it is."""

    source: str
    """The checkpoint whose adapters were merged."""
    base: str
    """The model they belong to."""
    base_fingerprint: str
    dtype: str
    """What the weights are stored in, where they are not quantised."""
    quantization: Stored | None
    """int8 or int4 (nf4): how the linear layers are stored."""
    largest_logit: float
    """Of the model with adapters, in fp32."""
    merge_difference: float
    """Largest difference of a logit between the model with adapters and the merged one, both in fp32."""
    stored_error: float
    """Of the logits of the model as it was written, read again: norm of the difference over the norm."""
    stored_agreement: float
    """Share of the positions whose most likely token is the same."""
    bytes: int
    """Size of the weights on disk."""
    versions: dict[str, str]
    """Of the packages that made it."""


@dataclass(frozen=True)
class MergeRequest:
    """What is merged, and where it goes."""

    source: Path
    """A checkpoint."""
    target: Path
    """A folder that does not exist, or is empty."""
    dtype: Dtype = "auto"
    """fp32, fp16, bf16, or auto: what the base's file has."""
    quantization: Stored | None = None
    base: str | None = None
    """Where the base is; None: where it was in training."""


@dataclass(frozen=True)
class Mergeable:
    """A model with adapters, and what merging needs to know of its kind."""

    model: nn.Module
    """As `add_adapters` makes it. Its weights become fp32, and it is used up."""
    base: str
    base_fingerprint: str
    logits: Logits
    """Works for the model with adapters, merged, and as `read` gives it."""
    save: Callable[[nn.Module, Path], None]
    """Writes a merged model, with all that is needed to use it, to a folder."""
    read: Callable[[Path, Stored | None], nn.Module]
    """Reads such a folder; with a quantization, quantising its linear layers."""


def merge(request: MergeRequest, made: Mergeable) -> MergeReport:
    """Merge adapters in fp32 and write the model, with `merge.json`, the report.

    Raises:
        InputError: The folder is not empty.
        CheckpointError: The merged model differs from the one with adapters. Nothing is written then.
    """
    dtype = _dtype_of(made.model) if request.dtype == "auto" else DTYPES[request.dtype]
    with new_folder(request.target) as folder:
        adapted = made.model.float().eval()
        with torch.no_grad():
            expected = made.logits(adapted).float()
            merged = merge_adapters(adapted)
            difference = float((made.logits(merged).float() - expected).abs().max())
        largest = float(expected.abs().max())
        if not difference <= TOLERANCE * max(1.0, largest):  # NaN is not
            raise CheckpointError(
                f"{request.source}: merged in fp32, its logits differ by {difference:.2g} from those with adapters "
                f"(largest logit {largest:.3g}); nothing was written"
            )
        made.save(merged.to(dtype), folder)
        if request.quantization is not None:
            _quantise(folder, request.quantization, made)
        with torch.no_grad():
            stored = made.logits(made.read(folder, None).eval()).float()
        report = MergeReport(
            source=str(request.source),
            base=made.base,
            base_fingerprint=made.base_fingerprint,
            dtype=str(dtype).removeprefix("torch."),
            quantization=request.quantization,
            largest_logit=largest,
            merge_difference=difference,
            stored_error=float((stored - expected).norm() / expected.norm()),
            stored_agreement=float((stored.argmax(-1) == expected.argmax(-1)).float().mean()),
            bytes=sum(file.stat().st_size for file in folder.glob("*.safetensors")),
            versions=_versions(request.quantization),
        )
        (folder / REPORT).write_text(json.dumps(asdict(report), indent=2) + "\n", encoding="utf-8")
    return report


def _quantise(folder: Path, kind: Stored, made: Mergeable) -> None:
    """Replace the model in `folder` by the same with quantised linear layers."""
    model = made.read(folder, kind)
    for file in folder.glob("*.safetensors*"):  # shards and their index
        file.unlink()
    made.save(model, folder)


def _dtype_of(model: nn.Module) -> torch.dtype:
    """The type of most of the frozen weights."""
    sizes: dict[torch.dtype, int] = {}
    for parameter in model.parameters():
        if not parameter.requires_grad:
            sizes[parameter.dtype] = sizes.get(parameter.dtype, 0) + parameter.numel()
    return max(sizes, key=lambda dtype: sizes[dtype])


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A folder beside `target` that becomes it when all went well, and else disappears."""
    if os.path.lexists(target) and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"{target}: already exists; name a new folder")
    folder = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    folder.mkdir(parents=True)
    try:
        yield folder
        if target.is_dir():
            target.rmdir()
        folder.rename(target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _versions(quantization: Stored | None) -> dict[str, str]:
    names = ["phonate", "torch", "transformers", "peft", *(["bitsandbytes"] if quantization else [])]
    return {name: version(name) for name in names}


def export_adapters(model: nn.Module, target: Path) -> list[Path]:
    """Write the adapters of `model` as peft does (adapter_config.json, adapter_model.safetensors) to the new folder
    `target`; `peft.PeftModel.from_pretrained(base, target)` reads them. Returns the files."""
    with new_folder(target) as folder:
        adapted: Any = model
        adapted.save_pretrained(folder)
        (folder / "README.md").unlink(missing_ok=True)  # peft's empty model card
    return sorted(file for file in target.iterdir() if file.is_file())
